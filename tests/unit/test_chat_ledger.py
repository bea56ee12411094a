"""The next prompt: sampled ids are kept, only new text is tokenised, and rewritten history is noticed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.chat_samples import CHATML, DATE, DEFAULT_SYSTEM, HEADERS, INST, PLAIN, THINK, THINK_PROMPT, Bytes, template

from ipyllama.chat import ChatTemplate, PromptPlan, Turn, next_prompt
from ipyllama.chat.ledger import WORTH
from ipyllama.chat.turn import Message, Place
from ipyllama.ledger import Segment
from ipyllama.reply import Reply

END = {CHATML: "<|im_end|>", DEFAULT_SYSTEM: "<|im_end|>", HEADERS: "<|eot|>", INST: "</s>", THINK: "<|im_end|>"}
SOME = settings(max_examples=40, deadline=None)
WORDS = st.text(st.sampled_from("ab <é😀\n{}'"), max_size=8)


def answer(plan: PromptPlan, message: str, sampled: Sequence[int], text: str, **more: object) -> Turn:
    ledger = plan.ledger.append_sampled(sampled)
    reply = Reply(text, tuple(sampled))
    return Turn.of(reply, Place(message=message, prompt=plan.text, **more), ledger)


class Talk:
    """A conversation in which the test plays the model."""

    def __init__(self, source: str, vocab: Bytes | None = None, system: str | None = None) -> None:
        self.vocab, self.template, self.system = vocab or Bytes(), template(source), system
        self.turn: Turn | None = None
        self.plans: list[PromptPlan] = []

    def plan(self, message: Message) -> PromptPlan:
        return next_prompt(self.vocab, self.template.render, self.turn, message, self.system)

    def say(self, message: str, text: str, sampled: Sequence[int] | None = None, end: str | None = None) -> Turn:
        """One turn. `sampled` defaults to the bytes of `text`, then the end-of-turn token `end`, if any."""
        plan = self.plan(message)
        tokens = list(text.encode()) if sampled is None else list(sampled)
        tokens += [self.vocab.special(end)] if end else []
        self.plans.append(plan)
        self.turn = answer(plan, message, tokens, text, parent=self.turn, system=self.system)
        return self.turn


@pytest.mark.parametrize("source", list(END))
@SOME
@given(
    turns=st.lists(st.tuples(WORDS, WORDS, st.booleans()), min_size=1, max_size=4),
    system=st.none() | st.just("Be\n brief."),
)
def test_turn_by_turn_equals_the_whole_at_once(
    source: str, turns: list[tuple[str, str, bool]], system: str | None
) -> None:
    talk = Talk(source, system=None if source == INST else system)
    for message, reply, ended in turns:
        before = talk.turn
        spoken = (" " if source == INST else "") + reply.strip()
        sampled = talk.vocab.tokenize(spoken + (" " if source == INST else ""), False, False)
        turn = talk.say(message, spoken, sampled, end=END[source] if ended else None)
        plan = talk.plans[-1]
        assert plan.loss is None
        if before is not None:
            assert plan.kept == len(before.ledger)
            assert plan.ledger.segments[: len(before.ledger.segments)] == before.ledger.segments
        assert talk.vocab.text(plan.ledger.tokens).split() == plan.text.split()
        if source != INST:  # its own white space is part of what is sampled
            assert list(plan.ledger.tokens) == talk.vocab.tokenize(plan.text, False, True)
        assert plan.ledger.sampled.count(True) == sum(len(t.tokens) for t in turn.path[:-1])


@SOME
@given(turns=st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=5))
def test_with_history_rewritten_the_prompt_is_still_the_templates(turns: list[tuple[str, str]]) -> None:
    for source in (THINK, THINK_PROMPT):
        talk = Talk(source)
        for message, reply in turns:
            talk.say(message, f"<think>\n{message}\n</think>\n\n{reply}", end="<|im_end|>")
            plan = talk.plans[-1]
            assert talk.vocab.text(plan.ledger.tokens).split() == plan.text.split()


def test_sampled_tokens_are_not_tokenised_again() -> None:
    talk = Talk(CHATML)
    assert talk.vocab.tokenize("ab", False, True) == [Bytes.AB]
    talk.say("hi", "abab", sampled=[97, 98, Bytes.AB], end="<|im_end|>")
    first = talk.turn
    assert first is not None
    plan = talk.plan("more")
    assert plan.ledger.segments[1] == Segment((97, 98, Bytes.AB, talk.vocab.special("<|im_end|>")), sampled=True)
    assert talk.vocab.text(plan.ledger.segments[2].tokens) == (
        "\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"
    )
    assert (plan.kept, plan.loss) == (len(first.ledger), None)


def test_a_cut_reply_gets_its_end_from_the_template() -> None:
    talk = Talk(CHATML)
    talk.say("hi", "and th")
    plan = talk.plan("more")
    assert talk.vocab.text(plan.ledger.tokens) == plan.text
    assert talk.vocab.text(plan.ledger.segments[2].tokens).startswith("<|im_end|>\n<|im_start|>user")
    assert plan.loss is None


def test_another_end_token_gives_way_to_the_templates_own() -> None:
    talk = Talk(CHATML)
    turn = talk.say("hi", "yo", end="<|other_end|>")
    plan = talk.plan("more")
    assert talk.vocab.text(plan.ledger.tokens) == plan.text
    assert (plan.kept, plan.loss) == (len(turn.ledger) - 1, None)


def test_an_end_token_stays_out_where_the_template_has_none() -> None:
    talk = Talk(PLAIN)
    talk.say("hi", " yo", end="</s>")
    plan = talk.plan("more")
    assert talk.vocab.text(plan.ledger.tokens) == "User: hi\nAssistant: yo\nUser: more\nAssistant:"
    assert plan.loss is None


def test_what_a_stop_text_cut_off_is_left_out() -> None:
    talk = Talk(CHATML)
    turn = talk.say("hi", "one é", sampled=list("one é.\nTwo".encode()))
    plan = talk.plan("more")
    assert talk.vocab.text(plan.ledger.tokens) == plan.text
    assert (plan.kept, plan.loss) == (len(turn.ledger) - len(".\nTwo"), None)
    assert plan.ledger.segments[1].sampled


def test_a_stop_text_inside_a_token_is_cut_out_of_it() -> None:
    talk = Talk(CHATML)
    talk.say("hi", "xa", sampled=[ord("x"), Bytes.AB])
    plan = talk.plan("more")
    assert talk.vocab.text(plan.ledger.tokens) == plan.text
    assert plan.ledger.segments[1] == Segment((ord("x"),), sampled=True)


def test_a_reply_that_ends_inside_a_character_is_kept_to_the_token() -> None:
    talk = Talk(CHATML)
    turn = talk.say("hi", "a", sampled=[97, 0xC3])
    plan = talk.plan("more")
    assert (plan.kept, plan.loss) == (len(turn.ledger), None)


def test_a_template_that_trims_keeps_the_sampled_white_space() -> None:
    talk = Talk(HEADERS)
    turn = talk.say("hi", " yo\n\n", end="<|eot|>")
    plan = talk.plan("more")
    assert plan.kept == len(turn.ledger)
    assert talk.vocab.text(plan.ledger.tokens).endswith(
        " yo\n\n<|eot|><|start|>user<|end|>\n\nmore<|eot|><|start|>assistant<|end|>\n\n"
    )


def test_an_empty_reply_is_a_reply() -> None:
    talk = Talk(CHATML)
    turn = talk.say("hi", "", end="<|im_end|>")
    plan = talk.plan("more")
    assert (plan.kept, plan.loss) == (len(turn.ledger), None)
    assert talk.vocab.text(plan.ledger.tokens) == plan.text


@pytest.mark.parametrize(("source", "add_bos"), [(HEADERS, True), (HEADERS, False), (CHATML, True)])
def test_bos_comes_once_and_only_at_the_beginning(source: str, add_bos: bool) -> None:
    talk = Talk(source, Bytes(add_bos=add_bos))
    for message in ("hi", "more", "again"):
        talk.say(message, "yo", end=END[source])
        tokens = talk.plans[-1].ledger.tokens
        assert tokens[0] == talk.vocab.bos
        assert tokens.count(talk.vocab.bos) == 1


def test_no_bos_where_neither_template_nor_vocabulary_wants_one() -> None:
    assert Bytes().bos not in Talk(CHATML).plan("hi").ledger.tokens


def test_dropped_thinking_keeps_what_was_before_it() -> None:
    talk = Talk(THINK)
    talk.say("hi", "yo", sampled=list(b"yo"), end="<|im_end|>")
    second = talk.say("q", "<think>\nhm\n</think>\n\nabab", end="<|im_end|>")
    third = talk.say("r", "<think>\nagain\n</think>\n\nb", end="<|im_end|>")
    plan, prompt = talk.plans[-1], len(second.ledger) - len(second.tokens)
    assert plan.kept == prompt
    assert plan.loss is not None
    left_out = "the template leaves thinking out of history in turn 2"
    assert plan.loss.note == f"{left_out}: the prompt differs from token {prompt} on"
    assert plan.ledger.sampled[:prompt] == second.ledger.sampled[:prompt]
    assert not any(plan.ledger.sampled[prompt:])
    fourth = talk.plan("s")  # the rewritten reply stands now; only the last one is rewritten
    assert fourth.kept == len(third.ledger) - len(third.tokens)
    assert talk.vocab.text(fourth.ledger.tokens) == fourth.text


def test_thinking_opened_by_the_prompt_and_dropped_later() -> None:
    talk = Talk(THINK_PROMPT)
    first = talk.say("hi", "hm\n</think>\n\nyo", end="<|im_end|>")
    plan = talk.plan("more")
    assert talk.vocab.text(plan.ledger.tokens) == plan.text
    assert plan.kept == len(talk.vocab.tokenize("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", False, True))
    assert plan.loss is not None
    assert "turn 1" in plan.loss.note
    assert plan.ledger.segments[0].tokens == first.ledger.tokens[: plan.kept]
    assert len(plan.ledger.segments) == 2


def test_a_new_day_is_noticed() -> None:
    talk = Talk(DATE)
    talk.say("hi", "yo", end="<|im_end|>")
    assert talk.plan("more").loss is None
    talk.template = template(DATE, datetime(2026, 3, 10))
    plan = talk.plan("more")
    assert plan.kept == len(talk.vocab.tokenize("<|im_start|>system\nToday is ", False, True))
    assert plan.loss is not None
    assert plan.loss.note == f"the template rewrote history in turn 1: the prompt differs from token {plan.kept} on"
    assert talk.vocab.text(plan.ledger.tokens) == plan.text
    assert len(plan.ledger.segments) == 2, "where the date differs no segment ends, for it is no turn's end"


def test_another_system_prompt_is_named() -> None:
    talk = Talk(CHATML, system="A")
    talk.say("hi", "abc", sampled=list(b"abc"), end="<|im_end|>")
    talk.system = "B"
    plan = talk.plan("more")
    assert plan.loss is not None
    assert plan.loss.note == f"the system prompt changed, so the conversation was read again from token {plan.kept} on"
    after = "<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"
    assert plan.ledger.segments[-1].tokens == (*b"abc", *talk.vocab.tokenize(after, False, True))
    # The ids are those sampled, but here they are prompt: this context never sampled them.
    assert not any(plan.ledger.sampled)
    assert len(plan.ledger.segments) == 2, "segments end where replies begin"


def test_replies_that_the_template_hides_are_no_trouble() -> None:
    source = "{% for m in messages if m.role == 'user' %}<|start|>{{ m.content }}{% endfor %}<|end|>"
    talk = Talk(source)
    talk.say("hi", "yo", end="</s>")
    plan = talk.plan("more")
    assert talk.vocab.text(plan.ledger.tokens) == plan.text == "<|start|>hi<|start|>more<|end|>"
    assert plan.loss is not None


def test_a_reply_that_quotes_the_next_turn_is_not_mistaken_for_it() -> None:
    talk = Talk(PLAIN)
    talk.say("hi", " x\nUser: ok\nAssistant: y", end="</s>")
    talk.say("ok", " z", end="</s>")
    plan = talk.plan("ok")
    assert plan.loss is None
    assert talk.vocab.text(plan.ledger.tokens) == (
        "User: hi\nAssistant: x\nUser: ok\nAssistant: y\nUser: ok\nAssistant: z\nUser: ok\nAssistant:"
    )


def test_words_that_look_like_our_marks_are_no_trouble() -> None:
    talk = Talk(CHATML)
    turn = talk.say("<reply~0> reply~reply", "<reply~0>ab", sampled=b"<reply~0>ab", end="<|im_end|>")
    plan = talk.plan("<reply~1>reply")
    assert (plan.kept, plan.loss) == (len(turn.ledger), None)


def test_a_vocabulary_that_puts_a_space_before_words_does_not_do_so_in_the_middle() -> None:
    class Spaced(Bytes):
        def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
            tokens = super().tokenize(text, add_special, parse_special)
            return [ord(" "), *tokens] if tokens and tokens[0] < 256 else tokens

    talk = Talk(PLAIN, Spaced())
    talk.say("hi", "yo")
    assert talk.vocab.text(talk.plan("more").ledger.tokens) == " User: hi\nAssistant:yo\nUser: more\nAssistant:"


def test_render_sees_the_switches_of_its_caller() -> None:
    chosen: ChatTemplate = template(THINK)
    plan = next_prompt(Bytes(), lambda messages: chosen.render(messages, enable_thinking=False), None, "hi")
    assert plan.text.endswith("<think>\n\n</think>\n\n")


PARTS = st.lists(st.text(st.sampled_from("ab <é😀\n{}'"), max_size=90), min_size=1, max_size=4)


@pytest.mark.parametrize("source", list(END))
@SOME
@given(parts=PARTS, system=st.none() | st.just("Be brief. " * 8), said=st.none() | st.just("Hello"))
def test_parts_change_where_segments_end_and_nothing_else(
    source: str, parts: list[str], system: str | None, said: str | None
) -> None:
    talk = Talk(source, system=None if source == INST else system)
    if said is not None:
        talk.say(said, "Well.", end=END[source])
    plan, whole = talk.plan(parts), talk.plan("".join(parts))
    assert (plan.text, plan.ledger.tokens, plan.kept) == (whole.text, whole.ledger.tokens, whole.kept)
    before = talk.turn.ledger.segments if talk.turn else ()
    assert plan.ledger.segments[: len(before)] == before
    assert all(len(segment.tokens) >= WORTH for segment in plan.ledger.segments[len(before) : -1])


@pytest.mark.parametrize("source", list(END))
def test_two_questions_about_one_document_share_all_of_it(source: str) -> None:
    document = "A fox met a dog. " * 20
    talk = Talk(source)
    talk.say("Hello", "Well.", end=END[source])
    plans = [talk.plan([document, question]) for question in ("\n\nWho?", "Where did they meet?")]
    shared = [len(plan.ledger) - len(plan.ledger.segments[-1].tokens) for plan in plans]
    assert shared[0] == shared[1]
    assert plans[0].ledger.head(shared[0]) == plans[1].ledger.head(shared[0])
    assert talk.vocab.text(plans[0].ledger.head(shared[0]).tokens).rstrip().endswith(document.rstrip())


class Counting(Bytes):
    """Counts the characters that it puts into tokens."""

    n_characters = 0

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        self.n_characters += len(text)
        return super().tokenize(text, add_special, parse_special)


@pytest.mark.parametrize("part", ["A fox met a dog. " * 5, "A fox met a dog.\n\n" * 5, "fox" * 30, "x", " "])
def test_many_parts_cost_no_more_than_few(part: str) -> None:
    talk = Talk(CHATML, Counting())
    plan = talk.plan([part] * 500)
    assert talk.vocab.n_characters < 8 * len(plan.text) + 8 * 500
    assert len(plan.ledger.segments) >= min(len(plan.text.rstrip()) // 100, 500 * (part != " "))


def test_first_messages_share_a_long_system_prompt() -> None:
    plans = [Talk(CHATML, system="Be brief. " * 20).plan(message) for message in ("Who?", "Where did they meet?")]
    assert plans[0].ledger.segments[:-1] == plans[1].ledger.segments[:-1] != ()
    assert len(Talk(CHATML, system="Be brief.").plan("Who?").ledger.segments) == 1
