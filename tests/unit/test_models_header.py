"""The header reader, against the gguf package as oracle, and against damage."""

import os
import random
import struct
import time
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny import ARCHS
from tiny.damage import with_value

from ipyllama.errors import BadModelFile
from ipyllama.models import kv_bytes, read_header
from ipyllama.models.parse import ArraySummary, parse_gguf
from ipyllama.models.quants import FILE_TYPES, TENSOR_TYPES


def check_against_oracle(path: Path) -> None:
    raw, oracle = parse_gguf(path), gguf.GGUFReader(path)
    fields = {name: f for name, f in oracle.fields.items() if not name.startswith("GGUF.")}
    assert list(raw.metadata) == list(fields)
    for name, field in fields.items():
        expected, value = field.contents(), raw.metadata[name]
        if isinstance(value, ArraySummary):
            assert value.length == len(expected)
        else:
            assert value == (tuple(expected) if isinstance(expected, list) else expected)
    assert raw.data_start == oracle.data_offset
    rows = [(t.name, list(t.shape), t.type_id, t.n_elements, t.n_bytes, raw.data_start + t.offset) for t in raw.tensors]
    assert rows == [
        (t.name, t.shape.tolist(), t.tensor_type.value, t.n_elements, t.n_bytes, t.data_offset) for t in oracle.tensors
    ]


@pytest.mark.parametrize("arch", ARCHS)
def test_parse_agrees_with_the_gguf_package(tiny, arch):
    check_against_oracle(tiny(arch))


def test_parse_agrees_on_the_real_model(smollm2):
    check_against_oracle(smollm2)


def test_tables_agree_with_the_gguf_package():
    for kind, (block, size) in gguf.GGML_QUANT_SIZES.items():
        assert TENSOR_TYPES[kind.value] == (kind.name, block, size)
    for file_type in gguf.LlamaFileType:
        if file_type.name != "GUESSED":
            assert FILE_TYPES[file_type.value] == file_type.name.replace("MOSTLY_", "").replace("ALL_", "")


def test_summary_of_the_real_model(smollm2):
    header = read_header(smollm2)
    assert (header.architecture, header.quantisation, header.license) == ("llama", "Q4_1", "apache-2.0")
    assert (header.n_ctx_train, header.n_layer, header.n_head_kv, header.n_vocab) == (8192, 30, 3, 49152)
    assert header.n_params == 134_515_008
    assert kv_bytes(header, 1024) == 1024 * 23_040
    assert header.file_size == header.expected_size == smollm2.stat().st_size
    assert "<|im_start|>" in header.chat_template


@pytest.mark.parametrize(
    ("arch", "heads"), [("llama", 2), ("jamba", (0, 2, 0, 2)), ("mamba", 0), ("bert", 4), ("gemma3", 2)]
)
def test_heads_follow_the_architecture(tiny, arch, heads):
    assert read_header(tiny(arch)).n_head_kv == heads


def test_numbers_that_no_model_has_are_only_numbers(tiny, tmp_path):
    """A hostile count of layers costs neither time nor memory."""
    path = with_value(tiny("llama"), tmp_path / "x.gguf", "llama.block_count", "<I", 2**32 - 1)
    header = read_header(path)
    assert header.n_layer == 2**32 - 1
    assert kv_bytes(header, 256) == (2**32 - 1) * 256 * 2 * 32 * 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"GG", "starts with b'GG'"),
        (b"<!DOCTYPE html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1", "git lfs pull"),
        (b"PK\x03\x04" + bytes(100), "ZIP"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(100), "version 1"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(100), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "1,152,921,504,606,846,976 tensors"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 62), "damaged: a length of"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1), "truncated"),
    ],
)
def test_what_is_not_a_gguf_is_named(tmp_path, content, message):
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(BadModelFile) as caught:
        read_header(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_folders_and_pipes_are_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe.gguf")
    for path in (tmp_path, tmp_path / "pipe.gguf"):
        with pytest.raises(BadModelFile, match="not a regular file"):
            read_header(path)
    with pytest.raises(BadModelFile, match="cannot be read"):
        read_header(tmp_path / "nothing.gguf")


def test_every_truncation_is_noticed(tiny, tmp_path):
    content = tiny("llama").read_bytes()
    path = tmp_path / "cut.gguf"
    start = parse_gguf(tiny("llama")).data_start
    cuts = [*range(0, start, 97), *range(start, len(content), 20_011), len(content) - 1]
    for cut in cuts:
        path.write_bytes(content[:cut])
        with pytest.raises(BadModelFile, match=r"truncated|empty|starts with"):
            read_header(path)
    with pytest.raises(BadModelFile, match=f"needs {len(content):,} bytes, the file has {len(content) - 1:,}"):
        read_header(path)


@pytest.mark.parametrize("arch", ["llama", "jamba", "bert"])
def test_byte_flips_never_crash_or_hang(tiny, tmp_path, arch):
    content = bytearray(tiny(arch).read_bytes())
    start = parse_gguf(tiny(arch)).data_start
    random_ = random.Random(arch)
    path = tmp_path / "flipped.gguf"
    outcomes = set()
    began = time.monotonic()
    for _ in range(400):
        damaged = bytearray(content)
        for _ in range(random_.choice([1, 1, 4])):
            damaged[random_.randrange(start)] = random_.randrange(256)
        path.write_bytes(damaged)
        try:
            read_header(path)
            outcomes.add("read")
        except BadModelFile:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}
    assert time.monotonic() - began < 30


@given(
    st.binary(max_size=400), st.sampled_from([b"", b"GGUF\3\0\0\0", b"GGUF\3\0\0\0\2" + bytes(7) + b"\3" + bytes(7)])
)
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=2000)
def test_any_bytes_are_read_or_refused(tmp_path, tail, front):
    path = tmp_path / "any.gguf"
    path.write_bytes(front + tail)
    try:
        header = read_header(path)
    except BadModelFile:
        return
    assert header.file_size == len(front + tail)


@pytest.mark.parametrize("alignment", [0, 3, 48])
def test_an_impossible_alignment_is_refused(tmp_path, alignment):
    path = tmp_path / "x.gguf"
    entry = string(b"general.alignment") + struct.pack("<II", 4, alignment)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + entry)
    with pytest.raises(BadModelFile, match="not a power of two"):
        read_header(path)


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(
    "body",
    [
        string(b"a") + struct.pack("<IIQ", 9, 8, 1 << 40),  # a trillion strings
        string(b"a") + struct.pack("<IIQ", 9, 10, 1 << 50),  # numbers past the end
        string(b"a") + struct.pack("<IIQ", 9, 9, 2),  # arrays of arrays
        string(b"a") + struct.pack("<IIQ", 9, 8, 4_000_000),  # zeros: strings without a byte, then an empty key twice
        string(b"a") + struct.pack("<IIQ", 9, 8, 200_000_000),  # the same, for a minute
    ],
)
def test_hostile_arrays_take_little_time(tmp_path, body):
    path = tmp_path / "hostile.gguf"
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 3) + body)
        file.truncate(1 << 31)  # sparse: two gigabytes of zeros
    began = time.monotonic()
    with pytest.raises(BadModelFile):
        read_header(path)
    assert time.monotonic() - began < 15


def test_hostile_arrays_take_little_memory(tmp_path):
    path = tmp_path / "hostile.gguf"
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 4000))
        for i in range(4000):
            file.write(string(b"%d" % i) + struct.pack("<IIQ", 9, 0, 4096) + bytes(4096))
    tracemalloc.start()
    with pytest.raises(BadModelFile):  # more than may be held in all
        read_header(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 << 20


def write_split(folder: Path) -> list[Path]:
    writer = gguf.GGUFWriter(folder / "big.gguf", "llama", split_max_tensors=2)
    writer.add_block_count(1)
    for i in range(5):
        writer.add_tensor(f"t{i}", np.zeros((4, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.glob("*.gguf"))


def test_a_split_model_is_one_model(tmp_path):
    parts = write_split(tmp_path)
    assert len(parts) == 3
    for part in parts:
        header = read_header(part)
        assert header.path == parts[0]
        assert header.paths == tuple(parts)
        assert header.n_params == 5 * 32
        assert header.file_size == sum(p.stat().st_size for p in parts)
    parts[1].unlink()
    with pytest.raises(BadModelFile, match=r"1 of 3 parts of big are missing, first big-00002-of-00003\.gguf"):
        read_header(parts[0])


def test_a_changed_file_is_read_again(tiny, tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(tiny("llama").read_bytes())
    assert read_header(path).architecture == "llama"
    path.write_bytes(tiny("llama").read_bytes().replace(b"tiny-random-llama", b"tiny-changed-lama"))
    assert read_header(path).name == "tiny-changed-lama"


def test_kinds_other_than_models_are_told_apart(tmp_path):
    for kind, arch in (("adapter", "llama"), ("mmproj", "clip")):
        path = tmp_path / f"{kind}.gguf"
        writer = gguf.GGUFWriter(path, arch)
        writer.add_type(kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        assert read_header(path).kind == kind
