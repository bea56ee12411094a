"""`%%llama`: parse the cell, ask, show."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ipyllama.display import AnswersStream, ReplyStream, make_view
from ipyllama.display.views import NotebookView, display_here
from ipyllama.errors import BadOption, Interrupted
from ipyllama.magics.body import insert_parts, insert_variables
from ipyllama.magics.look import show
from ipyllama.magics.options import cell_help, parse_cell_line
from ipyllama.magics.rag import show_sources, start_rag
from ipyllama.options import GenerateOptions, combinations, samples
from ipyllama.widgets.front import next_slot, running_cell

if TYPE_CHECKING:
    from ipyllama.chat import Chat
    from ipyllama.display import View
    from ipyllama.engine import Job
    from ipyllama.magics.config import Llama
    from ipyllama.magics.options import CellArgs
    from ipyllama.magics.session import Session
    from ipyllama.reply import Reply
    from ipyllama.widgets.front import FrontEnd
    from ipyllama.widgets.live import LiveView, Show


ALTERNATIVES: Final = 5
"""For each token that `--show tokens` shows, where `--logprobs` does not say how many."""


def run_cell(shell: Any, session: Session, config: Llama, front: FrontEnd, line: str, body: str) -> None:
    """Answer one cell. What goes wrong raises a `LlamaError`; Stop raises `Interrupted` with the partial reply."""
    args = parse_cell_line(line)
    if args.help:
        print(cell_help())  # noqa: T201 - help is the output of this cell
        return
    if not body.strip():
        raise BadOption("the cell is empty: write a prompt below the first line (%%llama? shows examples)")
    parts, notes = insert_parts(body, _variables(shell))
    text = "".join(parts)
    system, more = insert_variables(args.system or "", _variables(shell))
    view = _view(shell, args, config, front)
    asked = None
    with _ended(view):
        llm = session.find_or_load(args.model, view) if args.model else session.current
        options, about_options = _options(shell, args, config)
        options |= {"notes": (*notes, *more, *about_options), "fresh": args.fresh or not config.replay}
        if args.rag:
            asked = start_rag(llm, _variables(shell), args, text.strip(), options, view)
            job = asked.job
        elif args.raw:
            job = llm.start(text.rstrip("\n"), **options)
        else:
            chat = session.chat(llm, args.chat, system or config.system, anew=args.reset)
            where: dict[str, Any] = {
                "cell": _owner(shell, session),
                "name": args.name,
                "system": system or None,
                "think": args.think,
                "on_full": args.on_full or config.on_full,
                "wait": partial(_wait_for_summary, view),
            }
            if args.after is not None:
                where["after"] = None if args.after == "none" else args.after
            if args.samples or args.sweep:
                _answer_together(shell, session, args, (chat, _stripped(parts), where, options), (view, config))
                return
            job = chat.start(_stripped(parts), **where, **options)
    stream = ReplyStream(view, stream=args.stream and config.stream)
    try:
        session.last = job.run(stream.feed)
        if asked is not None:
            session.last = show_sources(asked, session.last, quiet=args.quiet)
        _store(shell, args.out, session.last)
        _look(args, config, session.last)
    except Interrupted as interrupted:
        session.last = interrupted.reply
        if asked is not None and session.last is not None and session.last.finish_reason == "interrupted":
            show_sources(asked, session.last, quiet=args.quiet)
        _store(shell, args.out, session.last)
        _look(args, config, session.last)
        raise
    except BaseException:
        stream.flush()
        raise


@contextmanager
def _ended(view: View) -> Iterator[None]:
    """What was shown of an answer that cannot be begun stays as it is: nothing waits for more of it."""
    try:
        yield
    except BaseException:
        view.end()
        raise


def _options(shell: Any, args: CellArgs, config: Llama) -> tuple[dict[str, Any], tuple[str, ...]]:
    """How the answer is sampled, and notes."""
    options: dict[str, Any] = config.sampling() | dict(args.overrides)
    notes: tuple[str, ...] = ()
    if args.show and options.get("logprobs") is None:
        options["logprobs"] = ALTERNATIVES
    if args.overrides.get("grammar"):
        options["grammar"], notes = _grammar(args.overrides["grammar"], _variables(shell))
    if options["reuse"] == "fused" and not args.rag:
        options["reuse"] = "exact"  # it is a default for answers from documents
    return options, notes


def _view(shell: Any, args: CellArgs, config: Llama, front: FrontEnd) -> View:
    """Where the answer is shown: live where the front end can, several answers and whole ones in the simple way."""
    simple = args.plain or args.quiet or args.samples or args.sweep or not args.stream
    if simple or not config.stream or (front.live is None and not front.is_asked):
        return make_view(shell, quiet=args.quiet)
    from ipyllama.widgets.live import LateView, LiveView

    slot = next_slot()

    def begin(show: Show) -> LiveView | None:
        return LiveView(live.send, slot, show) if (live := front.live) is not None else None

    return begin(display_here) or LateView(NotebookView(display_here), begin)


def _wait_for_summary(view: View, job: Job) -> Reply:
    view.line("the context is full: summing up the oldest turns first")
    return job.result()


def _answer_together(
    shell: Any,
    session: Session,
    args: CellArgs,
    asked: tuple[Chat, list[str], dict[str, Any], dict[str, Any]],
    shown: tuple[View, Llama],
) -> None:
    """Several answers to one message, beside each other; the variable holds a list of them."""
    chat, text, where, options = asked
    view, config = shown
    notes = options.pop("notes")
    options.pop("fresh")  # several answers at once are always computed
    if args.samples:
        variants = samples(GenerateOptions().replace_from(options), args.samples)
        labels = [f"seed {each.seed}" for each in variants]
    else:
        lists = dict(args.sweep)
        variants = combinations(options | lists)
        labels = [", ".join(f"{name.replace('_', ' ')} {getattr(each, name)}" for name in lists) for each in variants]
    stream = AnswersStream(view, labels, stream=args.stream and config.stream)
    from ipyllama.engine import gather  # not before a model is loaded

    try:
        replies = gather(chat.start_many(text, variants, notes=notes, **where), stream.feed)
    except Interrupted as interrupted:
        session.last = interrupted.reply
        replies = stream.stop()
        if args.out is not None and replies:
            shell.user_ns[args.out] = replies
        raise
    stream.finish(replies)
    session.last = replies[0]
    if args.out is not None:
        shell.user_ns[args.out] = replies


def _stripped(parts: list[str]) -> list[str]:
    """The parts of a text without the white space around it."""
    text = "".join(parts)
    start, end = len(text) - len(text.lstrip()), len(text.rstrip())
    cuts = [0, *accumulate(map(len, parts))]
    return [text[max(start, a) : min(end, b)] for a, b in pairwise(cuts)]


def _variables(shell: Any) -> dict[str, Any]:
    """The user's own variables, without what IPython put among them."""
    hidden = shell.user_ns_hidden
    return {name: value for name, value in shell.user_ns.items() if name not in hidden or hidden[name] is not value}


def _grammar(given: str, variables: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    """The text of a grammar: of a variable where `{{name}}` is given, else of a file; and notes."""
    if "{{" in given:
        return insert_variables(given, variables)
    try:
        return Path(given).expanduser().read_text(encoding="utf-8"), ()
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a name with NUL
        why = (error.strerror if isinstance(error, OSError) else None) or error
        raise BadOption(f"--grammar: {given} cannot be read ({why})") from None


def _look(args: CellArgs, config: Llama, reply: Reply | None) -> None:
    """Show the tokens, where that was asked for and there are some."""
    if args.show and not args.quiet and reply is not None and reply.logprobs:
        show(reply.token_view(), live=config.widgets and not args.plain)


def _store(shell: Any, name: str | None, reply: Reply | None) -> None:
    if name is not None and reply is not None:
        shell.user_ns[name] = reply


def _owner(shell: Any, session: Session) -> str | None:
    """The cell that owns the turn: the running one, None where the front end gives no id."""
    cell = running_cell(shell)
    return None if cell is None else session.owner(cell, shell.parent_header.get("header", {}).get("msg_id"))
