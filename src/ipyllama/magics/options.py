"""Every option of `%%llama`, declared once: parsing, help and completion all read this table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, get_args

from ipyllama.errors import BadOption
from ipyllama.magics.help import render_cell_help
from ipyllama.magics.parser import Option, OptionParser, number, positive, seed, split_line, variable, whole
from ipyllama.options import GenerateOptions, Reuse, did_you_mean, option_names

Function = TypeVar("Function", bound=Callable[..., Any])
_DEFAULT: Final = GenerateOptions()


def _name(text: str) -> str:
    from ipyllama.chat.turn import check_name

    check_name(text)
    return text


def _sweep(text: str) -> tuple[str, list[Any]]:
    """`OPTION=X,Y` as the option's name and its values."""
    name, _, values = text.partition("=")
    name = name.lstrip("-").replace("-", "_")
    option = next((option for option in CELL_OPTIONS if option.flags[-1] == "--" + name.replace("_", "-")), None)
    if option is not None and (option.repeat or name == "grammar"):
        raise BadOption(f"{name} cannot be swept: use a cell for each")
    if option is None or name not in option_names():
        hint = did_you_mean(name, option_names()) or "as in temperature=0.2,0.7"
        raise BadOption(f"'{name}' is no sampling option: {hint}")
    given = [option.convert(value.strip()) for value in values.split(",") if value.strip()]
    if not given:
        raise BadOption(f"values are missing, as in {name}=0.2,0.7")
    for value in given:
        _DEFAULT.replace_from({name: value})
    return name, given


def _on_full(text: str) -> str:
    from ipyllama.chat.room import OnFull

    OnFull.read(text)
    return text


def _stop(text: str) -> str:
    """A stop text as typed, with the escapes that a magic's line cannot hold otherwise."""
    return text.replace("\\n", "\n").replace("\\t", "\t")


def _bias(text: str) -> tuple[int | str, float]:
    """`TOKEN=X`, TOKEN an id or the text of one token; it may hold an = itself."""
    token, _, bias = text.rpartition("=")
    if not token:
        raise BadOption(f"TOKEN=X is needed, as in 42=-5 or \" Paris=3\": got '{text}'")
    return int(token) if token.isdecimal() else token, number(bias)


def _sampling(flags: tuple[str, ...], metavar: str, convert: Callable[[str], Any], meaning: str) -> Option:
    name = flags[-1].lstrip("-").replace("-", "_")
    return Option(flags, metavar, convert, f"{meaning} (default {getattr(_DEFAULT, name)})")


CELL_OPTIONS: Final = (
    Option(("-m", "--model"), "NAME", help="the model that answers: whatever %llama load takes", values="models"),
    Option(("-s", "--system"), "TEXT", help="system prompt from here on; what was said before is read again under it"),
    Option(("--chat",), "NAME", help="continue this conversation, or begin it", values="chats"),
    Option(("--after",), "TURN", help="continue from this turn instead, a fork; none is the beginning", values="turns"),
    Option(("--name",), "NAME", _name, "call the turn this; where cells have no id, the name says which turn it is"),
    Option(("--reset",), help="forget the conversation so far, then ask"),
    Option(("--samples",), "N", positive, "N answers at once, each with the next seed"),
    Option(
        ("--sweep",),
        "OPTION=X,Y",
        _sweep,
        "an answer for each value, as temperature=0.2,0.7; repeatable",
        repeat=True,
    ),
    Option(("--think",), help="let the model think before it answers, where its template has a switch for that"),
    Option(("--no-think",), help="let it answer at once"),
    Option(
        ("--on-full",),
        "HOW",
        _on_full,
        "when the context is full: error, drop-oldest, shift, or summarise-by TURN (default error)",
        values="ways",
    ),
    Option(
        ("--rag",),
        "NAME",
        help="answer from documents, and cite them: an index (%llama index), or what searches: {{name}}",
        values="indexes",
    ),
    Option(("-k", "--k"), "N", positive, "with --rag: from the N chunks that fit the question best (default 4)"),
    Option(
        ("--mode",),
        "HOW",
        help="with --rag: search by meaning (vector), by words (text), or both (hybrid, the default)",
        choices=("hybrid", "vector", "text"),
    ),
    Option(("--hybrid",), help="with --rag: --mode hybrid"),
    Option(("--check",), help="with --rag: measure how far the answer is from the exact one"),
    Option(("--raw",), help="complete the text as it stands: no template, no conversation"),
    _sampling(("-n", "--max-tokens"), "N", whole, "stop after N tokens"),
    _sampling(("-t", "--temperature"), "X", number, "0 takes the likeliest token, up to 2 is more varied"),
    _sampling(("--top-p",), "X", number, "sample from the likeliest tokens of total probability X; 1 is off"),
    _sampling(("--top-k",), "N", whole, "sample from the N likeliest tokens; 0 is off"),
    _sampling(("--min-p",), "X", number, "drop tokens less likely than X times the likeliest; 0 is off"),
    _sampling(("--repeat-penalty",), "X", number, "discourage recent tokens; 1 is off"),
    _sampling(("--frequency-penalty",), "X", number, "subtract X for each time that a token was there; 0 is off"),
    _sampling(("--presence-penalty",), "X", number, "subtract X once from tokens that were there; 0 is off"),
    _sampling(("--dry-multiplier",), "X", number, "discourage going on with a repetition, 0.8 is usual; 0 is off"),
    _sampling(("--typical-p",), "X", number, "sample from the most typical tokens of total probability X; 1 is off"),
    _sampling(("--xtc-probability",), "X", number, "how often to exclude the top choices; 0 is off"),
    _sampling(("--mirostat",), "N", whole, "1 or 2: steady surprise, in place of the filters above; 0 is off"),
    Option(("--logit-bias",), "TOKEN=X", _bias, "add X to a token's logit, -inf forbids it; repeatable", repeat=True),
    Option(("--grammar",), "FILE", help="let the text follow the GBNF grammar in FILE, or in a variable: {{name}}"),
    _sampling(("--seed",), "N", seed, "the same seed gives the same answer; 'random' another one each time"),
    Option(("--stop",), "TEXT", _stop, "end before TEXT; \\n is a line end; may be given more than once", repeat=True),
    Option(
        ("--reuse",),
        "HOW",
        help="exact: as if from nothing; token: less after an edit; fused: --rag reads a chunk once (default exact)",
        choices=get_args(Reuse),
    ),
    _sampling(("--recompute",), "N", whole, "with --reuse fused: compute the first N tokens of moved chunks anew"),
    Option(("--fresh",), help="compute the answer even if this very request was answered before"),
    _sampling(("--logprobs",), "N", whole, "tell how likely tokens were, and N alternatives, in reply.logprobs"),
    Option(
        ("--show",),
        "WHAT",
        help="tokens: below the answer each token, coloured by how likely it was, with alternatives",
        choices=("tokens",),
    ),
    Option(("-o", "--out"), "VAR", variable, "store the Reply (text, tokens, usage, timings) in this variable"),
    Option(("-q", "--quiet"), help="show nothing"),
    Option(("--plain",), help="show the answer without Stop and Copy, as in front ends that have no live views"),
    Option(("--no-stream",), help="show the answer once, when it is complete"),
    Option(("-h", "--help"), help="show this help (%%llama? does so without a cell body)"),
)


_OF_CONVERSATIONS: Final = (
    "system",
    "chat",
    "reset",
    "after",
    "name",
    "samples",
    "sweep",
    "think",
    "no_think",
    "on_full",
)


@dataclass(frozen=True, slots=True)
class CellArgs:
    """The line of a `%%llama` cell. `overrides` holds only the sampling options that were given."""

    model: str | None = None
    system: str | None = None
    chat: str | None = None
    after: str | None = None
    name: str | None = None
    samples: int | None = None
    sweep: tuple[tuple[str, list[Any]], ...] = ()
    think: bool | None = None
    on_full: str | None = None
    reset: bool = False
    rag: str | None = None
    k: int | None = None
    mode: str | None = None
    check: bool = False
    raw: bool = False
    fresh: bool = False
    show: str | None = None
    out: str | None = None
    quiet: bool = False
    plain: bool = False
    stream: bool = True
    help: bool = False
    overrides: Mapping[str, Any] = field(default_factory=dict)


CELL_PARSER: Final = OptionParser("%%llama", CELL_OPTIONS)


def parse_cell_line(line: str) -> CellArgs:
    """What follows `%%llama` on its line.

    Raises `BadOption` in one line for an unknown option (with the one that was probably meant), a value that is
    missing, of the wrong kind or out of range, options that exclude each other, and an open quote.
    """
    values = CELL_PARSER.parse(_with_turn(split_line(line)))
    if values.pop("hybrid", False):
        values.setdefault("mode", "hybrid")
    overrides = {name: values.pop(name) for name in option_names() if name in values}
    overrides |= {name: tuple(overrides[name]) for name in ("stop", "logit_bias") if name in overrides}
    _DEFAULT.replace_from(overrides)  # out of range is an error here, before a model is loaded
    _refuse_together(values)
    _refuse_beside_rag(values, overrides)
    values["sweep"] = tuple(values.pop("sweep", ()))
    if twice := [name for name, n in Counter(name for name, _ in values["sweep"]).items() if n > 1]:
        raise BadOption(f"--sweep: {twice[0]} is there twice: write all its values behind one, as {twice[0]}=1,2,3")
    if values.pop("no_think", False):
        values["think"] = False
    return CellArgs(stream=not values.pop("no_stream", False), overrides=overrides, **values)


def cell_help() -> str:
    """The complete help of `%%llama`."""
    return render_cell_help(CELL_OPTIONS)


def llama_arguments(function: Function) -> Function:
    """Give a cell magic the shared options: `.parser`, and a docstring that `%%llama?` shows."""
    setattr(function, "parser", parse_cell_line)  # noqa: B010 (a plain assignment does not type-check)
    function.__doc__ = cell_help()
    return function


def _with_turn(words: list[str]) -> list[str]:
    """`--on-full summarise-by TURN` with the last two words as one value."""
    for at in range(len(words) - 2):
        if words[at : at + 2] == ["--on-full", "summarise-by"] and not words[at + 2].startswith("-"):
            return [*words[: at + 1], " ".join(words[at + 1 : at + 3]), *words[at + 3 :]]
    return words


def _refuse_together(values: Mapping[str, Any]) -> None:
    if values.get("samples") and values.get("sweep"):
        raise BadOption("--samples and --sweep are two ways to get several answers: leave out one (--sweep seed=1,2,3)")
    if values.get("show") and (values.get("samples") or values.get("sweep")):
        raise BadOption("--show tokens is for one answer: leave it out, and look at the turns with %llama tokens")
    if values.get("think") and values.get("no_think"):
        raise BadOption("--think and --no-think exclude each other: leave out one")
    for name in _OF_CONVERSATIONS:
        if values.get("raw") and values.get(name):
            option = name.replace("_", "-")
            raise BadOption(f"--raw completes the text as it stands, outside any conversation: leave out --{option}")


def _refuse_beside_rag(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> None:
    if values.get("rag"):
        for name in ("raw", *_OF_CONVERSATIONS):
            if values.get(name):
                option = name.replace("_", "-")
                raise BadOption(f"--rag answers from documents, outside any conversation: leave out --{option}")
        return
    for name in ("k", "mode", "check"):
        if values.get(name):
            raise BadOption(f"--{name} is for answers from documents: say which, as in --rag NAME")
    if overrides.get("reuse") == "fused":
        raise BadOption("--reuse fused is for answers from documents: say which, as in --rag NAME")
