"""`%llama tree`, `goto`, `rm`, `rename`, `undo`, `history`, `copy`, `export`, `resume`: conversations."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ipyllama.display.units import format_ago, plural
from ipyllama.errors import BadOption, BadState
from ipyllama.magics.parser import positive, quoted, variable
from ipyllama.magics.session import DEFAULT_CHAT

if TYPE_CHECKING:
    from ipyllama.chat import Chat, Turn
    from ipyllama.display import View
    from ipyllama.magics.commands import LineArgs
    from ipyllama.magics.session import Session


def run_conversation(shell: Any, session: Session, args: LineArgs, view: View, *, live: bool) -> Any:
    """Run one of `CONVERSATION`; `live` as in `run_line`. Raises a `LlamaError` for what cannot be done."""
    if args.command == "tree":
        return tree(session, args, live=live)
    return CONVERSATION[args.command](shell, session, args, view)


def tree(session: Session, args: LineArgs, *, live: bool) -> Any:
    """The conversation that is meant, drawn as a tree."""
    from ipyllama.widgets.front import in_notebook

    chat = session.conversation(args.chat)
    if not live or not in_notebook():
        return chat.tree(where=True)
    from ipyllama.widgets.tree import TreeView

    return TreeView(chat, cells=True)


def _goto(shell: Any, session: Session, args: LineArgs, view: View) -> None:
    chat = session.conversation(args.chat)
    turn = None if args.name == "none" else chat[args.name or ""]
    before = chat.head
    chat.goto(turn)
    there = f"continues from {_called(chat, turn)}" if turn else "begins at the beginning"
    same = (before.id if before else None) == (turn.id if turn else None)
    view.line(f"{next_cell(chat.name)} {there}" + (" already" if same else f"; {_undo_line(args)} goes back"))


def _rm(shell: Any, session: Session, args: LineArgs, view: View) -> None:
    chat = session.conversation(args.chat)
    turn = chat[args.name or ""]
    called = _called(chat, turn)
    more = len(chat.remove(turn)) - 1
    others = f" and {plural(more, 'turn')} that continued it" if more else ""
    view.line(f"{called}{others} forgotten; {_undo_line(args)} brings {'them' if more else 'it'} back")


def _rename(shell: Any, session: Session, args: LineArgs, view: View) -> None:
    chat = session.conversation(args.chat)
    if len(args.words) != 2:
        raise BadOption("a turn and its new name are needed, as in %llama rename 3 draft")
    old, new = args.words
    turn = chat.rename(old, None if new == "none" else new)
    view.line(f"turn {chat.number(turn)} is {f'called {turn.name}' if turn.name else 'without a name'} now")


def _undo(shell: Any, session: Session, args: LineArgs, view: View) -> Any:
    chat = session.conversation(args.chat)
    if not chat.undo():
        raise BadOption("there is nothing to undo")
    return chat.tree()


def _history(shell: Any, session: Session, args: LineArgs, view: View) -> Any:
    return session.conversation(args.chat)


def _copy(shell: Any, session: Session, args: LineArgs, view: View) -> None:
    name = variable(args.name or "")
    messages = session.conversation(args.chat).messages
    shell.user_ns[name] = messages
    view.line(f"{name} holds {plural(len(messages), 'message')}, as OpenAI-style dicts")


def _export(shell: Any, session: Session, args: LineArgs, view: View) -> None:
    path = Path(args.name or "").expanduser()
    chat = session.conversation(args.chat)
    chat.export(path)
    view.line(f"{plural(len(chat), 'turn')} written to {path}")


def _resume(shell: Any, session: Session, args: LineArgs, view: View) -> Any:
    from ipyllama.prefix.location import VARIABLE, chats_location

    nth = positive(args.name or "1")
    chat = session.begin(session.current, args.chat)
    if chats_location() is None:
        raise BadOption(f"conversations are not kept here: {VARIABLE} has to name a folder, or be unset")
    try:
        saved = chat.resume(nth)
    except BadState as error:
        raise BadOption(
            f"{error}: the conversation begins anew, or %llama resume {nth + 1} takes an older one"
        ) from None
    if saved is None:
        older = " that is so old" if nth > 1 else ""
        raise BadOption(
            f"there is no saved conversation '{chat.name}' of this notebook{older}: ask something in a cell"
        )
    session.last = saved.head
    other = f" with {saved.model}" if saved.model != chat.llm.name else ""
    ago = format_ago(max(0.0, time.time() - saved.when))
    line = f"resumed what was left {ago}{other}: {next_cell(chat.name)} continues it"
    if saved.reread:
        line += f"; {chat.llm.name} has other weights than then: what was said is kept, and read anew from its words"
    view.line(line + (f" (an older one: %llama resume {nth + 1})" if saved.n_before else ""))
    return chat.tree()


def next_cell(chat: str) -> str:
    """The cell that goes on with a conversation."""
    return "the next cell" if chat == DEFAULT_CHAT else f"the next cell with --chat {quoted(chat)}"


def _undo_line(args: LineArgs) -> str:
    return f"%llama undo --chat {quoted(args.chat)}" if args.chat else "%llama undo"


def _called(chat: Chat, turn: Turn) -> str:
    return f"turn {chat.number(turn)}" + (f" ({turn.name})" if turn.name else "")


CONVERSATION: Final[dict[str, Callable[[Any, Session, LineArgs, View], Any]]] = {
    "goto": _goto,
    "rm": _rm,
    "rename": _rename,
    "undo": _undo,
    "history": _history,
    "copy": _copy,
    "export": _export,
    "resume": _resume,
}
