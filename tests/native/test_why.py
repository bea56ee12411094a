"""`Reply.why`: the cause by name, and both sides of the place where two prompts part."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipyllama.ledger import Ledger
from ipyllama.llm import LLM
from ipyllama.options import GenerateOptions
from ipyllama.prefix import PrefixMemory
from ipyllama.why import Why

TEXT = "".join(f"{n}. The red fox met a dog near {n * 17} trees and told it of the river. " for n in range(40))


def why(llm: LLM, tokens: list[int]) -> Why:
    reply = llm.generate(Ledger().append_prompt(tokens), GenerateOptions(temperature=0, max_tokens=1)).result()
    assert reply.why is not None
    assert (reply.why.n_prompt, reply.why.kept) == (len(tokens), reply.usage.reused + reply.usage.restored)
    return reply.why


def words(llm: LLM, n: int = 400) -> list[int]:
    return llm.tokenize(TEXT)[:n]


def again(load, llm: LLM, cache: Path, **options) -> LLM:
    """The next process."""
    llm.memory.flush()
    llm.close()
    return load(llm.path, cache=cache, **options)


def test_first_use_then_continued(load) -> None:
    llm = load("llama")
    assert why(llm, words(llm, 300)).cause == "first use"
    assert why(llm, words(llm, 300)).cause == "continued"
    assert why(llm, words(llm, 400)).cause == "continued"


@pytest.mark.parametrize("restart", [False, True])
def test_changed_text_shows_both_sides(load, tmp_path: Path, restart: bool) -> None:
    llm = load("llama", cache=tmp_path)
    tokens = words(llm)
    why(llm, tokens)
    if restart:
        llm = again(load, llm, tmp_path, n_ctx=2048)
    changed = [*tokens[:300], *reversed(tokens[300:])]
    told = why(llm, changed)
    assert (told.cause, told.broke) == ("text changed", 300)
    assert told.here == tuple(changed[300:324])
    assert told.there == tuple(tokens[300:324])
    assert "from token 300 on" in str(told)


def test_evicted(load, tmp_path: Path) -> None:
    llm = load("llama", cache=tmp_path)
    tokens = words(llm)
    why(llm, tokens)
    why(llm, list(reversed(tokens)))
    llm.memory.clear()
    assert why(llm, tokens).cause == "evicted"


def test_trim_refused(load) -> None:
    llm = load("mamba", ram_limit=0)  # no checkpoint is kept
    tokens = words(llm)
    why(llm, tokens)
    told = why(llm, [*tokens[:300], *reversed(tokens[300:])])
    assert (told.cause, told.kept) == ("trim refused", 0)
    assert "checkpoints" in told.detail


def test_damaged_entry(load, tmp_path: Path) -> None:
    llm = load("llama", cache=tmp_path)
    tokens = words(llm)
    why(llm, tokens)
    llm = again(load, llm, tmp_path, n_ctx=2048)
    for path in tmp_path.rglob("*.kv"):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    told = why(llm, tokens)
    assert told.cause == "damaged entry"
    assert "its state is damaged" in told.detail
    assert why(llm, list(reversed(tokens))).cause == "first use", "what is known is not told again"


def test_different_settings_and_different_model(load, tiny, tmp_path: Path) -> None:
    llm = load("llama", cache=tmp_path)
    tokens = words(llm)
    why(llm, tokens)
    llm = again(load, llm, tmp_path, kv_type="f32")
    told = why(llm, tokens)
    assert (told.cause, told.detail) == ("different settings", "kv_type was f16")
    llm = again(load, llm, tmp_path)
    other = load("gemma3", cache=tmp_path)
    told = why(other, tokens)
    assert told.cause == "different model"
    assert "tiny-gemma3" in told.detail


def test_other_threads_are_other_settings(load, tmp_path: Path) -> None:
    llm = load("llama", cache=tmp_path, n_threads=1)
    tokens = words(llm)
    why(llm, tokens)
    llm = again(load, llm, tmp_path, n_threads=2)
    told = why(llm, tokens)
    assert (told.cause, told.kept) == ("different settings", 0)
    assert "number of threads" in told.detail


def test_what_another_process_used_is_known_by_name(load, tmp_path: Path) -> None:
    llm = load("llama", cache=PrefixMemory(tmp_path))
    tokens = words(llm)
    why(llm, tokens)
    llm.memory.flush()
    llm.close()
    llm = load(llm.path, cache=PrefixMemory(tmp_path), kv_type="f32")
    told = why(llm, tokens)
    assert (told.cause, told.detail) == ("different settings", "kv_type was f16")
    llm.memory.flush()
    for note in (tmp_path / "notes").iterdir():
        note.write_text('{"fingerprint": "?", "cut": 1}')
    other = load("gemma3", cache=PrefixMemory(tmp_path))
    assert why(other, tokens).cause == "first use", "a note that means nothing is no note"


def test_cache_off(load, tmp_path: Path) -> None:
    llm = load("llama", cache=tmp_path)
    llm.memory.paused = True
    tokens = words(llm)
    assert why(llm, tokens).cause == "cache off"
    llm.memory.flush()
    assert llm.memory.stats().disk_blocks == 0


def test_another_number_of_threads_is_another_setting(load, tmp_path: Path) -> None:
    llm = load("llama", cache=tmp_path, n_threads=2)
    tokens = words(llm)
    why(llm, tokens)
    llm = again(load, llm, tmp_path, n_threads=1)
    told = why(llm, tokens)
    assert (told.cause, told.broke) == ("different settings", None)
    assert "another number of threads" in told.detail
