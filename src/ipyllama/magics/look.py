"""`%llama tokens`, `branch`, `sample`: how likely tokens were, what else could have been, and what sampling does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipyllama.display import ReplyStream
from ipyllama.errors import BadOption, Interrupted

if TYPE_CHECKING:
    from ipyllama.chat import Turn
    from ipyllama.display import View
    from ipyllama.magics.commands import LookArgs
    from ipyllama.magics.session import Session
    from ipyllama.reply import Reply
    from ipyllama.widgets.view import WidgetView


def run_look(session: Session, args: LookArgs, view: View, *, live: bool) -> None:
    """Run one of `commands.LOOKING`. Raises a `LlamaError` for what cannot be done."""
    if args.command == "tokens":
        show(_reply(session, args.name, args.chat).token_view(), live=live)
    elif args.command == "branch":
        _branch(session, args, view)
    else:
        show(_sample(session, args), live=live)


def show(view: WidgetView, *, live: bool) -> None:
    """Show a view, or only its static form."""
    from IPython.display import display

    display(*([view] if live else [view.bundle()]), raw=not live)  # type: ignore[no-untyped-call]


def _branch(session: Session, args: LookArgs, view: View) -> None:
    if len(args.words) != 3 or not args.words[1].isdecimal():
        raise BadOption('a turn, the number of a token and another one are needed, as in %llama branch 2 0 " Well"')
    name, at, text = args.words
    chat = session.conversation(args.chat)
    token = int(text) if text.isdecimal() else text
    job = chat.start_branch(name, int(at), token, name=args.called, **args.sampling)
    stream = ReplyStream(view)
    try:
        session.last = job.run(stream.feed)
    except Interrupted as interrupted:
        session.last = interrupted.reply
        raise
    except BaseException:
        stream.flush()
        raise


def _sample(session: Session, args: LookArgs) -> WidgetView:
    from ipyllama.widgets.lab import LabView

    if args.name is not None and (args.turn is not None or args.at):
        raise BadOption("--turn and --at tell a place in an answer: leave them out, or the text")
    prompt = args.name if args.name is not None else _turn(session, args.turn, args.chat)
    lab = session.current.sampling_lab(prompt, at=args.at, **args.sampling)
    if args.draw:
        lab.draw(args.draw)
    return LabView(lab)


def _reply(session: Session, name: str | None, chat: str | None) -> Reply:
    """The turn that is meant, or the newest answer, which need not be a turn."""
    if name is None and chat is None and session.last is not None:
        return session.last
    return _turn(session, name, chat)


def _turn(session: Session, name: str | None, chat: str | None) -> Turn:
    if name is not None:
        return session.turn(name, chat)
    turns = session.turns(chat)
    if not turns:
        raise BadOption("there is no turn yet: ask something in a %%llama cell")
    return turns[-1]
