"""State files: what llama.cpp's own functions wrote goes on here bit for bit, and what we wrote goes on there."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from native.ask import bits
from native.core import make_context, run_apart
from numpy.typing import NDArray

from ipyllama import _core, sessions
from ipyllama.errors import BadArgument, BadState
from ipyllama.sessions import StateFile, load_sequence, load_session, read_header, save_sequence, save_session

ALL = ("llama", "gemma3", "mamba", "lfm2", "jamba", "smollm2")
KINDS = ("session", "sequence")
TOKENS = [1, *(262 + n * n % 94 for n in range(149))]
ENDS = (64, 128, 150)
PENDING = [300]
SAVE = {"session": save_session, "sequence": save_sequence}
LOAD = {"session": load_session, "sequence": load_sequence}


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens that a file lists, and greedy tokens with the logits of each."""

    listed: list[int]
    greedy: list[int]
    logits: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Upstream:
    """llama.cpp's own functions for state files, in a program of their own."""

    program: Path
    folder: Path

    def write(self, kind: str, model: Path, file: Path, more: Sequence[int], **options: bool) -> Run:
        return self._run("write", kind, model, file, (ENDS, TOKENS, PENDING, more), **options)

    def read(self, kind: str, model: Path, file: Path, more: Sequence[int], **options: bool) -> Run:
        return self._run("read", kind, model, file, ((), (), (), more), **options)

    def _run(self, mode: str, kind: str, model: Path, file: Path, lines, *, swa_full: bool = True, n: int = 8) -> Run:
        out = self.folder / "logits.f32"
        command = [self.program, mode, kind, model, 512, int(swa_full), file, n, out]
        text = "".join(" ".join(map(str, line)) + "\n" for line in lines)
        done = subprocess.run([*map(str, command)], input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        listed, greedy = ([int(word) for word in line.split()] for line in done.stdout.splitlines())
        return Run(listed, greedy, np.fromfile(out, np.float32).reshape(n, -1))


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Upstream:
    from native.build_oracle import build

    folder = tmp_path_factory.mktemp("states")
    return Upstream(build("states", folder), folder)


@pytest.fixture
def path_of(tiny, smollm2: Path) -> Callable[[str], Path]:
    return lambda name: smollm2 if name == "smollm2" else tiny(name)


def sequence_of(path: Path, **options: object) -> _core.Sequence:
    return _core.Sequence(make_context(_core.Model.load(str(path)), **options))


def evaluated(path: Path, tokens: Sequence[int] = TOKENS, **options: object) -> _core.Sequence:
    sequence = sequence_of(path, **options)
    for end in ENDS:
        if piece := tokens[len(sequence) : end]:
            sequence.decode(piece)
    return sequence


def go_on(sequence: _core.Sequence, more: Sequence[int], n: int = 8) -> Run:
    for token in more:
        sequence.decode([token])
    rows, greedy = [sequence.logits()], [int(np.argmax(sequence.logits()))]
    while len(rows) < n:
        sequence.decode(greedy[-1:])
        rows.append(sequence.logits())
        greedy.append(int(np.argmax(rows[-1])))
    return Run([], greedy, np.stack(rows))


def same(a: Run, b: Run, arch: str = "") -> bool:
    """Bit for bit; of windowed models nearly: a restored cell that the window has left is used again first."""
    if arch == "gemma3":
        return bool(np.abs(a.logits[0] - b.logits[0]).max() < 0.05)
    return a.greedy == b.greedy and np.array_equal(bits(a.logits), bits(b.logits))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("arch", ALL)
def test_what_llama_cpp_wrote_goes_on_here(upstream: Upstream, path_of, tmp_path: Path, arch: str, kind: str) -> None:
    file = tmp_path / "state"
    live = upstream.write(kind, path_of(arch), file, PENDING)
    found = read_header(file)
    assert (found.kind, found.n_tokens) == (kind, len(TOKENS) + 1)
    sequence = sequence_of(path_of(arch))
    assert LOAD[kind](sequence, file) == PENDING
    assert (sequence.tokens, sequence.positions, sequence.has_logits) == (TOKENS, list(range(len(TOKENS))), False)
    assert same(go_on(sequence, PENDING), live, arch)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("arch", ALL)
def test_what_we_wrote_goes_on_there(upstream: Upstream, path_of, tmp_path: Path, arch: str, kind: str) -> None:
    file = tmp_path / "state"
    sequence = evaluated(path_of(arch))
    SAVE[kind](sequence, file, PENDING)
    state = sequence.context.state_size() if kind == "session" else sequence.state_size() - 8
    n = len(TOKENS) + 1
    assert read_header(file) == StateFile(kind, {"session": 10, "sequence": 3}[kind], n, n, state)
    assert file.stat().st_size == 12 + 4 * (len(TOKENS) + 1) + state
    there = upstream.read(kind, path_of(arch), file, PENDING)
    assert there.listed == [*TOKENS, *PENDING]
    assert same(there, go_on(sequence, PENDING), arch)
    again = sequence_of(path_of(arch))  # and here
    assert LOAD[kind](again, file) == PENDING
    assert same(go_on(again, PENDING), there, arch)


@pytest.mark.parametrize("kind", KINDS)
def test_both_write_the_same_bytes(upstream: Upstream, path_of, tmp_path: Path, kind: str) -> None:
    upstream.write(kind, path_of("llama"), tmp_path / "theirs", [])
    SAVE[kind](evaluated(path_of("llama")), tmp_path / "ours", PENDING)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["ours", "theirs"]


@pytest.mark.parametrize("kind", KINDS)
def test_windowed_layers_with_few_cells(upstream: Upstream, path_of, tmp_path: Path, kind: str) -> None:
    """llama-completion keeps the window only, which is not our default: both ways of keeping it read each other."""
    path, file = path_of("gemma3"), tmp_path / "state"
    live = upstream.write(kind, path, file, PENDING, swa_full=False)
    sequence = sequence_of(path, swa_full=False)
    LOAD[kind](sequence, file)
    assert same(go_on(sequence, PENDING), live, "gemma3")
    for swa_full in (True, False):
        here = sequence_of(path, swa_full=swa_full)
        LOAD[kind](here, file)
        assert here.tokens == TOKENS
        assert same(go_on(here, PENDING), live, "gemma3")
    SAVE[kind](evaluated(path), file, PENDING)
    there = upstream.read(kind, path, file, PENDING, swa_full=False)
    assert same(there, live, "gemma3")


def test_lists_of_tokens_as_llama_server_packs_them(path_of, tmp_path: Path) -> None:
    """-1, version 1, the number of tokens, the tokens, the number of images, their places, what they are of."""

    def pack(*numbers: int) -> Path:
        file = tmp_path / "slot"
        state = sequence.save()[8:].tobytes()
        file.write_bytes(struct.pack(f"<III{len(numbers)}i", 0x67677371, 3, len(numbers), *numbers) + state)
        return file

    sequence = evaluated(path_of("llama"))
    n, again = len(TOKENS), sequence_of(path_of("llama"))
    found = read_header(pack(-1, 1, n, *TOKENS, 0))
    assert (found.n_tokens, found.n_listed, found.n_bytes) == (n, n + 4, sequence.state_size() - 8)
    assert load_sequence(again, tmp_path / "slot") == []
    assert again.tokens == TOKENS
    assert load_sequence(again, pack(-1, 1, n + 1, *TOKENS, *PENDING, 0)) == PENDING
    assert same(go_on(again, PENDING), go_on(evaluated(path_of("llama")), PENDING))
    for numbers in ((-1,), (-1, 1, 0), (-1, 2, n, *TOKENS, 0), (-1, 1, n + 1, *TOKENS, 0), (-1, 1, -1, *TOKENS, 0)):
        with pytest.raises(BadState, match="damaged, or of a llama-server that is too new"):
            load_sequence(again, pack(*numbers))
    for numbers in ((-1, 1, n, *TOKENS, 1, 3, 8, 0, 0), (-1, 1, n - 1, *TOKENS, 0)):
        with pytest.raises(BadState, match="images or sound"):
            load_sequence(again, pack(*numbers))


def test_a_whole_session_with_more_cells_than_a_window_needs(path_of, tmp_path: Path) -> None:
    """llama.cpp alone knows how many there is room for; where it fails nothing half restored is left."""
    sequence = sequence_of(path_of("gemma3"), n_ctx=1024)
    for _ in range(5):
        sequence.decode(TOKENS)
    save_session(sequence, tmp_path / "whole")
    few = sequence_of(path_of("gemma3"), n_ctx=1024, swa_full=False)
    few.decode(TOKENS[:5])
    with pytest.raises(BadState, match="context is empty now"):
        load_session(few, tmp_path / "whole")
    assert (len(few), few.pos_max, few.context.memory.used) == (0, -1, 0)
    save_sequence(sequence, tmp_path / "window")
    load_sequence(few, tmp_path / "window")
    assert few.tokens == TOKENS * 5
    assert same(go_on(few, [5]), go_on(sequence, [5]), "gemma3")


def damaged(good: bytes, n_tokens: int = len(TOKENS)) -> dict[str, tuple[bytes, str]]:
    """{name: (content, what the error says)}."""
    end = 12 + 4 * n_tokens
    many = struct.pack("<I", 2**32 - 1)
    tokens = np.array([*TOKENS[:-1], 2**31 - 1], "<i4").tobytes()
    return {
        "empty": (b"", "not a state file"),
        "short": (good[:11], "not a state file"),
        "gguf": (b"GGUF" + good[4:], "not a state file"),
        "older": (good[:4] + struct.pack("<I", 2) + good[8:], "of version 2, and this llama.cpp reads"),
        "tokens cut": (good[: end - 1], "truncated"),
        "tokens beyond the file": (good[:8] + many + good[12:], "truncated: it should list 4,294,967,295"),
        "tokens swallow the state": (good[:8] + struct.pack("<I", n_tokens + 3) + good[12:], "fit|context|lists token"),
        "fewer tokens": (good[:8] + struct.pack("<I", 9) + good[12:], "fit|context|lists token"),
        "no state": (good[:end], "ends early"),
        "state cut": (good[:-1], "ends early"),
        "state cut in the middle": (good[: (len(good) + end) // 2], "ends early"),
        "more": (good + b"\0", "1 bytes too many"),
        "unknown token": (good[:12] + tokens + good[end:], "355"),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_change_nothing(path_of, tmp_path: Path, kind: str) -> None:
    file = tmp_path / "state"
    SAVE[kind](evaluated(path_of("llama")), file)
    other, twin = evaluated(path_of("llama"), TOKENS[::-1]), evaluated(path_of("llama"), TOKENS[::-1])
    for name, (content, words) in damaged(file.read_bytes()).items():
        bad = tmp_path / "bad"
        bad.write_bytes(content)
        with pytest.raises(BadState, match=words) as caught:
            LOAD[kind](other, bad)
        assert str(caught.value).startswith("bad: "), name
        assert (other.tokens, other.positions) == (twin.tokens, twin.positions)
    with pytest.raises(BadState, match=f"it is a {kind} file: use load_{kind}"):
        LOAD[KINDS[1 - KINDS.index(kind)]](other, file)
    assert same(go_on(other, [5]), go_on(twin, [5]))


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_another_model_or_too_long(path_of, tmp_path: Path, kind: str) -> None:
    file = tmp_path / "state"
    for arch, words in (
        ("gemma3", "gemma3|too many"),
        ("mamba", "mamba|sequences of a cell"),
        ("smollm2", "larger than any of this context"),
    ):
        SAVE[kind](evaluated(path_of(arch)), file)
        with pytest.raises(BadState, match=words):
            LOAD[kind](sequence_of(path_of("llama")), file)
    long = sequence_of(path_of("llama"), n_ctx=1024)
    for _ in range(3):
        long.decode(TOKENS)
    SAVE[kind](long, file)
    with pytest.raises(BadState, match="lists 450 tokens and this context has room for 256"):
        LOAD[kind](sequence_of(path_of("llama"), n_ctx=256), file)
    missing = tmp_path / "missing"
    for attempt in (lambda: read_header(missing), lambda: LOAD[kind](long, missing)):
        with pytest.raises(FileNotFoundError):
            attempt()


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_are_checked_before_there_is_memory_for_them(path_of, tmp_path: Path, kind: str) -> None:
    file = tmp_path / "state"
    sequence = evaluated(path_of("llama"))
    SAVE[kind](sequence, file)
    os.truncate(file, 2**40)
    with pytest.raises(BadState, match="larger than any"):
        LOAD[kind](sequence, file)
    with file.open("r+b") as out:
        out.seek(8)
        out.write(struct.pack("<I", 2**32 - 1))
    with pytest.raises(BadState, match=r"lists 4,294,967,295 tokens"):
        LOAD[kind](sequence, file)
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(BadState, match="not a file"):
            LOAD[kind](sequence, place)
    assert sequence.tokens == TOKENS


@pytest.mark.parametrize("arch", [*ALL[:-1]])
def test_no_state_is_larger_than_the_limit(path_of, arch: str) -> None:
    context = make_context(_core.Model.load(str(path_of(arch))), n_seq_max=3)
    limit = context.state_limit
    sequences = [_core.Sequence(context) for _ in range(3)]
    for n, sequence in zip((255, 100, 156), sequences, strict=True):
        sequence.decode((TOKENS * 2)[:n])
    twin = sequences[1]
    twin.clear()
    twin.cp(sequences[0])
    assert context.memory.used <= context.memory.total
    for size in (context.state_size(), *(sequence.state_size() for sequence in sequences)):
        assert limit / 3 < size * (512 / 155) <= limit * 4
        assert size <= limit
    assert context.state_tokens(context.save()) == {0: 255, 1: 255, 2: 156}
    assert sequences[2].state_tokens(sequences[0].save()) == 255


def test_a_session_is_of_one_sequence(path_of, tmp_path: Path) -> None:
    context = make_context(_core.Model.load(str(path_of("llama"))), n_seq_max=2)
    first, second = _core.Sequence(context), _core.Sequence(context)
    with pytest.raises(BadArgument, match="is empty"):
        save_session(first, tmp_path / "state")
    with pytest.raises(BadArgument, match="is empty"):
        save_sequence(first, tmp_path / "state")
    first.decode(TOKENS)
    second.decode(TOKENS[:5])
    for attempt in (lambda: save_session(first, tmp_path / "state"), lambda: save_session(second, tmp_path / "state")):
        with pytest.raises(BadArgument, match="sequence 0 alone"):
            attempt()
    with pytest.raises(BadArgument, match="lists token ids"):
        save_sequence(first, tmp_path / "state", [-1])
    assert not list(tmp_path.iterdir())
    state, listed = context.save(), np.array(TOKENS, "<i4")
    file = tmp_path / "two"
    file.write_bytes(struct.pack("<III", 0x6767736E, 10, len(listed)) + listed.tobytes() + state.tobytes())
    with pytest.raises(BadState, match="two: it holds 2 sequences and lists the tokens of one"):
        load_session(first, file)
    with pytest.raises(BadArgument, match="sequence 0, not 1"):
        load_session(second, file)
    second.clear()
    save_session(first, file)
    second.decode(TOKENS[:9])
    assert load_session(first, file) == []
    assert (first.tokens, len(second)) == (TOKENS, 0)  # a session is all of the memory
    save_sequence(first, file)
    assert load_sequence(second, file) == []
    assert first.tokens == second.tokens == TOKENS


def test_moved_and_cut_sequences(path_of, tmp_path: Path) -> None:
    """Positions are in the state, so a sequence with holes comes back as it was; of a pending shift nothing is lost."""
    sequence = evaluated(path_of("llama"))
    sequence.rm(20, 40)
    sequence.add(40, None, 7)
    save_sequence(sequence, tmp_path / "state")
    again = sequence_of(path_of("llama"))
    load_sequence(again, tmp_path / "state")
    assert (again.tokens, again.positions) == (sequence.tokens, sequence.positions)
    assert np.abs(go_on(again, [5]).logits - go_on(sequence, [5]).logits).max() < 0.05


FULL = """
import resource, sys
from pathlib import Path
from native.core import make_sequence
from ipyllama.sessions import load_sequence, save_sequence
path, folder = Path(sys.argv[1]), Path(sys.argv[2])
sequence = make_sequence(path)
sequence.decode([1, 2, 3])
save_sequence(sequence, folder / "state")
before = (folder / "state").read_bytes()
sequence.decode(list(range(200)))
for limit in (0, 5, 100, 4096, 20_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        save_sequence(sequence, folder / "state")
    except OSError as error:
        print(error.strerror, error.filename == str(folder / "state"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert (folder / "state").read_bytes() == before
    assert [path.name for path in folder.iterdir()] == ["state"]
save_sequence(sequence, folder / "state")
load_sequence(sequence, folder / "state")
del sequence  # what a module still holds at exit is no leak, but nanobind counts it
"""


def test_no_room_leaves_no_half_file(path_of, tmp_path: Path) -> None:
    words = run_apart(FULL, path_of("llama"), tmp_path).splitlines()
    assert words == ["no state file was written: File too large True"] * 5


def test_folders_that_cannot_be_written(path_of, tmp_path: Path) -> None:
    sequence = evaluated(path_of("llama"))
    (tmp_path / "folder").mkdir()
    for place, error in (("missing/state", FileNotFoundError), ("folder", IsADirectoryError)):
        with pytest.raises(error, match="no state file was written"):
            save_sequence(sequence, tmp_path / place)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    if os.geteuid():  # root may write everywhere
        tmp_path.chmod(0o500)
        with pytest.raises(PermissionError, match="no state file was written"):
            save_sequence(sequence, tmp_path / "state")
        tmp_path.chmod(0o700)


def test_what_is_no_file_is_not_replaced_and_a_link_stays_one(path_of, tmp_path: Path) -> None:
    sequence = evaluated(path_of("llama"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadArgument, match="pipe is not a file"):
        save_sequence(sequence, tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    save_sequence(sequence, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert read_header(tmp_path / "real").n_tokens == len(sequence)
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    now = os.umask(0o022)
    os.umask(now)
    return now


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_those_of_the_model(path_of, tmp_path: Path, kind: str) -> None:
    sequence, file = evaluated(path_of("llama")), tmp_path / "state"
    for token in (10**6, 356, -1, -7):
        with pytest.raises(BadArgument, match="token ids"):
            SAVE[kind](sequence, file, pending=[token])
    SAVE[kind](sequence, file)
    for token in (10**6, -1):
        content = bytearray(file.read_bytes())
        content[16:20] = struct.pack("<i", token)
        (tmp_path / "bad").write_bytes(content)
        with pytest.raises(BadState, match=f"lists token {token}"):
            LOAD[kind](sequence_of(path_of("llama")), tmp_path / "bad")


def test_the_magic_numbers_spell_what_they_are() -> None:
    assert {kind: number.to_bytes(4, "big") for kind, number in sessions._MAGIC.items()} == {
        "session": b"ggsn",
        "sequence": b"ggsq",
    }
