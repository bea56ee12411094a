"""State files of llama.cpp's own tools, read and written: what moves a prompt's state between them and us.

A session file (`llama-completion --prompt-cache FILE`) holds the state of a whole context and one list of tokens; a
sequence file (a slot that `llama-server` saved) that of one sequence. Both list tokens, and the last of them may not
be evaluated yet: llama-completion always leaves one, to have its logits, and only reads files that do.

The bytes of a state are checked against model and context before llama.cpp sees them. What no check can tell is
whether the numbers in them are right: these files carry no checksum and no name of their model, so a damaged file, or
one of a model of the same shape, gives wrong answers. (If it makes logits NaN, `context.memory.clear()` heals it.)
"""

from __future__ import annotations

import io
import os
import stat
import struct
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from ipyllama.errors import BadArgument, BadState

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ipyllama import _core

Kind = Literal["session", "sequence"]

_HEADER: Final = struct.Struct("<III")  # magic, version, number of tokens
_MAGIC: Final[dict[Kind, int]] = {"session": 0x6767736E, "sequence": 0x67677371}  # 'ggsn', 'ggsq'
_VERSION: Final[dict[Kind, int]] = {"session": 10, "sequence": 3}
# What a sequence's state begins with in memory and not in a file; the number of the sequence does not matter.
_IN_MEMORY: Final = struct.pack("<Ii", 0xAF143CD8, 0)
# llama-server's list of tokens: these two, the number of tokens, the tokens, the number of images and sounds, and they.
_PACKED: Final = (-1, 1)
_N_PACKED: Final = 4


@dataclass(frozen=True, slots=True)
class StateFile:
    """What the first bytes of a state file tell."""

    kind: Kind
    version: int
    n_tokens: int
    """those included that are not evaluated yet"""
    n_listed: int
    """numbers in the list of tokens: four more than tokens in a file of llama-server"""
    n_bytes: int
    """size of the state that follows"""


def read_header(path: str | os.PathLike[str]) -> StateFile:
    """What kind of state file this is, and how large, without reading the state.

    Raises BadState where it is none, is of a version that this llama.cpp does not read, or ends within its tokens.
    """
    with _named(Path(path)), _opened(Path(path)) as (_, found):
        return found


def save_session(sequence: _core.Sequence, path: str | os.PathLike[str], pending: Sequence[int] = ()) -> None:
    """Write the state of the sequence's context as a session file; `pending` are tokens that come next.

    The sequence has to be number 0 and the only one that holds tokens. `llama-completion --prompt-cache` evaluates the
    last token listed, so it wants one in `pending`. The file appears whole or not at all. Raises BadArgument for other
    sequences, OSError where it cannot be written.
    """
    context = sequence.context
    _check_alone(sequence)
    if not len(sequence):
        raise BadArgument("the sequence is empty: there is no state to save")
    state = context.save()
    _write(Path(path), "session", _listed(sequence, pending), state.data)


def load_session(sequence: _core.Sequence, path: str | os.PathLike[str]) -> list[int]:
    """Replace what the context holds by a session file; returns the tokens listed that are not evaluated yet.

    The sequence has to be number 0; all others are emptied. Raises BadState, and everything is as it was, where the
    file is damaged or does not fit this model and context; where llama.cpp itself has no room for it (windowed layers
    without swa_full) the context is empty afterwards. There are no logits until the next step.
    """
    if sequence.id:
        raise BadArgument(f"a session file is of sequence 0, not {sequence.id}: make Sequence(context, 0)")
    context = sequence.context
    with _named(Path(path)):
        tokens, state = _read(Path(path), "session", context, b"")
        counts = context.state_tokens(state)
        if not counts.keys() <= {0}:
            raise BadState(f"it holds {len(counts)} sequences and lists the tokens of one")
        n = min(counts.get(0, 0), len(tokens))
        context.restore(state, {0: tokens[:n]})
    return tokens[n:]


def save_sequence(sequence: _core.Sequence, path: str | os.PathLike[str], pending: Sequence[int] = ()) -> None:
    """Write the sequence as a file that llama-server restores into a slot; `pending` are tokens that come next.

    The file appears whole or not at all. Raises BadArgument for an empty sequence, OSError where it cannot be written.
    """
    state = sequence.save()
    _write(Path(path), "sequence", _listed(sequence, pending), state.data[len(_IN_MEMORY) :])


def load_sequence(sequence: _core.Sequence, path: str | os.PathLike[str]) -> list[int]:
    """Replace what the sequence holds by a sequence file; returns the tokens listed that are not evaluated yet.

    Raises BadState, and everything is as it was, where the file is damaged or does not fit this model and context.
    There are no logits until the next step.
    """
    with _named(Path(path)):
        tokens, state = _read(Path(path), "sequence", sequence.context, _IN_MEMORY)
        n = min(sequence.state_tokens(state), len(tokens))
        sequence.restore(state, tokens[:n])
    return tokens[n:]


def _check_alone(sequence: _core.Sequence) -> None:
    others = [number for number, n in sequence.context.memory.counts.items() if n and number != sequence.id]
    if sequence.id or others:
        raise BadArgument(
            "a session file lists the tokens of sequence 0 alone: clear the other sequences, or use save_sequence"
        )


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Errors about what is in a file tell its name."""
    try:
        yield
    except (BadState, BadArgument) as error:  # BadArgument: a token that the model does not have
        raise BadState(f"{path.name}: {error}") from None


@contextmanager
def _opened(path: Path) -> Iterator[tuple[io.BufferedReader, StateFile]]:
    """The file, read up to its tokens."""
    if not stat.S_ISREG(path.stat().st_mode):  # a pipe would block
        raise BadState("this is not a file")
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(_HEADER.size)
        magic, version, n_listed = _HEADER.unpack(head) if len(head) == _HEADER.size else (0, 0, 0)
        kind = next((kind for kind, number in _MAGIC.items() if number == magic), None)
        if kind is None:
            raise BadState("this is not a state file of llama.cpp")
        if version != _VERSION[kind]:
            raise BadState(
                f"it is a {kind} file of version {version}, and this llama.cpp reads {_VERSION[kind]}: compute its "
                "prompt again"
            )
        n_bytes = size - _HEADER.size - 4 * n_listed
        if n_bytes < 0:
            raise BadState(f"it is truncated: it should list {n_listed:,} tokens")
        n_tokens = n_listed
        if n_listed >= _N_PACKED:
            *marks, n = struct.unpack("<3i", file.read(12))
            file.seek(_HEADER.size)
            n_tokens = n if tuple(marks) == _PACKED else n_listed
        yield file, StateFile(kind, version, n_tokens, n_listed, n_bytes)


def _read(path: Path, kind: Kind, context: _core.Context, prefix: bytes) -> tuple[list[int], NDArray[np.uint8]]:
    """The tokens, and the state behind `prefix`; sizes are checked before there is memory for them."""
    import numpy as np

    with _opened(path) as (file, found):
        if found.kind != kind:
            raise BadState(f"it is a {found.kind} file: use load_{found.kind}")
        if found.n_listed > context.n_ctx + 1 + _N_PACKED:  # one is not evaluated
            raise BadState(
                f"it lists {found.n_listed:,} tokens and this context has room for {context.n_ctx:,}: ask for a larger "
                "n_ctx"
            )
        if found.n_bytes > context.state_limit:
            raise BadState(f"its state of {found.n_bytes:,} bytes is larger than any of this context")
        tokens = np.empty(found.n_listed, "<i4")
        state = np.empty(len(prefix) + found.n_bytes, np.uint8)
        state[: len(prefix)] = np.frombuffer(prefix, np.uint8)
        for target in (tokens.view(np.uint8), state[len(prefix) :]):
            if file.readinto(target.data) != target.nbytes:
                raise BadState("it is truncated")
    listed = _unpacked(tokens.tolist())
    if foreign := next((token for token in listed if not 0 <= token < context.n_vocab), None):
        raise BadState(f"it lists token {foreign}, and this model's are 0 to {context.n_vocab - 1:,}")
    return listed, state


def _unpacked(listed: list[int]) -> list[int]:
    """The tokens in a list that may be llama-server's."""
    if listed[:1] != [_PACKED[0]]:
        return listed
    if len(listed) < _N_PACKED or listed[1] != _PACKED[1] or not 0 <= listed[2] <= len(listed) - _N_PACKED:
        raise BadState("its list of tokens is damaged, or of a llama-server that is too new")
    end = 3 + listed[2]
    if listed[end:] != [0]:
        raise BadState("it holds images or sound, which are not read: save a slot of text")
    return listed[3:end]


def _write(path: Path, kind: Kind, tokens: list[int], state: memoryview) -> None:
    """Under a temporary name first, in the same folder: the file appears whole or not at all. A link stays one."""
    path = path.resolve()
    if path.exists() and not path.is_file() and not path.is_dir():
        raise BadArgument(f"{path} is not a file: give the name of one")
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".ipyllama-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_HEADER.pack(_MAGIC[kind], _VERSION[kind], len(tokens)))
                file.write(struct.pack(f"<{len(tokens)}i", *tokens))
                file.write(state)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, 0o666 & ~_umask())  # as any other file: llama-server may run as somebody else
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise OSError(error.errno, f"no state file was written: {error.strerror}", str(path)) from None


def _listed(sequence: _core.Sequence, pending: Sequence[int]) -> list[int]:
    """The tokens that a file lists. Raises BadArgument for what is none of this model's."""
    tokens, n_vocab = [*sequence.tokens, *pending], sequence.context.n_vocab
    if -1 in tokens:
        raise BadArgument("a state file lists token ids; a piece of an image or of sound has none")
    if not all(isinstance(token, int) and 0 <= token < n_vocab for token in tokens):
        raise BadArgument(f"token ids of this model are 0 to {n_vocab - 1:,}")
    return tokens


def _umask() -> int:
    """The process's; asking for it is changing it."""
    now = os.umask(0o077)
    os.umask(now)
    return now
