"""`%llama why`: what each turn of a conversation cost, and why one of them cost what it did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipyllama.display.why import turns_table
from ipyllama.errors import BadOption

if TYPE_CHECKING:
    from ipyllama.display import View
    from ipyllama.explain import Explanation
    from ipyllama.magics.commands import LineArgs
    from ipyllama.magics.session import Session
    from ipyllama.reply import Reply


def run_why(session: Session, args: LineArgs, view: View) -> Any:
    """The table of turns and the explanation of one, of the newest answer where no turn is named."""
    from IPython.display import display

    from ipyllama.chat import Turn

    last = session.last
    if args.name is None and args.chat is None and last is not None and not isinstance(last, Turn):
        return _explained(session, last, view)  # a raw answer belongs to no conversation
    turns = session.turns(args.chat)
    if not turns:
        raise BadOption("there is no turn yet: ask something in a %%llama cell")
    asked = session.turn(args.name, args.chat) if args.name else turns[-1]
    if all(turn is not asked for turn in turns):
        turns = asked.path
    assert asked.chat is not None  # it is a turn of this session's
    numbers = [asked.chat.number(turn) for turn in turns]
    display(turns_table(turns, asked, numbers))  # type: ignore[no-untyped-call]
    return _explained(session, asked, view)


def _explained(session: Session, reply: Reply, view: View) -> Explanation | None:
    llm = session.llm_of(reply)
    if order := getattr(reply, "order", ""):  # of an answer from documents
        view.line(order)
    if reply.why is None and reply.usage.prompt and not reply.replayed:  # only a turn that was saved comes without
        view.line("an earlier kernel read it: why it cost that is not kept")
    elif reply.why is None:
        view.line("replayed: nothing was read for it" if reply.replayed else "nothing was read for it")
    elif llm is None:
        view.line(f"{reply.why} (text not shown: {reply.model} is not loaded)")
    return llm.explain(reply) if llm else None
