"""Which weights a file holds: a digest of its header, its tensor table, and pages sampled from every tensor."""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from pathlib import Path
from typing import Final

from ipyllama.models.header import parse_cached, split_parts

PAGE: Final = 4096
"""Bytes read at the start, in the middle and at the end of each tensor."""


def fingerprint(path: Path) -> bytes:
    """SHA-256 over all files of the model. Two quantisations of the same weights differ, copies do not.

    It reads the header and up to 12 kB of each tensor, however large the file is: what differs only between the
    sampled pages is taken for the same. Within a process a file is known again by path, inode, size and modification
    time. One that was split into other parts counts as another. Raises `BadModelFile`, `OSError`.
    """
    digest = hashlib.sha256()
    for part in split_parts(path):
        info = os.stat(part)
        digest.update(_of_file(part.resolve(), info.st_ino, info.st_size, info.st_mtime_ns))
    return digest.digest()


@lru_cache(maxsize=64)
def _of_file(path: Path, _inode: int, size: int, _changed: int) -> bytes:
    raw = parse_cached(path)
    digest = hashlib.sha256(size.to_bytes(8, "little"))
    with open(path, "rb", buffering=0) as file:
        for start in range(0, raw.data_start, 1 << 20):
            digest.update(os.pread(file.fileno(), min(1 << 20, raw.data_start - start), start))
        for tensor in raw.tensors:
            begin, n = raw.data_start + tensor.offset, tensor.n_bytes or PAGE
            for at in sorted({begin, begin + max(0, n - PAGE) // 2, begin + max(0, n - PAGE)}):
                digest.update(os.pread(file.fileno(), PAGE, at))
    return digest.digest()
