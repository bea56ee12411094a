"""Model: loading with progress and cancel, facts against the gguf package, the vocabulary."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import gguf
import pytest
from native.core import SANITIZED, make_context, run_apart
from tiny import ARCHS

from ipyllama import _core
from ipyllama.errors import Aborted, BadArgument, BadModelFile, ClosedError
from ipyllama.vocab import Vocabulary


def as_text(value: object) -> str:
    """A scalar as upstream writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.6f}" if isinstance(value, float) else str(value)


@pytest.mark.parametrize("arch", ["smollm2", *ARCHS])
def test_facts_are_those_of_the_gguf_package(tiny, smollm2: Path, arch: str) -> None:
    path = smollm2 if arch == "smollm2" else tiny(arch)
    reader = gguf.GGUFReader(path)
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    scalars = {name: field for name, field in fields.items() if field.types[0] != gguf.GGUFValueType.ARRAY}
    with _core.Model.load(str(path)) as model:
        found = model.metadata()
        assert set(scalars) <= set(found) <= set(fields)
        for name, field in scalars.items():
            if field.types[0] == gguf.GGUFValueType.FLOAT32:
                assert float(found[name]) == pytest.approx(field.contents(), abs=1e-6)
            else:
                assert found[name] == as_text(field.contents())
        architecture = fields["general.architecture"].contents()
        assert model.n_vocab == len(fields["tokenizer.ggml.tokens"].contents())
        assert model.n_embd == fields[f"{architecture}.embedding_length"].contents()
        assert model.n_layer == fields[f"{architecture}.block_count"].contents()
        assert model.n_ctx_train == fields[f"{architecture}.context_length"].contents()
        assert model.n_params == sum(int(tensor.n_elements) for tensor in reader.tensors)
        assert model.size == sum(int(tensor.n_bytes) for tensor in reader.tensors)
        template = fields.get("tokenizer.chat_template")
        assert model.chat_template() == (template.contents() if template else None)
        assert model.chat_template("no such template") is None


def test_kinds_of_architecture(tiny) -> None:
    def facts(arch: str) -> tuple[bool, bool, int]:
        with _core.Model.load(str(tiny(arch))) as model:
            return model.is_recurrent, model.is_hybrid, model.n_swa

    assert facts("llama") == (False, False, 0)
    assert facts("gemma3") == (False, False, 32)
    assert facts("mamba") == (True, False, 0)
    assert facts("lfm2") == facts("jamba") == (False, True, 0)


def test_progress_ends_at_one_and_cancel_is_aborted(smollm2: Path) -> None:
    watch = _core.LoadProgress()
    assert watch.fraction == 0.0
    _core.Model.load(str(smollm2), progress=watch).close()
    assert watch.fraction == 1.0
    watch = _core.LoadProgress()
    watch.cancel()
    with pytest.raises(Aborted, match="cancelled"):
        _core.Model.load(str(smollm2), progress=watch)


def test_a_load_is_cancelled_from_another_thread(smollm2: Path) -> None:
    """Whenever the cancel falls: the load is aborted, or it was over before."""
    for wait in (0.0, 0.001, 0.01, 0.05):
        watch = _core.LoadProgress()
        timer = threading.Timer(wait, watch.cancel)
        timer.start()
        with contextlib.suppress(Aborted):
            _core.Model.load(str(smollm2), use_mmap=False, progress=watch).close()
        timer.join()


def test_weights_read_into_memory_give_the_same_answer(tiny) -> None:
    logits = []
    for use_mmap in (True, False):
        model = _core.Model.load(str(tiny("llama")), use_mmap=use_mmap, check_tensors=True)
        sequence = _core.Sequence(make_context(model))
        sequence.decode([1, 300, 301])
        logits.append(sequence.logits().tolist())
    assert logits[0] == logits[1]


def test_a_vocabulary_alone_tokenises_and_cannot_generate(smollm2: Path) -> None:
    model = _core.Model.load(str(smollm2), vocab_only=True)
    assert model.detokenize(model.tokenize("Hello world")) == b"Hello world"
    with pytest.raises(BadArgument, match="cannot generate"):
        _core.Sequence(make_context(model))


def test_an_encoder_cannot_generate(tiny) -> None:
    model = _core.Model.load(str(tiny("bert")))
    with pytest.raises(BadArgument, match="cannot generate"):
        _core.Sequence(make_context(model))


TEXTS = [
    "Hello, world!",
    "naïve café — “quotes” …",
    "日本語 한국어 עברית العربية",
    "👩🏽‍🚀🏳️‍🌈",
    "a\tb\r\n  c\x00d",
    "if (x) {\n\ty--;\n}",
    "",
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("arch", ["smollm2", "llama"])
def test_text_comes_back_from_its_tokens(tiny, smollm2: Path, arch: str, text: str) -> None:
    with _core.Model.load(str(smollm2 if arch == "smollm2" else tiny(arch)), vocab_only=True) as model:
        tokens = model.tokenize(text, add_special=False)
        assert model.detokenize(tokens) == b"".join(map(model.piece, tokens)) == text.encode()
        assert Vocabulary(model).detokenize(tokens) == text


def test_special_tokens(smollm2: Path) -> None:
    model = _core.Model.load(str(smollm2), vocab_only=True)
    text = "<|im_start|>user\nHi<|im_end|>"
    read, plain = model.tokenize(text, parse_special=True), model.tokenize(text)
    assert model.piece(read[0], special=True) == b"<|im_start|>"
    assert model.piece(read[0]) == b""
    assert [token for token in read if model.is_control(token)] == [read[0], read[-1]]
    assert not any(map(model.is_control, plain))
    assert model.is_eog(read[-1])
    assert model.eos == read[-1]
    assert model.detokenize(read, special=True) == model.detokenize(plain) == text.encode()
    assert model.detokenize(read) == b"user\nHi"


def test_bos_comes_once_however_it_is_asked_for(tiny) -> None:
    with _core.Model.load(str(tiny("llama")), vocab_only=True) as model:
        vocab = Vocabulary(model)
        assert (model.add_bos, model.bos) == (True, 1)
        assert vocab.tokenize("a")[0] == 1
        assert vocab.tokenize("<s>a", parse_special=True) == vocab.tokenize("a")
        assert vocab.tokenize("") == [1]
        assert 1 not in vocab.tokenize("<s>a", add_special=False)


def test_every_token_has_bytes(smollm2: Path) -> None:
    with _core.Model.load(str(smollm2), vocab_only=True) as model:
        pieces = [model.piece(token, special=True) for token in range(model.n_vocab)]
        assert sum(piece == b"" for piece in pieces) == 0
        for token in (-1, model.n_vocab, 2**31 - 1, -(2**31)):
            for ask in (model.piece, model.is_eog, model.is_control, lambda t: model.detokenize([t])):
                with pytest.raises(BadArgument, match="token"):
                    ask(token)


@pytest.mark.skipif(SANITIZED, reason="AddressSanitizer makes each frame of std::regex several times larger")
def test_long_runs_of_one_kind_do_not_exhaust_the_stack(smollm2: Path, tmp_path: Path) -> None:
    """Vocabularies whose words are cut by std::regex: it recurses once per character."""
    other = tmp_path / "falcon.gguf"
    data = smollm2.read_bytes()[:8_000_000]  # header and vocabulary
    key = data.index(b"tokenizer.ggml.pre")
    other.write_bytes(data[:key] + data[key:].replace(b"smollm", b"falcon", 1))
    with other.open("r+b") as file:
        file.truncate(smollm2.stat().st_size)
    printed = run_apart(
        """
        import sys
        from ipyllama import _core
        model = _core.Model.load(sys.argv[1], vocab_only=True)
        print(model.metadata()["tokenizer.ggml.pre"], len(model.tokenize("!" * 400_000, add_special=False)))
        """,
        other,
    )
    assert printed.split() == ["falcon", "100000"]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for path in (str(tmp_path / "missing.gguf"), str(tmp_path), "", os.devnull):
        with pytest.raises(BadModelFile, match="cannot load"):
            _core.Model.load(path)
    with pytest.raises(BadArgument, match="NUL"):
        _core.Model.load("model.gguf\0")


def test_two_models_at_once_are_independent(tiny) -> None:
    one, two = _core.Model.load(str(tiny("llama"))), _core.Model.load(str(tiny("mamba")))
    sequences = [_core.Sequence(make_context(model)) for model in (one, two)]
    one.close()
    with pytest.raises(ClosedError):
        one.tokenize("a")
    for sequence in sequences:  # a context keeps the weights that it needs
        sequence.decode([1, 300, 301])
        assert sequence.has_logits
    assert len(two.tokenize("a")) == 2
