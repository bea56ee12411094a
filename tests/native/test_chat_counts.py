"""What a conversation costs: no token of a prompt is computed twice but its last, wherever the next turn stands."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from native.scenarios.subject import Slow

from ipyllama.chat import Chat, Turn
from ipyllama.chat.turn import Message
from ipyllama.engine import PIECE
from ipyllama.errors import BadOption
from ipyllama.ledger import common_prefix
from ipyllama.llm import LLM

ARCHS = ("llama", "gemma3", "mamba", "lfm2", "jamba")
LONG = "The red fox met a dog near the trees and told it of the river. " * 6
N_CTX = 4096

Load = Callable[..., LLM]


def new_chat(load: Load, arch: str) -> Chat:
    """A conversation with a model whose states are always worth restoring, as with large ones."""
    llm = load(arch, n_ctx=N_CTX)
    llm.memory.rates.prefill = Slow(1.0)
    return llm.chat(system="Be brief.")


def ask(chat: Chat, text: Message, **options: object) -> Turn:
    return chat.ask(text, max_tokens=6, **options)


def new_tokens(turn: Turn) -> int:
    """Prompt tokens behind the turn before, and the one that was sampled there, which need not have been evaluated."""
    assert turn.parent is not None
    kept = common_prefix(turn.parent.ledger.tokens, turn.ledger.tokens)
    assert kept >= len(turn.parent.ledger) - 1
    return turn.usage.prompt - kept + 1


def equals_a_cold_run(load: Load, arch: str, chat: Chat, turn: Turn) -> bool:
    """Whether tokens and the last logits are those of a model that has nothing in memory."""
    cold = load(arch, n_ctx=N_CTX + 256, cache=None)
    prompt = turn.ledger.head(turn.usage.prompt)
    reply = cold.generate(prompt, turn.options).result()
    assert reply.usage.computed == turn.usage.prompt
    pair = [llm._engine._live.sequence.logits() for llm in (chat.llm, cold)]
    cold.close()
    return turn.exact and reply.tokens == turn.tokens and np.array_equal(*pair)


@pytest.mark.parametrize("arch", ARCHS)
def test_going_on_forking_rewinding_and_running_again(load: Load, arch: str) -> None:
    chat = new_chat(load, arch)
    first = ask(chat, f"1. {LONG}", cell="a")
    assert first.usage.computed == first.usage.prompt
    second = ask(chat, f"2. {LONG}", cell="b")
    third = ask(chat, f"3. {LONG}", cell="c")
    fork = ask(chat, f"4. {LONG}", cell="d", after=first)
    chat.goto(third)
    back = ask(chat, "5. And then?", cell="e")
    chat.goto(second)
    rewound = ask(chat, "6. And before?", cell="f")
    other = ask(chat.fork(first), "7. Elsewhere?")
    for turn in (second, third, fork, back, rewound, other):
        assert new_tokens(turn) - 1 <= turn.usage.computed <= new_tokens(turn)
    assert equals_a_cold_run(load, arch, chat, other)
    for cell, turn in (("b", second), ("d", fork), ("c", third), ("a", first)):
        again = ask(chat, turn.message, cell=cell)
        assert (again.id, again.usage.computed) == (turn.id, 1)
        assert equals_a_cold_run(load, arch, chat, again)
    assert chat.stale == ()


@pytest.mark.parametrize("arch", ARCHS)
def test_an_edit_costs_at_most_a_piece_more(load: Load, arch: str) -> None:
    """The message is read again from the last whole piece before the edit: recurrent state has a checkpoint there."""
    chat = new_chat(load, arch)
    ask(chat, f"1. {LONG}", cell="a")
    old = ask(chat, f"2. {LONG * 3}", cell="b")
    for at in (10, 400, 900):
        edited = ask(chat, f"{old.message[:at]} of late {old.message[at + 1 :]}", cell="b")
        same = common_prefix(old.ledger.tokens, edited.ledger.tokens)
        assert edited.usage.computed <= edited.usage.prompt - same + PIECE
        assert equals_a_cold_run(load, arch, chat, edited)


@pytest.mark.parametrize("arch", ARCHS)
def test_in_the_next_process_it_costs_a_restore(load: Load, arch: str, tmp_path) -> None:
    llm = load(arch, n_ctx=N_CTX, cache=tmp_path / "states")
    chat = llm.chat()
    chat.keep(tmp_path / "chat")
    for number in range(3):
        last = ask(chat, f"{number}. {LONG}")
    llm.memory.flush()
    llm.close()

    llm = load(arch, n_ctx=N_CTX, cache=tmp_path / "states")
    llm.memory.rates.prefill = Slow(1.0)
    later = llm.chat()
    later.keep(tmp_path / "chat")
    later.resume()
    turn = ask(later, "And now?")
    assert (turn.usage.reused, turn.usage.restored) == (0, len(last.ledger) - 1)
    assert equals_a_cold_run(load, arch, later, turn)


@pytest.mark.parametrize("arch", ARCHS)
def test_another_question_about_a_document_computes_the_question(load: Load, arch: str) -> None:
    chat = new_chat(load, arch)
    document = LONG * 3
    first = ask(chat, [document, "Who met whom?"])
    second = ask(chat, [document, "And where was that? Tell it in a few words."], after=None)
    question = len(chat.llm.tokenize("And where was that? Tell it in a few words."))
    assert second.usage.prompt > 3 * PIECE
    assert second.usage.computed <= question + 24, "the question, and what the template puts behind it"
    assert second.said == [document, "And where was that? Tell it in a few words."]
    assert equals_a_cold_run(load, arch, chat, second)
    again = chat.again(first, seed=5)
    assert (again.said, again.ledger.head(again.usage.prompt)) == (first.said, first.ledger.head(first.usage.prompt))
    assert again.usage.computed == 1


@pytest.mark.parametrize("arch", ["llama", "mamba"])
def test_another_conversation_under_a_long_system_prompt_computes_its_message(load: Load, arch: str) -> None:
    llm = load(arch, n_ctx=N_CTX)
    llm.memory.rates.prefill = Slow(1.0)
    ask(llm.chat(system=LONG * 3), "Hello!")
    other = ask(llm.chat(system=LONG * 3), "What do you know of foxes?")
    assert other.usage.prompt > 3 * PIECE
    assert other.usage.computed <= len(llm.tokenize("What do you know of foxes?")) + 24


@pytest.mark.parametrize("text", [[], [3], ["a", None], 3, ("a", b"b")])
def test_a_message_is_a_text_or_several(load: Load, text: object) -> None:
    chat = new_chat(load, "llama")
    with pytest.raises(BadOption, match="a text or a list of texts"):
        chat.ask(text)
    assert chat.head is None
