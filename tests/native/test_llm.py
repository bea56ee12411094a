"""LLM and load: sharing, memory, options, streaming, determinism."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

import ipyllama
from ipyllama.engine import Job
from ipyllama.errors import BadArgument, BadModelFile, BadOption, ClosedError, NotEnoughMemory
from ipyllama.llm import LLM, _loaded
from ipyllama.prefix import PrefixMemory

Load = Callable[..., LLM]
MB = 1 << 20


def resident() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


# -- prompts in parts -----------------------------------------------------------------------------------------

DOCUMENT = "The river rises in the hills and runs slowly to the sea. " * 12


def test_prompts_that_begin_with_the_same_part_share_all_of_it(load: Load) -> None:
    llm, document = load("gemma3"), load("gemma3").tokenize(DOCUMENT)
    assert len(document) % 256 > 1  # the end of a piece would be shared in any case
    first = llm.complete([DOCUMENT, "Where does it rise?"], max_tokens=4)
    second = llm.complete([DOCUMENT, "How does it run?"], max_tokens=4)
    assert second.usage.reused + second.usage.restored == len(document)
    assert first.usage.computed == first.usage.prompt
    assert second.usage.computed == second.usage.prompt - len(document)


def test_parts_are_the_tokens_of_the_text(load: Load) -> None:
    """Each by itself, with no space or BOS in between."""
    llm = load("gemma3")
    whole, parts = llm._prompt("One two\nthree"), llm._prompt(["One two\n", "three"])
    assert parts.tokens == whole.tokens
    assert parts != whole  # evaluated in other steps, it may have other bits
    assert llm._prompt(["One two\nthree"]) == whole


@pytest.mark.parametrize("prompt", [[], None, 7, b"bytes", ["a", 7], {"a": 1}, iter("ab")])
def test_a_prompt_is_a_text_or_a_list_of_texts(load: Load, prompt: object) -> None:
    with pytest.raises(BadOption, match="a text or a list of texts: got"):
        load("llama").complete(prompt)


# -- sharing ------------------------------------------------------------------------------------------------


def test_a_second_load_is_the_same_model(load: Load, tiny) -> None:
    llm = load("llama")
    assert load("llama") is llm
    assert ipyllama.load(tiny("llama")) is llm  # nothing in particular was asked for
    assert ipyllama.load(str(tiny("llama")), n_ctx=1024) is llm
    assert ipyllama.loaded() == [llm]
    llm.close()
    assert ipyllama.loaded() == []
    fresh = load("llama")
    assert fresh is not llm
    assert not fresh.closed


def test_another_context_shares_the_weights(load: Load) -> None:
    small, large = load("llama", n_ctx=256), load("llama", n_ctx=2048)
    assert small is not large
    assert small._model is large._model
    assert (small.n_ctx, large.n_ctx) == (256, 2048)
    expected = small.complete("hello", max_tokens=8).tokens
    small.close()
    assert small.closed
    assert large.complete("hello", max_tokens=8).tokens == expected
    large.close()
    assert large._model.closed


def test_a_link_to_the_file_is_the_same_model(load: Load, tiny, tmp_path: Path) -> None:
    link = tmp_path / "another-name.gguf"
    link.symlink_to(tiny("llama"))
    assert load(link) is load("llama")


def test_loading_at_the_same_time_loads_once(load: Load) -> None:
    found: list[LLM] = []
    threads = [threading.Thread(target=lambda: found.append(load("llama"))) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1


def test_with_closes_it(tiny) -> None:
    with ipyllama.load(tiny("llama"), n_ctx=256, n_threads=1) as llm:
        assert llm.complete("hello", max_tokens=2).usage.generated == 2
    assert llm.closed
    assert "closed" in repr(llm)
    for call in (llm.complete, llm.start, llm.tokenize, lambda text: next(iter(llm.stream(text)))):
        with pytest.raises(ClosedError, match="load it again"):
            call("hello")


# -- memory -------------------------------------------------------------------------------------------------


def test_unloading_frees_the_memory_while_variables_still_point_at_it(load: Load) -> None:
    load("smollm2", use_mmap=False, n_ctx=512).close()  # what the first load keeps for good is not counted
    before = resident()
    llm = load("smollm2", use_mmap=False, n_ctx=8192)
    chat, job, engine = llm.chat(), llm.start("Hello", max_tokens=2), llm._engine
    job.result()
    llm.complete("Another branch, " * 12, max_tokens=2)
    llm.complete("and one more, quite different. " * 12, max_tokens=2)
    assert llm.memory.ram.nbytes > MB // 2
    loaded = resident()
    assert loaded - before > 200 * MB  # 98 MB of weights, 184 MB of KV
    llm.close()
    assert resident() - before < 60 * MB
    assert (llm.memory.ram.nbytes, chat.llm, engine.closed, llm._model.closed) == (0, llm, True, True)


def test_nothing_is_left_when_loading_fails(load: Load, tiny) -> None:
    with pytest.raises(BadArgument, match="does not divide"):
        load("llama", kv_type="q8_0")
    assert ipyllama.loaded() == []
    assert _loaded._weights == {}
    with pytest.raises(NotEnoughMemory, match="Choose a smaller model or n_ctx"):
        load("smollm2", n_ctx=1 << 24)
    assert ipyllama.loaded() == []
    assert load("llama").complete("hello", max_tokens=1).usage.generated == 1


def test_a_file_name_that_is_not_utf8(load: Load, tiny, tmp_path: Path) -> None:
    file = tmp_path / "caf\udce9.gguf"
    file.write_bytes(tiny("llama").read_bytes())
    with pytest.raises(BadModelFile, match="rename the file"):
        load(file)


# -- options ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("n_ctx", [0, -1, "1024", 1.5, True, 2**24 + 1, 10**30, [1]]),
        ("n_threads", [0, -1, "2", 1.0, True, 513]),
        ("n_gpu_layers", [-2, "all", None, 1.5]),
        ("kv_type", ["q9", "", None, 8, "F16"]),
        ("flash_attention", ["on", 1, 0]),
        ("use_mmap", ["yes", None, 1]),
        ("ram_limit", [-1, "1G", 1.5]),
    ],
)
def test_a_load_option_out_of_range_says_what_is_allowed(load: Load, name: str, values: list[object]) -> None:
    for value in values:
        with pytest.raises(BadOption, match=f"{name} must be") as caught:
            load("llama", **{name: value})
        assert "\n" not in str(caught.value)
    assert ipyllama.loaded() == []


def test_an_unknown_load_option_is_named_with_what_was_meant(load: Load) -> None:
    with pytest.raises(BadOption, match="'n_ctxx': did you mean 'n_ctx'"):
        load("llama", n_ctxx=5)
    with pytest.raises(BadOption, match="known are n_ctx"):
        load("llama", colour="red")


@pytest.mark.parametrize(
    "options",
    [{"flash_attention": False}, {"flash_attention": True}, {"kv_type": "f32"}, {"ram_limit": 0}, {"n_gpu_layers": 0}],
)
def test_load_options_that_work(load: Load, options: dict[str, object]) -> None:
    llm = load("llama", **options)
    assert llm.complete("hello", max_tokens=5).usage.generated == 5
    assert all(getattr(llm.options, name) == value for name, value in options.items())


def test_numpy_numbers_and_large_values_are_welcome(load: Load) -> None:
    llm = load("llama")
    plain = llm.complete("hello", max_tokens=5, top_k=3, temperature=0.5, seed=7)
    odd = llm.complete(
        "hello", max_tokens=np.int64(5), top_k=np.int32(3), temperature=np.float32(0.5), seed=np.uint32(7)
    )
    assert plain.tokens == odd.tokens
    assert llm.complete("hello", max_tokens=10**30, stop="a", temperature=0, seed=2**32 - 2).tokens
    off = llm.complete("hello", max_tokens=20, temperature=2, top_k=0, seed=7)
    assert llm.complete("hello", max_tokens=20, temperature=2, top_k=10**12, seed=7).tokens == off.tokens


# -- text ---------------------------------------------------------------------------------------------------


def test_streaming_gives_the_text_of_the_reply(load: Load) -> None:
    llm = load("llama")
    pieces = list(llm.stream("hello", max_tokens=60, seed=4))
    assert len(pieces) > 5
    assert "".join(pieces) == llm.complete("hello", max_tokens=60, seed=4).text


def test_leaving_the_loop_ends_the_generation(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = load("llama", n_ctx=16384)
    jobs: list[Job] = []
    start = llm.start

    def started(prompt: str, **options: object) -> Job:
        jobs.append(start(prompt, **options))
        return jobs[-1]

    monkeypatch.setattr(llm, "start", started)
    for _ in llm.stream("hello", max_tokens=100_000, temperature=0):
        break
    assert jobs[0].cancelled
    assert jobs[0].result().finish_reason == "interrupted"


def test_nothing_runs_before_the_first_piece_is_asked_for(load: Load) -> None:
    llm = load("llama")
    llm.stream("hello")
    assert llm.n_busy == llm.n_live == 0


def test_the_same_prompt_gives_the_same_answer(load: Load, tiny) -> None:
    """Whatever is in memory, and in another context too; another seed gives another."""
    llm = load("llama")
    ask = {"max_tokens": 40, "temperature": 1.5}
    first = llm.complete("hello", **ask)
    llm.complete("something else", **ask)
    again = llm.complete("hello", **ask)
    assert again.tokens == first.tokens
    assert again.usage.computed < first.usage.computed
    llm.close()
    assert load("llama", n_ctx=512).complete("hello", **ask).tokens == first.tokens
    assert load("llama", n_ctx=512).complete("hello", seed=43, **ask).tokens != first.tokens


def test_a_random_seed_is_told_and_can_be_used_again(load: Load) -> None:
    llm = load("llama")
    ask = {"max_tokens": 20, "temperature": 1.5}
    one, two = (llm.complete("hello", seed="random", **ask) for _ in range(2))
    assert one.seed != two.seed
    assert llm.complete("hello", seed=one.seed, **ask).tokens == one.tokens


def test_text_that_cannot_be_encoded_is_refused_in_one_line(load: Load) -> None:
    llm = load("llama")
    for call in (llm.complete, llm.tokenize, llm.chat().ask):
        with pytest.raises(BadArgument, match="U\\+D83D, half of a pair"):
            call("half a pair: \ud83d")


def test_what_a_model_says_about_itself(load: Load) -> None:
    llm = load("smollm2")
    assert llm.name == llm.path.stem
    assert llm.path.is_file()
    assert (llm.n_ctx, llm.n_threads, llm.n_ctx_train) == (1024, 1, 8192)
    assert llm.metadata()["general.architecture"] == "llama"
    assert llm.template is not None
    assert repr(llm).startswith(f"<LLM {llm.name}: llama")


def test_a_memory_keeps_its_own_limit_in_ram(load: Load) -> None:
    assert load("llama", cache=PrefixMemory(ram_limit="3M")).memory.ram.bytes_limit == 3 << 20
    assert load("llama", cache=PrefixMemory(ram_limit="3M"), ram_limit=5).memory.ram.bytes_limit == 5
