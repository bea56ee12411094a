"""The conversation tree: cells own turns, the head moves, forks and re-runs go where a reader expects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from unit.chat_samples import CHATML, THINK, Bytes, template

from ipyllama.chat import Chat, ChatTemplate, Turn
from ipyllama.chat.record import record
from ipyllama.chat.tree import Ask, Tree
from ipyllama.chat.turn import Place
from ipyllama.display.conversation import said as shown
from ipyllama.display.history import history_bundle
from ipyllama.engine import Shift
from ipyllama.errors import BadOption, DecodeError, TemplateError, UnknownTurn
from ipyllama.ledger import Ledger
from ipyllama.options import GenerateOptions
from ipyllama.reply import Finished, FinishReason, Reply

Wrap = Callable[[Reply, Ledger], Reply]


class Told:
    """A job whose answer is known; it is wrapped when the job is waited for."""

    def __init__(self, finish: Callable[[], Reply]) -> None:
        self._finish = finish

    def __iter__(self) -> Iterator[Finished]:
        yield Finished(self.result())

    def result(self) -> Reply:
        return self._finish()


class Parrot:
    """A model that answers with the last word of the prompt, in the way that it is told to end."""

    name = "parrot"
    weights = "feathers"
    n_ctx = 100_000
    closed = False

    def __init__(self, source: str | None = CHATML) -> None:
        self.vocab = Bytes()
        self.template: ChatTemplate | None = template(source) if source else None
        self.end: FinishReason = "stop"
        self.fails = self.fresh = False
        self.options: list[GenerateOptions] = []
        self.prompts: list[str] = []

    def standing(self) -> Parrot:
        return self

    def generate(
        self,
        ledger: Ledger,
        options: GenerateOptions,
        notes: tuple[str, ...] = (),
        wrap: Wrap = lambda reply, ledger: reply,
        *,
        fresh: bool = False,
        shift: Shift | None = None,
        caller: object | None = None,
    ) -> Any:
        self.fresh = fresh
        self.options.append(options)
        self.prompts.append(self.vocab.text(ledger.tokens))
        word = self.prompts[-1].split("<|im_end|>")[-2].split()[-1].upper()
        end, fails = self.end, self.fails

        def finish() -> Reply:
            if fails:
                raise DecodeError("no luck")
            text = "" if end == "interrupted" and not word.startswith("KEEP") else word
            tokens = [
                *self.vocab.tokenize(text, False, False),
                *([self.vocab.special("<|im_end|>")] if end == "stop" else []),
            ]
            reply = Reply(text, tuple(tokens), end, notes=notes)
            return wrap(reply, ledger.append_sampled(tokens))

        return Told(finish)


@pytest.fixture
def llm() -> Parrot:
    return Parrot()


@pytest.fixture
def chat(llm: Parrot) -> Chat:
    return Chat(llm)


def said(chat: Chat) -> list[str]:
    return [turn.message for turn in chat.turns]


def test_a_turn_is_a_reply_that_knows_its_place(chat: Chat) -> None:
    first = chat.ask("one")
    second = chat.ask("two")
    assert isinstance(second, Reply)
    assert (second.text, second.message, second.parent, str(second)) == ("TWO", "two", first, "TWO")
    assert second.path == (first, second) == chat.turns
    assert chat.head is second
    assert second.ledger.segments[: len(first.ledger.segments)] == first.ledger.segments


def test_the_parent_of_a_turn_has_its_present_name(chat: Chat) -> None:
    """So have all before it, also where another turn took the name, and after undo."""
    chat.ask("one", name="start")
    chat.ask("two", name="middle")
    held = chat.ask("three")
    chat.rename("start", "origin")
    assert [turn.name for turn in chat.head.path] == ["origin", "middle", None]
    assert [turn.name for turn in chat.ask("four").path] == ["origin", "middle", None, None]
    chat.ask("aside", name="middle", after=None, cell="x")
    assert [turn.name for turn in chat["4"].path] == ["origin", None, None, None]
    assert [turn.name for turn in held.path] == ["start", "middle", None], "what a variable holds stays as it was"
    for _ in range(3):
        chat.undo()
    assert chat.head == held
    assert [turn.name for turn in chat.head.path] == ["start", "middle", None]


def test_answers_to_one_question_are_taken_back_together(llm: Parrot) -> None:
    tree = Tree()
    places = [Place(message="why?", sample=n, n_samples=3, name=(n and f"why.{n + 1}") or "why") for n in range(3)]
    for _ in range(2):
        ask = Ask()
        for place in (places[2], places[0], places[1]):  # in the order in which they end
            record(tree, place, None, Reply("x", (1,)), Ledger().append_sampled((1,)), ask=ask)
        assert [turn.sample for turn in tree.turns] == [0, 1, 2]
        assert {turn.run for turn in tree.turns} == {1}
    record(tree, places[0], None, Reply("y", (2,)), Ledger())
    record(tree, replace(places[0], n_samples=1), None, Reply("z", (3,)), Ledger())
    assert [turn.text for turn in tree.turns] == ["z"], "fewer answers leave none behind, as in a cell"
    assert tree.undo()
    assert tree.undo()
    assert [turn.text for turn in tree.turns] == ["x"] * 3
    assert tree.undo()
    assert len(tree.turns) == 3
    assert tree.undo()
    assert (tree.turns, tree.head) == ((), None)
    assert not tree.undo()


def test_a_change_that_is_interrupted_has_not_been_made(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C may fall anywhere in it."""
    one, two = chat.ask("one"), chat.ask("two")

    def interrupted(*arguments: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(Tree, "newest", interrupted)
    with pytest.raises(KeyboardInterrupt):
        chat.remove(two)
    monkeypatch.undo()
    assert chat.path() == (one, two)
    chat.undo()
    assert chat.path() == (one,)


def test_turns_of_another_conversation_and_removed_ones_are_refused(llm: Parrot, chat: Chat) -> None:
    chat.ask("one")
    elsewhere = Chat(llm, name="aside").ask("two")
    for change in (chat.goto, chat.remove, chat.again, lambda turn: chat.rename(turn, "x")):
        with pytest.raises(UnknownTurn, match="of another conversation, 'aside'"):
            change(elsewhere)
    with pytest.raises(UnknownTurn, match="of another conversation"):
        chat.ask("three", after=elsewhere)
    gone = chat.ask("three")
    chat.remove(gone)
    for change in (chat.goto, chat.remove, chat.fork, lambda turn: turn.ask("on")):
        with pytest.raises(UnknownTurn, match="undo brings back"):
            change(gone)
    chat.undo()
    assert chat.goto(gone) is None
    assert [turn.message for turn in chat.fork().ask("four", after=gone).path] == ["one", "three", "four"]


def test_what_was_removed_while_its_child_was_answered_is_left_out_from_then_on(chat: Chat) -> None:
    one = chat.ask("one")
    chat.ask("two", cell="a")
    job = chat.start("three", cell="b")
    chat.remove(chat["a"])
    orphan = job.result()
    assert (chat.head, chat.stale) == (orphan, (orphan,))
    assert chat.again(orphan).path[0] == one
    assert [turn.message for turn in chat.ask("three", cell="b").path] == ["one", "three"]
    assert chat.stale == ()


def test_a_replaced_turn_stands_for_what_came_in_its_place(chat: Chat) -> None:
    held = chat.ask("one", cell="a")
    newest = chat.ask("uno", cell="a")
    chat.ask("two")
    chat.goto(held)
    assert chat.head == newest
    assert chat.rename(held, "x").message == "uno"
    assert [turn.message for turn in chat.remove(held)] == ["uno", "two"]


@pytest.mark.parametrize("where", [{"cell": 5}, {"system": 5}, {"name": 5}, {"after": 5}, {"on_full": 5}])
def test_what_is_no_text_is_refused(chat: Chat, where: dict[str, Any]) -> None:
    with pytest.raises(BadOption):
        chat.ask("one", **where)
    with pytest.raises(BadOption, match="a turn or what it is called"):
        chat.goto(5)


@pytest.mark.parametrize("name", ["", " ", "7", "#7", "none", " a", "a ", "a" * 81, "a\nb", "\u202ea", "\ud800"])
def test_what_cannot_be_a_name(chat: Chat, name: str) -> None:
    with pytest.raises(BadOption, match="cannot be the name of a turn") as caught:
        chat.ask("one", name=name)
    assert str(caught.value).encode(), "it can be shown"


def test_messages_are_openai_style(llm: Parrot) -> None:
    chat = Chat(llm, system="Be brief.")
    assert chat.messages == [{"role": "system", "content": "Be brief."}]
    chat.ask("one")
    assert chat.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "ONE"},
    ]


def test_options_reach_the_model_and_unknown_ones_do_not(chat: Chat, llm: Parrot) -> None:
    chat.ask("one", max_tokens=7, stop="x")
    assert llm.options[-1] == GenerateOptions(max_tokens=7, stop=("x",))
    with pytest.raises(BadOption, match="did you mean 'temperature'"):
        chat.ask("two", temprature=0)
    assert said(chat) == ["one"]


def test_template_switches_hold_for_the_whole_chat() -> None:
    llm = Parrot(THINK)
    chat = Chat(llm, enable_thinking=False)
    chat.ask("one")
    chat.ask("two")
    assert all(prompt.endswith("<think>\n\n</think>\n\n") for prompt in llm.prompts)


def test_the_same_cell_answers_again_from_the_same_point(chat: Chat) -> None:
    chat.ask("one", cell="a")
    old = chat.ask("two", cell="b")
    new = chat.ask("deux", cell="b")
    assert said(chat) == ["one", "deux"]
    assert chat.head is new
    assert new.parent is old.parent
    assert old not in chat.all_turns


def test_without_a_cell_every_execution_is_a_new_turn(chat: Chat) -> None:
    chat.ask("one")
    chat.ask("one")
    assert said(chat) == ["one", "one"]


def test_what_depended_on_a_replaced_turn_is_stale_and_named(chat: Chat) -> None:
    chat.ask("one", cell="a")
    two = chat.ask("two", cell="b")
    three = chat.ask("three " + "long " * 20, cell="c")
    new = chat.ask("un", cell="a")
    assert chat.stale == (two, three)
    assert len(new.notes) == 1
    assert '"two", "three long' in new.notes[0]
    assert chat.head is new
    assert chat.head in chat.all_turns
    assert chat.ask("quatre", cell="d").notes == ()


def test_what_was_stale_once_is_not_said_in_a_view_of_the_conversation(chat: Chat) -> None:
    chat.ask("one", cell="a")
    chat.ask("two", cell="b")
    assert chat.ask("un", cell="a").notes
    chat.ask("two", cell="b")
    assert [view.turn.notes for view in shown(chat, chat.head)] == [(), ()]


def test_what_changes_nothing_is_no_step_of_undo(chat: Chat) -> None:
    chat.goto(None)
    assert not chat.undo()
    one = chat.ask("one", name="first")
    chat.ask("two")
    chat.goto(one)
    chat.goto("first")
    assert chat.rename("first", "first").name == "first"
    chat.undo()
    assert said(chat) == ["one", "two"]


def test_running_the_cells_again_in_order_makes_them_current(chat: Chat) -> None:
    for message, cell in (("one", "a"), ("two", "b"), ("un", "a"), ("two", "b")):
        chat.ask(message, cell=cell)
    assert said(chat) == ["un", "two"]
    assert chat.stale == ()
    assert len(chat.all_turns) == 2


def test_the_same_answer_again_makes_nothing_stale(chat: Chat) -> None:
    chat.ask("one", cell="a")
    chat.ask("two", cell="b")
    again = chat.ask("one", cell="a")
    assert chat.stale == ()
    assert again.notes == ()


def test_a_new_cell_continues_from_the_turn_that_ran_last(chat: Chat) -> None:
    chat.ask("one", cell="a")
    chat.ask("two", cell="b")
    chat.ask("un", cell="a")
    assert [turn.message for turn in chat.ask("three", cell="c").path] == ["un", "three"]


def test_after_forks_and_goes_to_the_newest_answer(chat: Chat) -> None:
    one = chat.ask("one", cell="a")
    chat.ask("two", cell="b")
    assert [turn.message for turn in chat.ask("drei", cell="c", after=one).path] == ["one", "drei"]
    chat.ask("un", cell="a")
    assert [turn.message for turn in chat.ask("vier", after=one).path] == ["un", "vier"]
    assert chat.ask("new", after=None).parent is None
    assert len(chat.all_turns) == 5


def test_an_interrupted_turn_is_kept_and_continued(chat: Chat, llm: Parrot) -> None:
    llm.end = "interrupted"
    half = chat.ask("keepsake")
    llm.end = "stop"
    assert chat.head is half
    assert half.finish_reason == "interrupted"
    chat.ask("more")
    assert "KEEPSAKE<|im_end|>\n<|im_start|>user\nmore" in llm.prompts[-1]


def test_interrupted_before_the_first_token_leaves_the_chat_as_it_was(chat: Chat, llm: Parrot) -> None:
    one = chat.ask("one", cell="a")
    llm.end = "interrupted"
    nothing = chat.ask("two", cell="b")
    assert isinstance(nothing, Turn)
    assert chat.turns == (one,)


def test_a_failure_leaves_the_chat_as_it_was(chat: Chat, llm: Parrot) -> None:
    one = chat.ask("one", cell="a")
    llm.fails = True
    for message, cell in (("un", "a"), ("two", "b")):
        with pytest.raises(DecodeError):
            chat.ask(message, cell=cell)
    assert chat.all_turns == (one,)
    assert chat.head is one


def test_reset_forgets_turns_and_late_answers(llm: Parrot) -> None:
    chat = Chat(llm, system="S")
    chat.ask("one", cell="a")
    late = chat.start("two", cell="b")
    chat.reset()
    late.result()
    assert (chat.head, chat.turns, chat.all_turns, chat.system) == (None, (), (), "S")
    assert chat.ask("three", cell="a").parent is None


def test_another_system_prompt_holds_from_the_beginning_and_is_inherited(chat: Chat, llm: Parrot) -> None:
    one = chat.ask("one")
    two = chat.ask("two", system="Be loud.")
    assert llm.prompts[-1].startswith("<|im_start|>system\nBe loud.<|im_end|>\n<|im_start|>user\none<|im_end|>")
    assert len(two.notes) == 1
    assert two.notes[0].startswith("the system prompt changed")
    three = chat.ask("three")
    assert (three.system, three.notes, chat.system) == ("Be loud.", (), "Be loud.")
    assert (one.system, said(chat)) == (None, ["one", "two", "three"])


def test_a_model_without_template_says_what_to_do(llm: Parrot) -> None:
    llm.template = None
    with pytest.raises(TemplateError, match="parrot has no chat template: use --raw"):
        Chat(llm).ask("one")


def test_shows_itself_as_text_and_html(chat: Chat) -> None:
    chat.ask("<b>one")
    shown = chat._repr_mimebundle_()
    assert repr(chat) == "<Chat 'default' with parrot: 1 turn>"
    assert shown["text/plain"] == "Chat 'default' with parrot: 1 turn\n\nuser: <b>one\n\nassistant: <B>ONE"
    assert "&lt;b&gt;one" in shown["text/html"]
    assert "<b>one" not in shown["text/html"].lower().replace("&lt;b&gt;one", "")
    assert "segments" not in repr(chat.head)


def test_what_was_said_steers_no_terminal_and_keeps_its_lines() -> None:
    said = [
        {"role": "user", "content": "one\n  two\x1b[31m</script>"},
        {"role": "assistant", "content": "<think>hm hm</think>a\x1b[2J"},
    ]
    shown = history_bundle("Chat", said)
    assert "\x1b" not in shown["text/plain"]
    assert "one\n  two␛[31m</script>" in shown["text/plain"]
    assert "hm hm" not in shown["text/plain"]
    assert "white-space:pre-wrap" in shown["text/html"]
    assert "</script>" not in shown["text/html"]
    assert "<summary" in shown["text/html"]


def test_a_head_that_loses_its_name_is_the_head_still() -> None:
    chat = Chat(Parrot())
    chat.ask("one")
    second = chat.ask("two", name="y")
    chat.rename("1", "y")
    assert chat.head.id == second.id
    assert chat.head.name is None
    assert chat.head is chat.all_turns[1]


def test_samples_are_numbered_in_their_order_whichever_ends_first() -> None:
    tree, first = Tree(), Chat(Parrot()).ask("one")
    for sample in (2, 0, 1):
        tree.add(replace(first, sample=sample, n_samples=3, id=f"{sample:016}"))
    assert [turn.sample for turn in tree.turns] == [0, 1, 2]
    assert tree.head is tree.turns[0]
