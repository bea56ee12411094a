"""A branch inside an answer: nothing before it is computed again, and it is what the sampler would have written."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from native.scenarios.subject import Slow

from ipyllama.chat import Turn
from ipyllama.errors import BadGrammar, BadOption, UnknownTurn
from ipyllama.llm import LLM
from ipyllama.reply import Delta

Load = Callable[..., LLM]
TRIMMED = ("llama", "gemma3")
REWOUND = ("mamba", "lfm2", "jamba")
LONG = "The red fox met a dog near the trees and told it of the river. " * 6


def asked(llm: LLM, **options: object) -> Turn:
    """An answer of 20 tokens after a prompt of a few hundred."""
    llm.memory.rates.prefill = Slow(1.0)  # states are always worth restoring, as with large models
    forbid = {llm.vocab.eos: float("-inf")}
    return llm.chat(system="Be brief.").ask(LONG, max_tokens=20, logit_bias=forbid, **options)


def other(turn: Turn, at: int) -> int:
    """A token that is not the one that was taken there."""
    return turn.tokens[at] + 1


def equals_a_cold_run(load: Load, arch: str, turn: Turn, at: int) -> bool:
    """Whether the rest of the answer is what a model with nothing in memory writes after the same tokens."""
    cold = load(arch, n_ctx=4096 + 256, cache=None)
    n_given = at + 1
    prompt = turn.ledger.head(len(turn.ledger) - len(turn.tokens) + n_given)
    reply = cold.generate(prompt, turn.options.replace_from({"max_tokens": len(turn.tokens) - n_given})).result()
    pair = [llm._engine._live.sequence.logits() for llm in (turn.chat.llm, cold)]
    cold.close()
    return turn.exact and reply.tokens == turn.tokens[n_given:] and np.array_equal(*pair)


@pytest.mark.parametrize("arch", TRIMMED)
@pytest.mark.parametrize("n", [None, 5])
def test_nothing_before_it_is_computed_again(load: Load, arch: str, n: int | None) -> None:
    turn = asked(load(arch, n_ctx=4096), logprobs=n)
    for at in (19, 10, 1, 0):
        token = turn.logprobs[at].top[1].id if turn.logprobs else other(turn, at)
        branch = turn.branch(at, token)
        assert branch.tokens[: at + 1] == (*turn.tokens[:at], token)
        assert (branch.usage.computed, branch.usage.generated) == (1, len(branch.tokens) - at - 1)
        assert branch.usage.prompt == turn.usage.prompt + at + 1
        assert at == 19 or equals_a_cold_run(load, arch, branch, at)
        assert [each.id for each in branch.logprobs or ()] == ([] if n is None else list(branch.tokens))
        if branch.logprobs:
            assert branch.logprobs == branch.chat.llm.score(
                branch.ledger.head(len(branch.ledger) - len(branch.tokens)), branch.tokens, 5
            )


@pytest.mark.parametrize("arch", REWOUND)
def test_recurrent_states_go_back_to_the_end_of_the_prompt(load: Load, arch: str) -> None:
    """What was kept there; the tokens of the answer up to the place are evaluated again, and counted."""
    turn = asked(load(arch, n_ctx=4096))
    for at in (10, 0):
        branch = turn.branch(at, other(turn, at))
        assert branch.usage.prompt == turn.usage.prompt + at + 1
        assert branch.usage.reused + branch.usage.restored >= turn.usage.prompt - 1
        assert branch.usage.computed <= at + 2
        assert equals_a_cold_run(load, arch, branch, at)


@pytest.mark.parametrize("arch", [*TRIMMED, *REWOUND, "smollm2"])
def test_the_token_that_was_taken_gives_the_same_answer(load: Load, arch: str) -> None:
    turn = asked(load(arch, n_ctx=4096), temperature=0)
    branch = turn.branch(7, turn.tokens[7])
    assert (branch.tokens, branch.text, branch.finish_reason) == (turn.tokens, turn.text, turn.finish_reason)


def test_penalties_count_what_stays(load: Load) -> None:
    turn = asked(load("smollm2", n_ctx=4096), temperature=0, repeat_penalty=1.5, frequency_penalty=0.5)
    assert turn.branch(12, turn.tokens[12]).tokens == turn.tokens


def test_it_stands_beside_the_turn_and_goes_on_like_any_other(load: Load) -> None:
    turn = asked(load("smollm2", n_ctx=4096), logprobs=3)
    chat = turn.chat
    after = chat.ask("And then?", max_tokens=4)
    branch = turn.branch(4, turn.logprobs[4].top[2].id, name="other")
    assert (chat.head, branch.parent, branch.message) == (branch, turn.parent, turn.message)
    assert chat.all_turns == (turn, after, branch)
    assert chat.stale == ()
    text = str(chat.tree())
    assert "3 other" in text
    assert "3 turns" in text
    following = chat.ask("And now?", max_tokens=4)
    assert (following.parent, following.usage.reused) == (branch, len(branch.ledger) - 1)
    assert chat["other"].branch(0, turn.tokens[0], name="third").parent is turn.parent
    assert chat.undo()
    assert chat.head == following


def test_a_cell_keeps_its_turn(load: Load) -> None:
    turn = asked(load("llama", n_ctx=4096), cell="a")
    branch = turn.branch(3, other(turn, 3))
    assert branch.cell is None
    assert turn.chat.all_turns == (turn, branch)
    assert turn.chat.branch("1", 3, other(turn, 3)).id != branch.id  # by number, and another turn each time


def test_what_is_known_is_kept_and_one_token_tells_the_rest(load: Load) -> None:
    turn = asked(load("smollm2", n_ctx=4096), logprobs=2)
    rare = next(token for token in range(500, 600) if token not in [each.id for each in turn.logprobs[5].top])
    branch = turn.branch(5, rare)
    assert branch.usage.computed == 1  # the token before it, whose logits were gone
    assert branch.usage.generated == 20 - 5
    assert branch.logprobs[:5] == turn.logprobs[:5]
    plain = asked(turn.chat.llm, logprobs=None)
    told = plain.branch(5, rare, logprobs=2)
    assert told.logprobs == branch.logprobs
    assert told.usage.generated == 20  # nothing was known: the answer was evaluated again


def test_tokens_by_their_text(load: Load) -> None:
    turn = asked(load("smollm2", n_ctx=4096), logprobs=3)
    second = turn.logprobs[2].top[1]
    assert turn.branch(2, second.bytes.decode()).tokens[2] == second.id
    assert turn.branch(2, " Paris").tokens[2] == turn.chat.llm.tokenize(" Paris")[0]


def test_an_end_ends_it(load: Load) -> None:
    llm = load("llama", n_ctx=4096)
    turn = llm.chat().ask(LONG, max_tokens=20, logit_bias={llm.vocab.eos: float("-inf")})
    branch = turn.branch(6, llm.vocab.eos, logit_bias=())
    assert (branch.finish_reason, len(branch.tokens), branch.usage.generated) == ("stop", 7, 0)
    last = turn.branch(19, other(turn, 19))
    assert (last.finish_reason, last.usage.generated) == ("length", 0)
    assert turn.branch(19, other(turn, 19), max_tokens=23).usage.generated == 3
    stopped = turn.branch(6, other(turn, 6), stop=[llm.detokenize([*turn.tokens[:6], other(turn, 6)])[-3:]])
    assert stopped.finish_reason == "stop"


def test_the_kept_text_comes_first_in_the_stream(load: Load) -> None:
    turn = asked(load("smollm2", n_ctx=4096))
    pieces = [event.text for event in turn.chat.start_branch(turn, 8, other(turn, 8)) if isinstance(event, Delta)]
    assert "".join(pieces) == turn.chat.head.text
    assert turn.chat.head.text.startswith(turn.chat.llm.detokenize(turn.tokens[:8]))


def test_it_is_replayed_and_not_taken_for_another_request(load: Load) -> None:
    llm = load("llama", n_ctx=4096)
    llm.memory.replies.enabled = True
    turn = asked(llm)
    first, again = (turn.branch(5, other(turn, 5)) for _ in range(2))
    assert (again.replayed, again.tokens, again.ledger) == (True, first.tokens, first.ledger)
    assert again.usage.prompt == first.usage.prompt
    assert not turn.branch(5, other(turn, 5), fresh=True).replayed
    raw = llm.generate(first.ledger.head(first.usage.prompt), first.options).result()
    assert not raw.replayed


def test_one_of_several_answers_branches_by_itself(load: Load) -> None:
    llm = load("llama", n_ctx=4096, n_parallel=3)
    forbid = {llm.vocab.eos: float("-inf")}
    turns = llm.chat().samples(LONG, 2, max_tokens=12, temperature=1, logit_bias=forbid)
    branch = turns[1].branch(6, other(turns[1], 6))
    assert branch.exact
    assert (branch.n_samples, branch.sample, branch.usage.generated) == (1, 0, 5)
    assert equals_a_cold_run(load, "llama", branch, 6)
    assert turns[1].chat.all_turns == (*turns, branch)


@pytest.mark.parametrize(
    ("at", "token", "message"),
    [
        (20, 300, "the answer has tokens 0 to 19: there is no 20"),
        (-1, 300, "there is no -1"),
        (True, 300, "there is no True"),
        ("1", 300, "there is no '1'"),
        (0, -1, "-1 is no token"),
        (0, 10**6, "is no token: ids are 0 to"),
        (0, True, "True is no token"),
        (0, 1.5, "1.5 is no token"),
        (0, "", "is 0 tokens of"),
        (0, "two words", "it must be one: try the id of a token"),
    ],
)
def test_what_cannot_be_is_said(load: Load, at: object, token: object, message: str) -> None:
    turn = asked(load("llama", n_ctx=4096))
    with pytest.raises(BadOption, match=message):
        turn.branch(at, token)
    assert turn.chat.all_turns == (turn,)


def test_other_errors(load: Load) -> None:
    llm = load("smollm2", n_ctx=4096)
    turn = llm.chat().ask("Hi", max_tokens=5, grammar="root ::= [a-z ]+")
    with pytest.raises(BadGrammar):
        turn.branch(2, "9")
    with pytest.raises(UnknownTurn):
        turn.chat.branch("nothing", 0, 0)
    with pytest.raises(BadOption, match="cannot be the name"):
        turn.branch(0, 300, name="7")
    with pytest.raises(BadOption, match="unknown option 'temprature'"):
        turn.branch(0, 300, temprature=1)
    given = type(turn.chat).from_messages(
        llm, [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    )
    with pytest.raises(BadOption, match="no tokens of this model"):
        given.head.branch(0, 300)
