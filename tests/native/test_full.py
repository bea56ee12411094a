"""A full context: what is left out, against a conversation that never had it; what was moved, by counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ipyllama.chat import Chat, Turn
from ipyllama.errors import BadOption, PromptTooLong, UnknownTurn
from ipyllama.llm import LLM

Load = Callable[..., LLM]
ARCHS = ("llama", "gemma3", "mamba", "lfm2", "jamba")
N_CTX = 512
MESSAGE = "Message number {}: what do the river and the mill have in common?"


def talk(llm: LLM, n: int, **options: object) -> tuple[Chat, list[Turn]]:
    """`n` turns, some of which do not fit any more."""
    chat = llm.chat(system="Be brief.")
    return chat, [chat.ask(MESSAGE.format(i), max_tokens=24, seed=i, **options) for i in range(n)]


def cold(llm: LLM, turn: Turn) -> tuple[int, ...]:
    """What a model that never saw the conversation answers to the same prompt."""
    prompt = turn.ledger.head(len(turn.ledger) - len(turn.tokens))
    return llm.generate(prompt, turn.options, fresh=True).result().tokens


def fill(chat: Chat, most: int = 40, **options: object) -> str:
    """Ask until that is refused; returns the message that was."""
    for number in range(most):
        try:
            chat.ask(MESSAGE.format(number), **options)
        except (BadOption, PromptTooLong):
            return MESSAGE.format(number)
    raise AssertionError("the context did not get full")


@pytest.mark.parametrize("arch", [*ARCHS, "smollm2"])
def test_the_answer_is_that_of_a_conversation_without_the_oldest_turns(load: Load, arch: str) -> None:
    _, turns = talk(load(arch, n_ctx=N_CTX), 12, on_full="drop-oldest")
    turn = next(turn for turn in turns if turn.dropped)
    history = [{"role": "system", "content": "Be brief."}, *turn.parent.messages[1 + 2 * turn.dropped :]]
    other = load(arch, n_ctx=2 * N_CTX)
    assert turn.prompt == other.template.render([*history, {"role": "user", "content": turn.message}])
    assert turn.tokens == cold(other, turn)
    assert turn.exact
    assert turn.why.cause == "context full"
    assert turn.notes[0].startswith(f"the context was full: the {turn.dropped} oldest turns were left out")
    assert turn.messages[1]["content"] == MESSAGE.format(0), "the conversation itself has lost nothing"


@pytest.mark.parametrize("how", ["drop-oldest", "shift"])
def test_turns_after_it_cost_no_more_than_before(load: Load, how: str) -> None:
    """As long as nothing else has to be left out."""
    _, turns = talk(load("llama", n_ctx=N_CTX), 14, on_full=how)
    at = next(number for number, turn in enumerate(turns) if turn.dropped)
    assert turns[at + 1].dropped == turns[at].dropped
    assert turns[at + 1].usage.computed <= turns[at - 1].usage.computed + 2
    assert all(len(turn.ledger) < N_CTX for turn in turns)
    assert turns[-1].dropped > turns[at].dropped, "it happened again"


@pytest.mark.parametrize("arch", ["llama", "gemma3", "smollm2"])
def test_shifted_kv_is_not_computed_again(load: Load, arch: str) -> None:
    llm = load(arch, n_ctx=N_CTX)
    _, turns = talk(llm, 12, on_full="shift")
    at = next(number for number, turn in enumerate(turns) if turn.dropped)
    turn, before = turns[at], turns[at - 1]
    assert turn.usage.computed <= before.usage.computed + 2
    assert turn.moved
    assert not turn.exact
    assert turn.usage.reused > turn.usage.computed
    positions = llm._engine._live.sequence.positions
    assert positions == list(range(len(positions)))
    assert tuple(llm._engine._live.sequence.tokens) == turns[-1].ledger.tokens[: len(positions)]
    assert "still know of what was left out" in turn.notes[1]


def test_what_another_conversation_pushed_out_is_brought_back_and_moved(load: Load) -> None:
    llm = load("llama", n_ctx=N_CTX)
    chat = llm.chat(system="Be brief.")
    for number in range(12):
        llm.complete("Something else, long enough to count. " * 8, max_tokens=1)
        turn = chat.ask(MESSAGE.format(number), max_tokens=24, seed=number, on_full="shift")
        if turn.moved:
            break
    assert turn.usage.restored > turn.usage.reused
    assert turn.usage.restored + turn.usage.reused > turn.usage.computed
    assert not turn.exact


def test_what_was_moved_is_not_kept(load: Load, tmp_path: Path) -> None:
    """Neither in RAM nor on disk: an exact answer to the same prompt is computed, and is the cold one."""
    llm = load("llama", n_ctx=N_CTX, cache=tmp_path)
    _, turns = talk(llm, 10, on_full="shift")
    turn = next(turn for turn in turns if turn.moved)
    assert cold(llm, turn) == cold(load("llama", n_ctx=2 * N_CTX), turn)


def test_after_a_restart_a_shifted_conversation_is_computed_exactly(load: Load, tmp_path: Path) -> None:
    llm = load("llama", n_ctx=N_CTX)
    chat, _ = talk(llm, 10, on_full="shift")
    chat.keep(tmp_path)
    assert chat.head.moved
    llm.close()
    other = load("llama", n_ctx=N_CTX).chat()
    other.keep(tmp_path)
    other.resume()
    assert other.head.moved
    assert other.head.dropped == chat.head.dropped
    turn = other.ask("And now?", max_tokens=8)
    assert turn.tokens == cold(load("llama", n_ctx=2 * N_CTX), turn)


@pytest.mark.parametrize("arch", ["mamba", "lfm2", "jamba"])
def test_what_cannot_be_shifted_says_why_and_changes_nothing(load: Load, arch: str) -> None:
    llm = load(arch, n_ctx=N_CTX)
    chat = llm.chat(system="Be brief.")
    message, n = fill(chat, max_tokens=24, on_full="shift"), len(chat)
    with pytest.raises(BadOption, match=r"cannot be moved \(.+\): use --on-full drop-oldest"):
        chat.ask(message, max_tokens=24, on_full="shift")
    assert len(chat) == n
    chat.ask(message, max_tokens=24, on_full="drop-oldest")
    assert len(chat) == n + 1


def test_a_summary_stands_for_what_was_left_out(load: Load) -> None:
    llm = load("smollm2", n_ctx=N_CTX)
    chat = llm.chat(system="Be brief.")
    chat.ask("Summarise what was said so far.", name="recap", max_tokens=24)
    turns = [chat.ask(MESSAGE.format(i), max_tokens=48, on_full="summarise-by recap", seed=i) for i in range(20)]
    turn = next(turn for turn in turns if turn.dropped)
    message, summary = turn.summary
    assert message == "Summarise what was said so far."
    assert summary
    assert summary in llm.detokenize(list(turn.ledger.tokens))
    assert "a summary stands for them" in turn.notes[0]
    assert [each.message for each in chat.all_turns] == [message, *(each.message for each in turns)], "it is no turn"
    later = next(each for each in turns if each.dropped > turn.dropped)
    assert later.summary[1] in llm.detokenize(list(later.ledger.tokens))
    assert MESSAGE.format(0) not in llm.detokenize(list(later.ledger.tokens))


def test_without_a_choice_the_error_tells_how_many_tokens_to_free(load: Load) -> None:
    llm = load("llama", n_ctx=N_CTX)
    chat = llm.chat()
    message, head = fill(chat, max_tokens=64), chat.head
    with pytest.raises(PromptTooLong, match=r"\d+ too many .*--on-full drop-oldest"):
        chat.ask(message)
    assert chat.head is head
    assert chat.ask(message, on_full="drop-oldest", max_tokens=4).dropped


@pytest.mark.parametrize(
    ("on_full", "said"),
    [
        ("drop-oldes", "did you mean 'drop-oldest'"),
        ("", "there are error, shift, drop-oldest, summarise-by"),
        ("summarise-by", "needs the turn"),
        ("shift recap", "needs the turn"),
    ],
)
def test_bad_ways_are_refused_before_anything_is_computed(load: Load, on_full: str, said: str) -> None:
    with pytest.raises(BadOption, match=said):
        load("llama").chat().ask("hello", on_full=on_full)


def test_a_summary_needs_a_turn_that_is_there(load: Load) -> None:
    llm = load("llama", n_ctx=N_CTX)
    with pytest.raises(UnknownTurn, match="recap"):
        talk(llm, 12, on_full="summarise-by recap")


def test_a_message_that_fills_the_context_alone_is_too_long_in_any_case(load: Load) -> None:
    chat, _ = talk(load("llama", n_ctx=N_CTX), 3)
    with pytest.raises(PromptTooLong):
        chat.ask("word " * N_CTX, on_full="drop-oldest")
    assert len(chat) == 3


def test_several_answers_move_nothing(load: Load) -> None:
    """What is left out for them is computed anew: nothing that follows is inexact because of it."""
    (chat, _), turns = talk(load("llama", n_ctx=N_CTX), 3), []
    while not turns or not turns[0].dropped:
        turns = chat.samples("And now?", 2, max_tokens=24, on_full="shift")
    assert not any(turn.moved for turn in turns)
    assert chat.ask("And then?", max_tokens=4).exact


@pytest.mark.parametrize("arch", ARCHS)
def test_a_context_shorter_than_a_step(load: Load, arch: str) -> None:
    llm = load(arch, n_ctx=64)
    assert llm.n_ctx == 256, "llama.cpp rounds up"
    assert llm.complete("m" * 200, max_tokens=2).usage.computed == 201


def test_several_answers_go_on_from_what_was_moved(load: Load) -> None:
    chat, _ = talk(load("llama", n_ctx=N_CTX), 12, on_full="shift")
    assert chat.head.moved
    first, second = chat.samples("And now?", 2, max_tokens=4)
    assert first.usage.reused > first.usage.computed
    assert second.usage.computed == 0
