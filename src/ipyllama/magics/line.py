"""`%llama`: the subcommands."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ipyllama.display import ModelRow, Table, View, make_view, models_table, status_table
from ipyllama.display.units import format_bytes, format_count, plural
from ipyllama.errors import BadOption
from ipyllama.magics.cache import run_cache
from ipyllama.magics.commands import CacheArgs, LineArgs, LookArgs, RagArgs, line_help, parse_line
from ipyllama.magics.conversation import CONVERSATION, next_cell, run_conversation
from ipyllama.magics.look import run_look
from ipyllama.magics.panel import run_panel
from ipyllama.magics.rag import run_rag
from ipyllama.magics.why import run_why

if TYPE_CHECKING:
    from ipyllama.llm import LLM
    from ipyllama.magics.config import Llama
    from ipyllama.magics.session import Session


def run_line(shell: Any, session: Session, config: Llama, line: str) -> None:
    """Run one `%llama` line. Raises a `LlamaError` for what cannot be done."""
    args = parse_line(line)
    if args.help or args.command == "help":
        print(line_help(args.command if args.help else None))  # noqa: T201 - help is the output
        return
    view = make_view(shell)
    if isinstance(args, LookArgs):
        run_look(session, args, view, live=config.widgets)
        return
    if args.command == "chat":
        run_panel(session, config, args)
        return
    if isinstance(args, RagArgs):
        shown = run_rag(shell.user_ns, args, view)
    elif isinstance(args, CacheArgs):
        shown = run_cache(session, args, view, live=config.widgets)
    elif args.command == "tree" or args.command in CONVERSATION:
        shown = run_conversation(shell, session, args, view, live=config.widgets)
    else:
        shown = _COMMANDS[args.command](session, args, view)
    if shown is not None:
        from IPython.display import display

        display(shown)  # type: ignore[no-untyped-call]


def _load(session: Session, args: LineArgs, view: View) -> None:
    chosen = {"n_ctx": args.n_ctx, "n_threads": args.threads}
    session.use(session.load(_name(args), view, **{key: value for key, value in chosen.items() if value is not None}))


def _use(session: Session, args: LineArgs, view: View) -> None:
    llm = session.find_or_load(_name(args), view)
    session.use(llm)
    view.line(f"{llm.name} answers now")


def _unload(session: Session, args: LineArgs, view: View) -> None:
    llm = session.unload(args.name)
    back = "an index that embeds with it loads it again"
    if llm.can_generate:
        back = f"%llama load {llm.name} brings it back"
    view.line(f"{llm.name} is unloaded and its memory is free; {back}")


def _models(session: Session, args: LineArgs, view: View) -> Table:
    from ipyllama.models import list_models, not_fetched

    loaded = {llm.path.resolve(): llm for llm in session.loaded}
    rows = []
    for entry in list_models():
        llm = loaded.pop(entry.path.resolve(), None)
        where = f"{entry.source}: {entry.problem}" if entry.problem else entry.source
        rows.append(
            ModelRow(
                name=entry.name,
                size=entry.size,
                quantisation=entry.quantisation,
                n_ctx=entry.n_ctx_train or None,
                fits=entry.fits if entry.fit else None,
                where=f"{where}, loaded" if llm else where,
                in_use=session.answers(llm),
            )
        )
    for path, llm in loaded.items():  # from a folder where nobody looks for models
        size, quantisation = path.stat().st_size, llm.quantisation
        rows.append(
            ModelRow(
                llm.name, size, quantisation, llm.n_ctx_train, True, f"{path.parent}, loaded", session.answers(llm)
            )
        )
    for model in not_fetched():
        rows.append(ModelRow(model.name, model.size, "", None, None, f"not here yet: %llama load {model.name}"))
    return models_table(rows)


def _info(session: Session, args: LineArgs, view: View) -> Table:
    from ipyllama.info import inspect

    return inspect(_name(args)).table(args.n_ctx)


def _status(session: Session, args: LineArgs, view: View) -> Table | None:
    others = ", ".join(llm.name for llm in session.loaded if not session.answers(llm))
    if session.answering is None:
        state, also = ("no model answers", f"; also loaded: {others}") if others else ("no model is loaded", "")
        view.line(f"{state}: %llama load smollm2 loads one, %llama models lists others{also}")
        return None
    facts: dict[str, object] = dict(_facts(session, session.current))
    if others:
        facts["also loaded"] = others
    return status_table(facts, session.current.name)


def _facts(session: Session, llm: LLM) -> dict[str, object]:
    found = llm.capability_now
    capability = "not known yet: an answer is being written" if found is None else str(found)
    facts: dict[str, object] = {"model": llm.description, "file": llm.path}
    if llm.can_generate:
        facts["context"] = f"{format_count(llm.n_live)} of {format_count(llm.n_ctx)} tokens in use"
        facts["kept in RAM"] = format_bytes(llm.memory.ram.nbytes)
    else:
        facts["texts"] = f"up to {format_count(llm.text_limit)} tokens each"
    chats = [f"{name} ({plural(turns, 'turn')})" for name, turns in session.chats_of(llm).items()]
    return facts | {
        "capability": capability,
        "threads": llm.n_threads,
        "answers": f"{llm.n_busy} running or waiting",
        "conversations": ", ".join(chats) or "none",
    }


def _kv(session: Session, args: LineArgs, view: View) -> Any:
    return session.current.kv_view()


def _reset(session: Session, args: LineArgs, view: View) -> None:
    name, turns = session.reset(args.chat)
    forgotten = f"forgot {plural(turns, 'turn')}" if turns else "there was nothing to forget"
    view.line(f"{forgotten}: {next_cell(name)} begins a new conversation")


def _name(args: LineArgs) -> str:
    if not args.name:
        raise BadOption(f"%llama {args.command} needs the name of a model: %llama models lists what is here")
    return args.name


_COMMANDS: Final[dict[str, Callable[[Session, LineArgs, View], Any]]] = {
    "load": _load,
    "use": _use,
    "unload": _unload,
    "models": _models,
    "info": _info,
    "status": _status,
    "kv": _kv,
    "reset": _reset,
    "why": run_why,
}
