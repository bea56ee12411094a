"""Finding models where other programs keep them, in folders as those programs write them."""

import functools
import json
import time

import pytest
from stores import hub_file, ollama_model, put

from ipyllama.models import list_models, places
from ipyllama.models.places import VARIABLES, discover, forget
from ipyllama.models.walk import Budget, ggufs


def names() -> dict[str, str]:
    forget()
    return {found.name: found.source for found in discover()}


def test_nothing_is_found_in_an_empty_home(home):
    assert names() == {}
    assert list(home.iterdir()) == []


def test_every_place_is_looked_at(home):
    put(home / "here.gguf")
    put(home / "models" / "deep" / "er" / "below.gguf")
    hub_file(home / ".cache" / "huggingface" / "hub", "org/repo-GGUF", "sub/hub.gguf")
    ollama_model(home / ".ollama" / "models", "registry.ollama.ai/library/llama3.2/1b")
    put(home / ".lmstudio" / "models" / "maker" / "repo" / "studio.gguf")
    put(home / ".cache" / "llama.cpp" / "maker_repo_cpp.gguf")
    put(home / ".cache" / "ipyllama" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf")
    assert names() == {
        "smollm2": "ipyllama",
        "here": "folder",
        "below": "folder",
        "hub": "Hugging Face",
        "llama3.2:1b": "Ollama",
        "studio": "LM Studio",
        "maker_repo_cpp": "llama.cpp",
    }


def test_environment_variables_move_the_places(home, tmp_path, monkeypatch):
    hub_file(tmp_path / "hf" / "hub", "o/r", "a.gguf")
    ollama_model(tmp_path / "ollama", "registry.ollama.ai/library/qwen/latest")
    put(tmp_path / "cpp" / "b.gguf")
    put(tmp_path / "own" / "models" / "c.gguf")
    put(tmp_path / "studio" / "models" / "m" / "r" / "d.gguf")
    (home / ".lmstudio-home-pointer").write_text(str(tmp_path / "studio"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "cpp"))
    monkeypatch.setenv("IPYLLAMA_CACHE_DIR", str(tmp_path / "own"))
    assert set(names()) == {"a", "qwen:latest", "b", "c", "d"}
    hub_file(tmp_path / "other", "o/r", "e.gguf")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "other"))
    assert set(names()) == {"e", "qwen:latest", "b", "c", "d"}
    assert set(VARIABLES) >= {"HF_HOME", "HF_HUB_CACHE", "OLLAMA_MODELS", "LLAMA_CACHE", "IPYLLAMA_CACHE_DIR"}


def test_ollama_names_are_those_that_ollama_prints(home):
    store = home / ".ollama" / "models"
    for i, path in enumerate(
        ("registry.ollama.ai/library/a/latest", "registry.ollama.ai/me/b/q8", "hf.co/org/repo-GGUF/Q4_K_M")
    ):
        ollama_model(store, path, str(i) * 64)
    assert set(names()) == {"a:latest", "me/b:q8", "hf.co/org/repo-GGUF:Q4_K_M"}


def test_damaged_stores_are_stepped_over(home):
    store = home / ".ollama" / "models"
    manifests = store / "manifests" / "registry.ollama.ai" / "library"
    contents = (
        b"",
        b"{",
        b"[" * 100_000,
        b"null",
        b'{"layers": 3}',
        b'{"layers": [{}]}',
        b'{"layers": [7]}',
        b"\xff\xfe",
    )
    for i, content in enumerate(contents):
        put(manifests / f"m{i}" / "latest", content)
    evil = {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:/../../outside"}
    put(manifests / "evil" / "latest", json.dumps({"layers": [evil]}).encode())
    put(store / "blobs" / "sha256-" / "x")
    put(store / "outside")
    put(store / "manifests" / "stray", b"{}")
    ollama_model(store, "registry.ollama.ai/library/gone/latest", "d" * 64).unlink()
    ollama_model(store, "registry.ollama.ai/library/good/latest", "e" * 64)
    hub_file(home / ".cache" / "huggingface" / "hub", "o/r", "broken.gguf").resolve().unlink()
    (home / ".lmstudio-home-pointer").write_bytes(b"\0nonsense\xff")
    assert names() == {"good:latest": "Ollama"}


def test_loops_of_links_and_unreadable_folders_end(home):
    put(home / "models" / "a.gguf")
    (home / "models" / "loop").symlink_to(home / "models")
    (home / "models" / "self.gguf").symlink_to("self.gguf")
    locked = home / "models" / "locked"
    put(locked / "b.gguf")
    locked.chmod(0)
    try:
        assert set(names()) - {"b"} == {"a"}  # root may read everything
        seen = list(ggufs(home / "models", 9, Budget(time.monotonic() + 60)))
        assert [path.name for path in seen].count("a.gguf") == 1
    finally:
        locked.chmod(0o700)


def test_a_huge_folder_does_not_hide_the_other_places(home, monkeypatch):
    monkeypatch.setattr(places, "Budget", functools.partial(Budget, entries=50))
    put(home / ".cache" / "llama.cpp" / "late.gguf")
    for i in range(100):
        put(home / "models" / f"{i}.gguf")
    found = names()
    assert found["late"] == "llama.cpp"
    assert len(found) == 51


def test_a_search_ends_when_its_time_is_over(home):
    put(home / "m.gguf")
    assert list(ggufs(home, 3, Budget(time.monotonic() + 60))) == [home / "m.gguf"]
    assert list(ggufs(home, 3, Budget(time.monotonic()))) == []


def test_one_file_is_listed_once(home):
    file = put(home / "m.gguf")
    (home / "models").mkdir()
    (home / "models" / "again.gguf").symlink_to(file)
    hub = home / ".cache" / "huggingface" / "hub"
    hub_file(hub, "o/r", "x.gguf", "0ld")
    newest = hub_file(hub, "o/r", "x.gguf", "c0ffee")
    assert set(names()) == {"m", "x"}
    assert next(found.path for found in discover() if found.name == "x") == newest


def test_equal_file_names_get_distinct_names(home):
    hub = home / ".cache" / "huggingface" / "hub"
    hub_file(hub, "a/r", "model.gguf")
    hub_file(hub, "b/r", "model.gguf", content=b"GGUF2")
    assert set(names()) == {"model", "b/r/model.gguf"}


def test_projectors_later_parts_and_hidden_files_are_left_out(home):
    for name in ("mmproj-x-f16.gguf", "big-00002-of-00002.gguf", "._x.gguf", "x.gguf.part", "x.bin"):
        put(home / name)
    put(home / "big-00001-of-00002.gguf")
    assert set(names()) == {"big"}


def test_the_answer_is_remembered_for_a_moment(home):
    assert discover() == []
    put(home / "new.gguf")
    assert discover() == []
    assert set(names()) == {"new"}


def test_a_deleted_current_folder_is_no_problem(home, tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert names() == {}
    monkeypatch.chdir(home)


def test_list_models_tells_what_is_here_and_what_is_wrong(home, tiny):
    put(home / "good.gguf", tiny("llama").read_bytes())
    put(home / "cut.gguf", tiny("llama").read_bytes()[:-1000])
    put(home / "big-00001-of-00002.gguf", tiny("llama").read_bytes())
    put(home / "encoder.gguf", tiny("bert").read_bytes())
    entries = {entry.name: entry for entry in list_models()}
    assert set(entries) == {"good", "cut", "big", "encoder"}
    good = entries["good"]
    assert (good.quantisation, good.n_ctx_train, good.problem) == ("F16", 4096, "")
    assert good.size == tiny("llama").stat().st_size
    assert good.fits
    assert good.fit.n_ctx == 4096
    assert "truncated" in entries["cut"].problem
    assert entries["cut"].fit is None
    assert "1 of 2 parts" in entries["big"].problem


def test_nothing_is_written(home, tiny):
    put(home / "models" / "good.gguf", tiny("llama").read_bytes())
    before = sorted((str(p), p.stat().st_mtime_ns) for p in home.rglob("*"))
    list_models()
    assert sorted((str(p), p.stat().st_mtime_ns) for p in home.rglob("*")) == before


@pytest.mark.parametrize("count", [200])
def test_many_models_list_quickly(home, tiny, count):
    content = tiny("llama").read_bytes()
    for i in range(count):
        put(home / "models" / f"m{i}.gguf", content)
    began = time.monotonic()
    assert len(list_models()) == count
    assert time.monotonic() - began < 5
