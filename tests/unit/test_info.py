"""`ipyllama.inspect`: what is in a file, as data and as a table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

import ipyllama
from ipyllama.errors import BadModelFile, BadOption, ModelNotFound
from ipyllama.models import REGISTRY

Tiny = Callable[[str], Path]


def test_everything_of_a_real_model(smollm2: Path) -> None:
    info = ipyllama.inspect("smollm2")
    assert info.path == smollm2
    assert info.metadata["llama.rope.freq_base"] == 100_000
    assert len(info.tensors) == len(gguf.GGUFReader(smollm2).tensors)
    assert sum(tensor.n_bytes or 0 for tensor in info.tensors) == pytest.approx(smollm2.stat().st_size, rel=0.02)
    assert info.memory(4096).kv == 4096 * 23_040
    assert info.memory(4096, "q8_0").kv == 4096 * 23_040 * 34 // 64
    text = str(info)
    for expected in ("134,515,008", "8,192 tokens of context", "272 tensors", "23.6 MB as f16, 12.5 MB as q8_0"):
        assert expected in text
    assert repr(info) == "<GgufInfo smollm2: model, llama, 135M parameters, Q4_1>"
    assert "token_embd.weight          576 x 49,152  Q8_0  30.1 MB" in str(info.tensor_table)


def test_a_notebook_shows_a_table(tiny: Tiny) -> None:
    bundle = ipyllama.inspect(tiny("bert"))._repr_mimebundle_()
    assert "none: it encodes text" in bundle["text/plain"]
    assert "<table" in bundle["text/html"]


def test_what_is_no_model_has_no_memory(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "lora.gguf", "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    info = ipyllama.inspect(tmp_path / "lora.gguf")
    assert info.header.kind == "adapter"
    assert info.metadata["adapter.type"] == "lora"
    assert "memory" not in str(info)
    assert str(info.tensor_table) == "lora\nno tensors"


def test_nothing_is_fetched(home: Path) -> None:
    for name in REGISTRY:
        with pytest.raises(ModelNotFound, match=r"not on this machine yet. ipyllama.load\("):
            ipyllama.inspect(name)
    with pytest.raises(ModelNotFound):
        ipyllama.inspect("hf:owner/repo/file.gguf")


def test_by_name_in_the_current_folder(home: Path, tiny: Tiny) -> None:
    (home / "mine.gguf").write_bytes(tiny("mamba").read_bytes())
    assert ipyllama.inspect("mine").header.architecture == "mamba"
    assert ipyllama.inspect("mine.gguf").name == "mine"


def test_refusals(tiny: Tiny, tmp_path: Path) -> None:
    info = ipyllama.inspect(tiny("llama"))
    for n_ctx in (0, -1, True, 1 << 30, "many"):
        with pytest.raises(BadOption, match="n_ctx must be a whole number"):
            info.memory(n_ctx)  # type: ignore[arg-type]
    with pytest.raises(BadOption, match="kv_type must be one of"):
        info.memory(kv_type="q3")
    (tmp_path / "cut.gguf").write_bytes(tiny("llama").read_bytes()[:-1])
    with pytest.raises(BadModelFile, match="truncated"):
        ipyllama.inspect(tmp_path / "cut.gguf")
