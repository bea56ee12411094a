"""Which weights a file holds: copies agree, anything in a header or in a sampled page differs, and it stays cheap."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest

from ipyllama.errors import BadModelFile
from ipyllama.models.fingerprint import PAGE, fingerprint
from ipyllama.models.parse import parse_gguf

LARGE = 40_000_000_000


def write(path: Path, tensors: dict[str, np.ndarray], *, name: str = "weights", split: int = 0) -> Path:
    """A model file, in parts of `split` tensors where that is not 0; the path of the (first) file."""
    writer = gguf.GGUFWriter(str(path), "llama", split_max_tensors=split)
    writer.add_name(name)
    for key, values in tensors.items():
        writer.add_tensor(key, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if path.exists() else min(path.parent.glob(f"{path.stem}-*.gguf"))


def flipped(source: Path, at: int) -> bytes:
    """The fingerprint of a copy in which one bit of the byte at that place is another."""
    copy = source.with_name(f"flipped-{at}.gguf")
    shutil.copy(source, copy)
    with copy.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    return fingerprint(copy)


@pytest.fixture
def tensors() -> dict[str, np.ndarray]:
    """Less than a page, some pages, many pages."""
    draw = np.random.default_rng(0)
    sizes = {"short": 8, "some": 3 * PAGE // 4, "many": 10 * PAGE // 4}
    return {name: draw.normal(size=n).astype(np.float32) for name, n in sizes.items()}


def test_a_copy_has_the_same_under_any_name_and_date(tmp_path: Path, tensors: dict[str, np.ndarray]) -> None:
    source, copy, link = write(tmp_path / "a.gguf", tensors), tmp_path / "b.gguf", tmp_path / "c.gguf"
    shutil.copy(source, copy)
    os.utime(copy, (1, 1))
    link.symlink_to(source)
    assert fingerprint(source) == fingerprint(copy) == fingerprint(link)


def test_a_bit_in_a_header_or_in_a_sampled_page_of_any_tensor_is_seen(
    tmp_path: Path, tensors: dict[str, np.ndarray]
) -> None:
    source = write(tmp_path / "a.gguf", tensors)
    raw, known = parse_gguf(source), fingerprint(source)
    at_name = source.read_bytes().index(b"weights")
    assert flipped(source, at_name) != known
    for tensor in raw.tensors:
        begin, n = raw.data_start + tensor.offset, tensor.n_bytes or 0
        middle = begin + max(0, n - PAGE) // 2
        for at in {begin, min(begin + PAGE, begin + n) - 1, middle, begin + n // 2, begin + max(0, n - PAGE)}:
            assert flipped(source, at) != known, (tensor.name, at - begin)
        assert flipped(source, begin + n - 1) != known
    assert len(raw.tensors) == 3


def test_what_lies_between_the_sampled_pages_is_not_read(tmp_path: Path, tensors: dict[str, np.ndarray]) -> None:
    """The price of a fingerprint of 40 GB in a second; a requantised or trained model differs everywhere."""
    source = write(tmp_path / "a.gguf", tensors)
    raw = parse_gguf(source)
    many = next(tensor for tensor in raw.tensors if tensor.name == "many")
    assert flipped(source, raw.data_start + many.offset + 2 * PAGE) == fingerprint(source)


def test_more_or_less_of_the_file_is_another(tmp_path: Path, tensors: dict[str, np.ndarray]) -> None:
    source = write(tmp_path / "a.gguf", tensors)
    known = fingerprint(source)
    longer = tmp_path / "longer.gguf"
    longer.write_bytes(source.read_bytes() + b"\0")
    assert fingerprint(longer) != known
    assert fingerprint(write(tmp_path / "b.gguf", tensors, name="weighty")) != known


def test_a_file_that_is_written_anew_is_read_anew(tmp_path: Path, tensors: dict[str, np.ndarray]) -> None:
    source = write(tmp_path / "a.gguf", tensors)
    known, other = fingerprint(source), {**tensors, "short": tensors["short"] + 1}
    assert fingerprint(write(source, other)) != known


def test_every_part_of_a_split_model_counts(tmp_path: Path, tensors: dict[str, np.ndarray]) -> None:
    first = write(tmp_path / "split.gguf", tensors, split=1)
    parts = sorted(tmp_path.glob("split-*-of-00003.gguf"))
    assert parts[0] == first
    known = fingerprint(first)
    moved = tmp_path / "moved"
    moved.mkdir()
    for part in parts:
        shutil.copy(part, moved)
    assert fingerprint(moved / first.name) == known
    last = moved / parts[2].name
    data = bytearray(last.read_bytes())
    data[-1] ^= 1
    last.write_bytes(data)
    assert fingerprint(moved / first.name) != known
    last.unlink()
    with pytest.raises(BadModelFile, match="1 of 3 parts"):
        fingerprint(moved / first.name)


def test_a_large_model_costs_what_its_header_and_samples_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """40 GB, in a sparse file: counted in bytes read, because a time would say what else this machine does."""
    n_tensors, rows = 1000, LARGE // 1000 // 2 // 4096
    writer = gguf.GGUFWriter(str(tmp_path / "large.gguf"), "llama")
    for n in range(n_tensors):
        writer.add_tensor_info(f"blk.{n}.weight", (rows, 4096), np.dtype(np.float16), 2 * rows * 4096)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    path, read, pread = tmp_path / "large.gguf", list[int](), os.pread
    os.truncate(path, path.stat().st_size + LARGE)

    def counted(descriptor: int, n: int, offset: int) -> bytes:
        read.append(n)
        return pread(descriptor, n, offset)

    monkeypatch.setattr(os, "pread", counted)
    known = fingerprint(path)
    raw = parse_gguf(path)
    assert sum(read) <= raw.data_start + 3 * PAGE * n_tensors
    n_reads = len(read)
    assert fingerprint(path) == known
    assert len(read) == n_reads
    with path.open("r+b") as file:
        file.seek(raw.data_start + raw.tensors[700].offset)
        file.write(b"x")
    assert fingerprint(path) != known
