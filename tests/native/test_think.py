"""A model that thinks, made to by a grammar: what its template asks for, what of the KV is used again, and why."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from unit.chat_samples import CHATML, THINK, THINK_PROMPT

from ipyllama.chat import ChatTemplate
from ipyllama.engine import PIECE
from ipyllama.errors import BadOption
from ipyllama.llm import LLM

Load = Callable[..., LLM]
THINKS = 'root ::= "<think>\\n" [a-z]{40} "\\n</think>\\n\\n" [A-Z]{5}'
GOES_ON = 'root ::= [a-z]{40} "\\n</think>\\n\\n" [A-Z]{5}'


@pytest.fixture
def thinker(load: Load) -> Callable[..., LLM]:
    def make(arch: str = "llama", source: str = THINK) -> LLM:
        llm = load(arch)
        llm._template = ChatTemplate(source, "<s>", "</s>")
        return llm

    return make


@pytest.mark.parametrize("arch", ["llama", "gemma3", "mamba", "lfm2", "jamba", "smollm2"])
def test_a_template_that_drops_it_costs_what_that_forces(thinker, arch: str) -> None:
    """The answer is read again, the conversation before it is not."""
    chat = thinker(arch).chat()
    chat.ask("How are the river and the mill related? " * 8, max_tokens=8)
    first = chat.ask("And the sea?", grammar=THINKS, max_tokens=120)
    assert len(first.thinking) == 40
    assert first.answer.isupper()
    assert "<think>" in first.text, "the ledger and the text keep what was written"
    second = chat.ask("Why?", grammar=THINKS, max_tokens=120)
    forced = len(second.ledger) - len(second.tokens) - len(first.ledger.head(len(first.ledger) - len(first.tokens)))
    assert 0 < second.usage.computed <= forced + PIECE
    assert second.usage.reused + second.usage.restored > 0
    assert second.why.cause == "template rewrote history"
    assert any("leaves thinking out of history in turn 2" in note for note in second.notes)
    assert first.thinking not in second.prompt
    assert first.answer in second.prompt


def test_the_switch_reaches_the_template(thinker) -> None:
    chat = thinker().chat()
    off = chat.ask("hi", think=False, max_tokens=2)
    assert off.prompt.endswith("<think>\n\n</think>\n\n")
    assert off.think is False
    assert not chat.ask("hi", think=True, max_tokens=2).prompt.endswith("</think>\n\n")
    assert chat.again(off, seed=7).prompt == off.prompt


def test_a_template_without_a_switch_says_so(thinker) -> None:
    chat = thinker(source=CHATML).chat()
    with pytest.raises(BadOption, match="no switch for thinking"):
        chat.ask("hi", think=True)
    assert len(chat) == 0


def test_a_template_may_open_the_thinking_itself(thinker) -> None:
    turn = thinker(source=THINK_PROMPT).chat().ask("hi", grammar=GOES_ON, max_tokens=120)
    assert turn.prompt.endswith("<think>\n")
    assert len(turn.thinking) == 40
    assert turn.answer.isupper()
