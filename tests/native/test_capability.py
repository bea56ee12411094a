"""LLM.capability: found on the worker, without harm to what is in memory, once for each model and way of loading."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from native.jobs import Gate

from ipyllama.engine import capability
from ipyllama.engine.capability import ENCODER, Capability
from ipyllama.errors import ClosedError
from ipyllama.llm import LLM

Load = Callable[..., LLM]


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    """As in a new process."""
    before = dict(capability._known)
    capability._known.clear()
    yield
    capability._known.update(before)


@pytest.mark.parametrize(
    ("arch", "expected"),
    [
        ("llama", Capability("full", can_shift=True)),
        ("gemma3", Capability("full", can_shift=True)),
        ("mamba", Capability("extend", False, "recurrent")),
        ("lfm2", Capability("extend", False, "hybrid: part attention, part recurrent")),
        ("jamba", Capability("extend", False, "hybrid: part attention, part recurrent")),
        ("bert", ENCODER),
    ],
)
def test_what_each_kind_of_model_can_do(load: Load, arch: str, expected: Capability) -> None:
    llm = load(arch)
    assert llm.capability_now == llm.capability == expected


@pytest.mark.parametrize("arch", ["llama", "gemma3", "mamba", "lfm2"])
def test_trying_changes_no_answer(load: Load, arch: str) -> None:
    prompts = ("hello there", "hello there, and more of it")
    options = {"max_tokens": 12, "temperature": 1.5}
    llm = load(arch)
    plain = [llm.complete(prompt, **options) for prompt in prompts]
    llm.close()
    capability._known.clear()
    llm = load(arch)
    found = []
    for prompt in prompts:
        assert llm.capability.level in ("full", "extend")
        capability._known.clear()
        found.append(llm.complete(prompt, **options))
    assert [reply.tokens for reply in found] == [reply.tokens for reply in plain]
    assert [reply.usage for reply in found] == [reply.usage for reply in plain]


def test_a_full_context_is_no_obstacle(load: Load) -> None:
    llm = load("llama", n_ctx=256)
    assert llm.complete("x" * 250, max_tokens=100).finish_reason == "context"
    assert (llm.n_live, llm.n_ctx) == (256, 256)
    assert llm.capability == Capability("full", can_shift=True)
    assert llm.n_live == 256


def test_it_is_tried_once_for_each_way_of_loading(load: Load) -> None:
    load("smollm2").capability  # noqa: B018
    assert len(capability._known) == 1
    load("smollm2", n_ctx=512).capability  # noqa: B018
    load("smollm2", n_threads=2).capability  # noqa: B018
    assert len(capability._known) == 1
    load("smollm2", kv_type="q8_0").capability  # noqa: B018
    load("llama").capability  # noqa: B018
    assert len(capability._known) == 3


def test_while_an_answer_is_written_it_is_not_known_at_once(llm: LLM, gate: Gate) -> None:
    assert llm.capability_now is None
    gate.open.set()
    assert llm.capability.level == "full"
    assert llm.capability_now == llm.capability


def test_a_closed_model_has_none(load: Load) -> None:
    llm = load("llama")
    llm.close()
    with pytest.raises(ClosedError, match="load it again"):
        llm.capability  # noqa: B018
