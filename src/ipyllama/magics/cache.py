"""`%llama cache`: look at the prefix memory, and look after it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ipyllama.display import ProgressLine, Table, View, status_table
from ipyllama.display.cache import cache_table, prefix_table
from ipyllama.display.units import format_bytes, format_limit, plural
from ipyllama.errors import BadOption
from ipyllama.magics.commands import CacheArgs, size

if TYPE_CHECKING:
    from ipyllama.ledger import Ledger
    from ipyllama.magics.session import Session
    from ipyllama.models import Progress
    from ipyllama.prefix import PrefixMemory


def run_cache(session: Session, args: CacheArgs, view: View, *, live: bool) -> Any:
    """Run one `%llama cache` line; `live` as in `run_line`. Raises a `LlamaError` for what cannot be done."""
    if args.command == "cache view":
        from ipyllama.magics.look import show

        show(session.memory.view(), live=live)
        return None
    return _COMMANDS[args.command.removeprefix("cache ")](session, args, view)


def _status(session: Session, args: CacheArgs, view: View) -> Table:
    from ipyllama.prefix.location import origin

    memory = session.memory
    llm, on = session.answering, not (session.paused or memory.paused)
    return cache_table(memory.stats(), origin(memory), on=on, model=llm.name if llm else "")


def _ls(session: Session, args: CacheArgs, view: View) -> Table:
    from ipyllama.prefix.ends import texts_of
    from ipyllama.prefix.listing import entries

    memory = session.memory
    found = entries(memory, model=args.model, sort=args.sort)
    texts = texts_of(memory, found[: args.number], session.loaded)
    place = memory.location or "RAM"
    empty = f"nothing is kept of {args.model}" if args.model else f"nothing is kept in {place} yet"
    return prefix_table(found, texts, now=time.time(), number=args.number, empty=empty)


def _rm(session: Session, args: CacheArgs, view: View) -> None:
    from ipyllama.prefix.listing import entries, remove

    memory, names = session.memory, list(args.names)
    if args.older is not None:
        oldest = time.time() - args.older
        names += [info.name for info in entries(memory) if info.used is not None and info.used < oldest]
    elif not names:
        raise BadOption("%llama cache rm needs the name of a prefix (%llama cache ls shows them), or --older AGE")
    gone = remove(memory, names)
    freed = f"{plural(gone.blocks, 'block')}, {format_bytes(gone.nbytes)}"
    view.line(f"deleted {plural(gone.prefixes, 'prefix', 'prefixes')}: {freed}")


def _pin(session: Session, args: CacheArgs, view: View) -> None:
    session.memory.pin(*args.names)
    view.line(f"{', '.join(args.names)} pinned: no limit and no age deletes it; %llama cache unpin lets it go")


def _unpin(session: Session, args: CacheArgs, view: View) -> None:
    session.memory.unpin(*args.names)
    view.line(f"{', '.join(args.names)} not pinned any more")


def _limit(session: Session, args: CacheArgs, view: View) -> None:
    memory = session.memory
    deleted = 0
    if args.name is not None:
        _need_disk(memory)
        memory.bytes_limit = size(args.name)
        deleted = memory.reduce_size()
    if args.ram is not None:
        memory.ram.reduce(args.ram)
    disk = f"{format_limit(memory.bytes_limit)} on disk, " if memory.location else ""
    changed = args.name is not None or args.ram is not None
    over = f"; {plural(deleted, 'block')} deleted that no longer had room" if deleted else ""
    view.line(f"{disk}{format_limit(memory.ram.bytes_limit)} in RAM{' in this session' if changed else ''}{over}")


def _where(session: Session, args: CacheArgs, view: View) -> Table:
    from ipyllama.prefix.location import VARIABLE, notebook, origin

    memory = session.memory
    facts = {
        "prefix states": str(memory.location or "in RAM only"),
        "chosen": origin(memory),
        "this notebook": str(notebook() or "not known"),
        **({"and looked for in": memory.remote.name} if memory.remote else {}),
        "another place": f"set {VARIABLE} before the kernel starts, or ipyllama.load(NAME, cache=FOLDER)",
        "RAM only": f"{VARIABLE}=off, or ipyllama.load(NAME, cache=False)",
    }
    return status_table(facts)


def _off(session: Session, args: CacheArgs, view: View) -> None:
    session.pause(True)
    view.line("the prefix memory is off: nothing is looked up and nothing is saved until  %llama cache on")


def _on(session: Session, args: CacheArgs, view: View) -> None:
    session.pause(False)
    view.line("the prefix memory is on")


def _verify(session: Session, args: CacheArgs, view: View) -> None:
    memory = session.memory
    _need_disk(memory)
    memory.flush()
    line = ProgressLine("reading what is kept", view, unit="blocks")
    damaged = memory.verify(_shown_in(line))
    sound = plural(memory.stats().disk_blocks, "block")
    if damaged:
        aside = f"{memory.location}/quarantine"
        line.finish(f"{sound} sound, {len(damaged)} damaged and set aside in {aside}: {_some(damaged)}")
    else:
        line.finish(f"{sound} read: all sound")


def _flush(session: Session, args: CacheArgs, view: View) -> None:
    memory = session.memory
    places = " and ".join(filter(None, memory.places))
    if not places:
        _need_disk(memory)
    in_time = memory.flush()
    said = (
        f"everything that was to be saved is in {places}"
        if in_time
        else f"{memory.places[1]} is still being written to"
    )
    view.line(memory.stats().problem or said)


def _export(session: Session, args: CacheArgs, view: View) -> None:
    prompts: list[Ledger] | None = None
    if args.cell is not None:
        prompts = [session.turn(args.cell, args.chat).ledger]
    elif args.chat is not None:
        prompts = [turn.ledger for turn in session.conversation(args.chat).all_turns]
    path = Path(_file(args)).expanduser()
    line = ProgressLine(f"writing {path.name}", view, unit="blocks")
    done = session.current.memory.export(path, prompts, _shown_in(line))
    line.finish(f"{path}: {plural(done.blocks, 'block')} written, {format_bytes(done.nbytes)}")


def _import(session: Session, args: CacheArgs, view: View) -> None:
    path = Path(_file(args)).expanduser()
    line = ProgressLine(f"reading {path.name}", view, unit="blocks")
    done = session.current.memory.import_(path, _shown_in(line))
    known = f", {done.known} here already" if done.known else ""
    refused = [f"{name}: {why}" for name, why in done.refused.items()]
    told = f", {len(refused)} refused: {_some(refused)}" if refused else ""
    line.finish(f"{path}: {plural(done.stored, 'block')} taken over{known}{told}")


def _clear(session: Session, args: CacheArgs, view: View) -> None:
    memory = session.memory
    memory.flush()
    stats = memory.stats()
    ram = f"{plural(stats.ram_blocks, 'block')} in RAM ({format_bytes(stats.ram_bytes)})"
    disk = f"{plural(stats.disk_blocks, 'block')} in {memory.location} ({format_bytes(stats.disk_bytes)})"
    what = f"{f'{disk} and ' if memory.location else ''}{ram}, and replies"
    if not args.yes:
        view.line(f"%llama cache clear --yes would delete {what}")
        return
    memory.clear()
    view.line(f"deleted {what}")


def _shown_in(line: ProgressLine) -> Progress:
    def progress(done: int, total: int | None, label: str) -> None:
        line(done, total or 0)

    return progress


def _some(texts: Sequence[str]) -> str:
    return "; ".join(texts[:_NAMED]) + " …" * (len(texts) > _NAMED)


def _need_disk(memory: PrefixMemory) -> None:
    if memory.location is None:
        raise BadOption("no prefix states are kept on disk: %llama cache where tells how to have them there")


def _file(args: CacheArgs) -> str:
    assert args.name is not None  # the parser asks for it
    return args.name


_NAMED: Final = 5
_COMMANDS: Final[dict[str, Callable[[Any, CacheArgs, View], Table | None]]] = {
    "status": _status,
    "ls": _ls,
    "rm": _rm,
    "pin": _pin,
    "unpin": _unpin,
    "limit": _limit,
    "where": _where,
    "off": _off,
    "on": _on,
    "verify": _verify,
    "flush": _flush,
    "export": _export,
    "import": _import,
    "clear": _clear,
}
