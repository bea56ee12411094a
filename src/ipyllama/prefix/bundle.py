"""Bundles: a set of prefixes as one file, for a class or another machine.

A ZIP file, nothing in it compressed: `index.json`, then the blocks as a store holds them, each after the block that it
stands on. ZIP, because one block can be read without the others and any tool can look inside; not compressed, because
state hardly shrinks, and so nothing swells when it is read. Nothing is ever extracted: a name is only compared.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import struct
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import IO, Any, Final

from ipyllama.errors import BadBundle, BadState, StoreError
from ipyllama.ledger import Ledger, as_ledger
from ipyllama.models import Progress
from ipyllama.prefix.memory import PrefixMemory
from ipyllama.prefix.records import Binding
from ipyllama.prefix.store.block import Block, encode, read_block
from ipyllama.prefix.store.blocks import block_name

VERSION: Final = 1
Prompts = Iterable[Ledger | Sequence[int]]
_INDEX: Final = "index.json"
_MAX_INDEX: Final = 64 << 10
_MAX_READ: Final = 64 << 20
"""Bytes that the list of what is inside may have: some 400,000 blocks."""
_BROKEN: Final = (
    zipfile.BadZipFile,
    NotImplementedError,
    RuntimeError,
    ValueError,
    EOFError,
    OverflowError,
    MemoryError,
    struct.error,
)
"""What zipfile raises for files that are none, or no good."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What a bundle holds."""

    blocks: int
    nbytes: int
    """of the file"""


@dataclass(frozen=True, slots=True)
class Imported:
    """What became of the blocks of a bundle."""

    stored: int
    known: int
    """that were there already"""
    refused: Mapping[str, str]
    """the name of each that was not taken, and why"""


def export_bundle(
    memory: PrefixMemory, path: str | os.PathLike[str], prompts: Prompts | None, progress: Progress | None
) -> Exported:
    """Write what `memory` holds of its model, or only the beginnings of `prompts`, with all that they stand on.

    The file appears when it is complete. `progress` counts blocks. Raises `StoreError` where it cannot be written.
    """
    target = Path(path)
    if target.exists() and not target.is_file():
        raise StoreError(f"{target} is not written: it is there, and no file")
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    wanted = _all(memory) if prompts is None else _beginnings(memory, prompts)
    try:
        with temporary.open("xb") as file:
            n = _write(memory, file, wanted, progress)
            os.fsync(file.fileno())
        size = temporary.stat().st_size
        os.replace(temporary, target)
    except OSError as error:
        raise StoreError(f"{target} is not written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    return Exported(n, size)


def import_bundle(memory: PrefixMemory, path: str | os.PathLike[str], progress: Progress | None) -> Imported:
    """Take over the good blocks of a bundle; see `PrefixMemory.import_`."""
    try:
        with Path(path).open("rb", buffering=0) as raw, zipfile.ZipFile(_Capped(raw.fileno(), closefd=False)) as bundle:
            root = _root(_index(bundle), memory.binding)
            blocks = [info for info in bundle.infolist() if info.filename != _INDEX]
            _require_room(memory, sum(info.file_size for info in blocks))
            return _take(memory, bundle, blocks, root, progress)
    except OSError as error:
        raise BadBundle(f"{path} cannot be read: {error.strerror or error}") from error
    except _BROKEN as error:
        raise BadBundle(f"{path} is no bundle, or damaged: nothing more is taken from it") from error


# -- writing ----------------------------------------------------------------------------------------------------


def _all(memory: PrefixMemory) -> list[tuple[bytes, bytes]]:
    """(parent, key) of every block on disk or in RAM that leads back to the model's root, parents first."""
    memory.flush()
    following = defaultdict(list)
    for entry in memory.store.entries() if memory.store else ():
        following[entry.parent].append(entry.key)
    for block in memory.ram.blocks():
        following[block.link.parent.hex()[:16]].append(block.link.key)
    found, seen = [(b"", memory.binding.root)], set()
    for _, parent in found:
        for key in following[parent.hex()[:16]]:
            if key not in seen:
                seen.add(key)
                found.append((parent, key))
    return found[1:]


def _beginnings(memory: PrefixMemory, prompts: Prompts) -> list[tuple[bytes, bytes]]:
    """(parent, key) of the blocks at hand for these prompts, parents first."""
    wanted: dict[tuple[bytes, bytes], None] = {}
    for prompt in prompts:
        wanted |= dict.fromkeys((link.parent, link.key) for link in memory.links(as_ledger(prompt)))
    return list(wanted)


def _write(
    memory: PrefixMemory, file: IO[bytes], wanted: Sequence[tuple[bytes, bytes]], progress: Progress | None
) -> int:
    binding = memory.binding
    written = {binding.root}
    with zipfile.ZipFile(file, "w") as bundle:
        _add(bundle, _INDEX, (memoryview(json.dumps(_description(binding)).encode()),))
        for done, (parent, key) in enumerate(wanted):
            _tell(progress, done, len(wanted), "exported")
            block = _stored(memory, parent, key) if parent in written else None
            if block is not None:
                _add(bundle, block_name(parent, key), encode(block))
                written.add(key)
    _tell(progress, len(wanted), len(wanted), "exported")
    return len(written) - 1


def _add(bundle: zipfile.ZipFile, name: str, parts: Sequence[memoryview]) -> None:
    with bundle.open(zipfile.ZipInfo(name), "w", force_zip64=True) as file:  # no date: the same blocks, the same file
        for part in parts:
            file.write(part)


def _stored(memory: PrefixMemory, parent: bytes, key: bytes) -> Block | None:
    """A block that is here, None if there is none or it is damaged."""
    if block := memory.ram.get(key):
        return block
    try:
        return memory.store.read(parent, key) if memory.store else None
    except BadState:
        return None


def _description(binding: Binding) -> dict[str, Any]:
    return {
        "format": "ipyllama bundle",
        "version": VERSION,
        "fingerprint": binding.fingerprint.hex(),
        "model": binding.model,
        "weights": binding.weights,
        "settings": dict(binding.settings),
    }


# -- reading ----------------------------------------------------------------------------------------------------


class _Capped(FileIO):
    """zipfile believes the lengths that a file gives and reads so much at once; this refuses."""

    def read(self, size: int | None = -1, /) -> bytes:
        wanted = os.fstat(self.fileno()).st_size - self.tell() if size is None or size < 0 else size
        if wanted > _MAX_READ:
            raise zipfile.BadZipFile("a length that no bundle has")
        return super().read(size) or b""


def _index(bundle: zipfile.ZipFile) -> dict[str, Any]:
    try:
        info = bundle.getinfo(_INDEX)
    except KeyError:
        raise BadBundle("this is no bundle: it has no index") from None
    if info.file_size > _MAX_INDEX or info.compress_type != zipfile.ZIP_STORED:
        raise BadBundle("this is no bundle: its index is not what one looks like")
    with bundle.open(info) as file:
        found = json.loads(file.read(_MAX_INDEX))
    if not isinstance(found, dict) or found.get("format") != "ipyllama bundle":
        raise BadBundle("this is no bundle: its index says so")
    if found.get("version") != VERSION:
        raise BadBundle(f"the bundle has format version {found.get('version')}, and this ipyllama reads {VERSION}")
    return found


def _root(index: dict[str, Any], mine: Binding) -> bytes:
    """The key that the first blocks of the bundle must follow. Raises `BadBundle` where the model is another."""
    if index.get("fingerprint") == mine.fingerprint.hex():
        return mine.root
    if index.get("weights") != mine.weights:
        raise BadBundle(f"the bundle is for another model, {str(index.get('model'))[:80]!r}: this is {mine.model!r}")
    raise BadBundle(
        f"the bundle is for other settings of this model: {str(index.get('settings'))[:200]}, "
        f"and it is loaded with {dict(mine.settings)}"
    )


def _take(
    memory: PrefixMemory,
    bundle: zipfile.ZipFile,
    infos: Sequence[zipfile.ZipInfo],
    root: bytes,
    progress: Progress | None,
) -> Imported:
    ends, stored, known, refused = {root: 0}, 0, 0, {}
    for done, info in enumerate(infos):
        _tell(progress, done, len(infos), "imported")
        try:
            block = _checked(bundle, info)
            if ends.get(block.link.parent) != block.link.start:
                raise BadState("what it stands on is not in the bundle")
        except (BadState, *_BROKEN) as error:
            refused[info.filename[:120]] = str(error) or "it is damaged"
            continue
        ends[block.link.key] = block.link.end
        if _keep(memory, block):
            stored += 1
        else:
            known += 1
    _tell(progress, len(infos), len(infos), "imported")
    return Imported(stored, known, refused)


def _require_room(memory: PrefixMemory, nbytes: int) -> None:
    limit = memory.writer.bytes_limit if memory.writer else memory.ram.bytes_limit
    if nbytes > limit:
        raise StoreError(f"the bundle holds {nbytes:,} bytes, and no more than {limit:,} may be kept: raise the limit")


def _keep(memory: PrefixMemory, block: Block) -> bool:
    """False if the block is here. Raises `StoreError`."""
    if memory.has_own(block.link):
        return False
    if memory.writer is None:
        known = block.link.key in memory.ram
        memory.ram.put(block)
        return not known
    return memory.writer.write(block)


def _checked(bundle: zipfile.ZipFile, info: zipfile.ZipInfo) -> Block:
    """Raises `BadState` and what zipfile raises."""
    if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size or info.flag_bits & 1:
        raise BadState("it is compressed or encrypted")
    if info.file_size > os.fstat(_descriptor(bundle)).st_size:
        raise BadState("it is larger than the bundle")
    with bundle.open(info) as file:
        block = read_block(file, info.file_size)  # type: ignore[arg-type]  # it has all that is used
    if info.filename != block_name(block.link.parent, block.link.key):
        raise BadState("its name is not that of its content")
    return block


def _descriptor(bundle: zipfile.ZipFile) -> int:
    assert bundle.fp is not None
    return bundle.fp.fileno()


def _tell(progress: Progress | None, done: int, total: int, what: str) -> None:
    if progress is not None:
        progress(done, total, f"blocks {what}")
