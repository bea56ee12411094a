"""Every subcommand of `%llama`, declared once: parsing, help and completion all read this table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ipyllama.errors import BadOption
from ipyllama.magics.help import render_group_help, render_line_help
from ipyllama.magics.parser import Command, Option, OptionParser, number, positive, seed, split_line, whole
from ipyllama.options import GenerateOptions, did_you_mean, option_names

if TYPE_CHECKING:
    from ipyllama.prefix.listing import Sort

Function = TypeVar("Function", bound=Callable[..., Any])


def size(text: str) -> int:
    """Bytes. Raises `BadOption`, also where the unit was left out: with a limit of 2 bytes everything would go."""
    from ipyllama.prefix.sizes import parse_bytes  # what it lies beside takes NumPy along

    found = parse_bytes(text)
    if text.isdecimal() and 0 < found < 1 << 20:
        raise BadOption(f"{text} would be that many bytes: write {text}M or {text}G")
    return found


def _age(text: str) -> float | None:
    from ipyllama.prefix.sizes import parse_seconds

    return parse_seconds(text)


_HELP: Final = Option(("-h", "--help"), help="show help for this subcommand")
_CHAT: Final = Option(("--chat",), "NAME", help="of this conversation (default: the one in use)", values="chats")
SORTS: Final = ("age", "size", "saved")

CACHE: Final = (
    Command("view", "all of it to look at, filter, pin and delete; as text: status and ls", options=(_HELP,)),
    Command("status", "where it is, how full, what it has spared, and what is wrong with it", options=(_HELP,)),
    Command(
        "ls",
        "list what is kept: a row for each prefix, with the computing that it spares",
        options=(
            Option(("-m", "--model"), "NAME", help="only this model's", values="models"),
            Option(("--sort",), "BY", help="age: last used first (default); size; saved", choices=SORTS),
            Option(("-n", "--number"), "N", positive, "show no more than N rows (default 20)"),
            _HELP,
        ),
    ),
    Command(
        "rm",
        "delete prefixes, and of what they stand on that which no other needs",
        "[ENTRY...]",
        (Option(("--older",), "AGE", _age, "all that were not used for this long, as in 12h, 30d or 4w"), _HELP),
        values="entries",
    ),
    Command("pin", "keep prefixes, whatever the limits, until they are unpinned", "ENTRY...", (_HELP,), "entries"),
    Command("unpin", "let the limits hold for them again", "ENTRY...", (_HELP,), "entries"),
    Command(
        "limit",
        "show the limits, or set them for this session; what is over goes, the least valuable first",
        "[SIZE]",
        (Option(("--ram",), "SIZE", size, "the limit in RAM, of the model in use; SIZE is written 500M or 2G"), _HELP),
    ),
    Command("where", "the folder, why it is that one, and how to have another", options=(_HELP,)),
    Command("off", "from now on nothing is looked up and nothing is saved, in this session", options=(_HELP,)),
    Command("on", "look up and save again", options=(_HELP,)),
    Command("verify", "read everything that is on disk; what is damaged is set aside and named", options=(_HELP,)),
    Command("flush", "wait until everything is written", options=(_HELP,)),
    Command(
        "export",
        "write prefixes into one file, to give to others who use the same model",
        "FILE",
        (
            Option(("--chat",), "NAME", help="only this conversation's", values="chats"),
            Option(("--cell",), "CELL", help="only that of one turn, named as in %llama why", values="turns"),
            _HELP,
        ),
    ),
    Command(
        "import",
        "take in such a file; all of it is checked before anything is used",
        "FILE",
        (_HELP,),
        values="bundles",
    ),
    Command(
        "clear",
        "delete everything; says first what that would be",
        options=(Option(("-y", "--yes"), help="do it"), _HELP),
    ),
)

LOOKING: Final = (
    Command(
        "tokens",
        "the tokens of an answer, the newest or that of a turn: how likely each was, and what else could have been",
        "[TURN]",
        (_CHAT, _HELP),
        values="turns",
    ),
    Command(
        "branch",
        "another answer to a turn: its tokens before number AT (from 0) stay, TOKEN comes next, an id or a text",
        "TURN AT TOKEN...",
        (
            Option(("--name",), "NAME", help="call the new turn this"),
            Option(("-n", "--max-tokens"), "N", positive, "stop after N tokens, those that stay included"),
            _CHAT,
            _HELP,
        ),
        values="turns",
    ),
    Command(
        "sample",
        "what may come after TEXT, or where the newest answer begins, and what each stage of sampling leaves of it",
        "[TEXT]",
        (
            Option(("--turn",), "TURN", help="in the answer of this turn", values="turns"),
            Option(("--at",), "N", whole, "where its token number N was sampled (default 0)"),
            Option(("--draw",), "N", positive, "draw N tokens and append them"),
            Option(("-t", "--temperature"), "X", number, "0 takes the likeliest token, up to 2 is more varied"),
            Option(("--top-k",), "N", whole, "the N likeliest tokens; 0 is off"),
            Option(("--top-p",), "X", number, "the likeliest tokens of total probability X; 1 is off"),
            Option(("--min-p",), "X", number, "tokens of at least X times the likeliest one's; 0 is off"),
            Option(("--repeat-penalty",), "X", number, "discourage recent tokens; 1 is off"),
            Option(("--seed",), "N", seed, "the same seed draws the same; 'random' something else each time"),
            _CHAT,
            _HELP,
        ),
    ),
)

_MODE: Final = Option(
    ("--mode",),
    "HOW",
    help="by meaning (vector), by words (text), or both (hybrid, the default)",
    choices=("hybrid", "vector", "text"),
)
RAG: Final = (
    Command(
        "index",
        "documents to search: files, folders, globs, {{variables}}; again: only what changed costs; NAME alone: a list",
        "[NAME SOURCE...]",
        (
            Option(("--embed",), "MODEL", help="of a new index: what embeds its texts (default minilm)"),
            Option(("--remove",), "SOURCE", help="take a document or folder out of it; repeatable", repeat=True),
            Option(("--drop",), help="delete the index"),
            _HELP,
        ),
        values="indexes",
    ),
    Command(
        "search",
        "the chunks of an index that fit the question best, with source and score",
        "NAME QUESTION...",
        (Option(("-k", "--k"), "N", positive, "this many of them (default 4)"), _MODE, _HELP),
        values="indexes",
    ),
)

COMMANDS: Final = (
    Command(
        "load",
        "load a model and make it the one that answers",
        "NAME",
        (
            Option(
                ("--n-ctx",), "N", positive, "length of the context in tokens (default: what the model was made for)"
            ),
            Option(("--threads",), "N", positive, "threads to compute with (default: physical cores)"),
            _HELP,
        ),
        values="models",
    ),
    Command("unload", "free a model's memory: this one, or the one in use", "[NAME]", (_HELP,), values="models"),
    Command("use", "let this model answer, loading it if need be", "NAME", (_HELP,), values="models"),
    Command("models", "list the models on this machine and whether they fit in memory", options=(_HELP,)),
    Command(
        "info",
        "what a model file holds and how much memory it takes, without loading it",
        "NAME",
        (Option(("--n-ctx",), "N", positive, "length of the context that the memory is for"), _HELP),
        values="models",
    ),
    Command("status", "what is loaded, and what it holds in memory", options=(_HELP,)),
    Command("kv", "what is in the context's cells: reused, restored, computed, shared, free", options=(_HELP,)),
    Command(
        "reset",
        "forget a conversation: the one in use, or the one named",
        options=(Option(("--chat",), "NAME", help="the conversation to forget", values="chats"), _HELP),
    ),
    Command(
        "chat",
        "a conversation outside of cells: ask, stop, answer again, walk between branches",
        "[NAME]",
        (
            Option(("--cells",), help="give the code of cells that ask the same, instead"),
            _HELP,
        ),
        values="chats",
    ),
    Command("tree", "the turns of a conversation, where it forks, and what is stale", options=(_CHAT, _HELP)),
    Command("goto", "let the next cell continue from this turn, none: from nothing", "TURN", (_CHAT, _HELP), "turns"),
    Command("rm", "forget a turn and all that continue it", "TURN", (_CHAT, _HELP), "turns"),
    Command("rename", "give a turn another name, or none", "TURN NAME...", (_CHAT, _HELP), "turns"),
    Command("undo", "take back the last answer, goto, rm or rename of a conversation", options=(_CHAT, _HELP)),
    Command("history", "what was said, up to where the next cell continues", options=(_CHAT, _HELP)),
    Command("copy", "put that into a variable, as OpenAI-style messages", "VAR", (_CHAT, _HELP)),
    Command("export", "write it to a file: .md for reading, .json for programs", "FILE", (_CHAT, _HELP)),
    Command(
        "resume",
        "continue the conversation that an earlier kernel of this notebook left; 2: that of the kernel before it",
        "[N]",
        (_CHAT, _HELP),
    ),
    Command(
        "cache",
        "the prefix memory: what prompts have cost once and need not cost again",
        options=(_HELP,),
        commands=CACHE,
    ),
    Command(
        "why",
        "for each turn what was reused, restored and computed; for one of them where the prefix broke, and why",
        "[CELL]",
        (_CHAT, _HELP),
        values="turns",
    ),
    *LOOKING,
    *RAG,
    Command("help", "show this help, or that of one subcommand", "[SUBCOMMAND...]", values="commands"),
)


@dataclass(frozen=True, slots=True)
class LineArgs:
    """The line of a `%llama` magic. `help` asks for the help of `command` instead of running it."""

    command: str
    """the subcommand; "cache ls" for one of a group"""
    name: str | None = None
    n_ctx: int | None = None
    threads: int | None = None
    chat: str | None = None
    cells: bool = False
    words: tuple[str, ...] = ()
    help: bool = False


@dataclass(frozen=True, slots=True)
class CacheArgs(LineArgs):
    """The line of a `%llama cache` magic."""

    names: tuple[str, ...] = ()
    model: str | None = None
    sort: Sort = "age"
    number: int = 20
    older: float | None = None
    ram: int | None = None
    cell: str | None = None
    yes: bool = False


@dataclass(frozen=True, slots=True)
class LookArgs(LineArgs):
    """The line of one of `LOOKING`. `sampling` holds only what was given."""

    turn: str | None = None
    at: int = 0
    draw: int = 0
    called: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RagArgs(LineArgs):
    """The line of one of `RAG`; `words` are the index and what follows it."""

    k: int | None = None
    mode: str | None = None
    embed: str | None = None
    remove: tuple[str, ...] = ()
    drop: bool = False


def _by_path(commands: Sequence[Command], before: str = "") -> dict[str, Command]:
    found: dict[str, Command] = {}
    for command in commands:
        path = f"{before}{command.name}"
        found[path] = command
        found |= _by_path(command.commands, f"{path} ")
    return found


BY_PATH: Final = _by_path(COMMANDS)
"""Every subcommand by its full name."""
_LOOKING: Final = {command.name for command in LOOKING}
_RAG: Final = {command.name for command in RAG}
_PARSERS: Final = {
    path: OptionParser(f"%llama {path}", command.options, command.argument) for path, command in BY_PATH.items()
}


def parse_line(line: str) -> LineArgs:
    """What follows `%llama`; an empty line asks for help, `search?` for that of a subcommand.

    Raises `BadOption` in one line for an unknown subcommand or option (with the one that was probably meant), a value
    that is missing or of the wrong kind, a word too many, and an open quote.
    """
    words = split_line(line)
    if not words or words[0] in ("-h", "--help"):
        return LineArgs("help")
    if words[-1].endswith("?") and (asked := " ".join(words).rstrip("? ")) in BY_PATH:
        words = ["help", *asked.split()]
    path, rest = _resolve(words)
    command = BY_PATH[path]
    if command.commands and rest == ["help"]:
        return LineArgs(path, help=True)
    values = _PARSERS[path].parse(rest)
    if command.commands and not values.get("help"):
        path = f"{path} {command.commands[0].name}"
    given = values.pop("argument", None)
    if path == "help" and given is not None:
        return LineArgs(_resolve(given, whole=True)[0], help=True)
    if isinstance(given, tuple):
        values["names" if path.startswith("cache ") else "words"] = given
    elif given is not None:
        values["name"] = given
    if path in _LOOKING:
        return _look_args(path, values)
    if path in _RAG:
        return RagArgs(path, **values | {"remove": tuple(values.get("remove", ()))})
    return CacheArgs(path, **values) if path.startswith("cache ") else LineArgs(path, **values)


def _look_args(path: str, values: dict[str, Any]) -> LookArgs:
    sampling = {name: values.pop(name) for name in option_names() if name in values}
    GenerateOptions().replace_from(sampling)  # out of range is an error here
    if path == "branch":
        values["called"] = values.pop("name", None)
    return LookArgs(path, sampling=sampling, **values)


def line_help(path: str | None = None) -> str:
    """The complete help of `%llama`, or of one subcommand."""
    if path is None:
        return render_line_help({command.name: command for command in COMMANDS})
    command = BY_PATH[path]
    if command.commands:
        return render_group_help(path, command)
    return render_line_help({path: command})


def llama_subcommands(function: Function) -> Function:
    """Give a line magic the subcommands: `.parser`, and a docstring that `%llama?` shows."""
    setattr(function, "parser", parse_line)  # noqa: B010 (a plain assignment does not type-check)
    function.__doc__ = line_help()
    return function


def _resolve(words: Sequence[str], *, whole: bool = False) -> tuple[str, Sequence[str]]:
    """The full name of the subcommand that words begin with, and what follows it. With `whole` nothing may follow."""
    path, rest = "", words
    known: Sequence[Command] = COMMANDS
    while known and rest and not rest[0].startswith("-") and not (path and rest == ["help"]):
        command = _known(rest[0], path, known)
        path, known, rest = f"{path} {command.name}".strip(), command.commands, rest[1:]
    if whole and rest:
        raise BadOption(f"'{rest[0]}' is one word too many: %llama help {path} shows the help of {path}")
    return path, rest


def _known(word: str, path: str, commands: Sequence[Command]) -> Command:
    names = {command.name: command for command in commands}
    if word not in names:
        hint = did_you_mean(word, names) or f"known are {', '.join(names)}"
        raise BadOption(f"unknown subcommand '{word}'{f' of %llama {path}' if path else ''}: {hint}")
    return names[word]
