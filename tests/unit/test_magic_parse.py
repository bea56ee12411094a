"""The lines of `%%llama` and `%llama`."""

from __future__ import annotations

import re

import pytest

from ipyllama.errors import BadOption
from ipyllama.magics.commands import (
    BY_PATH,
    COMMANDS,
    CacheArgs,
    LineArgs,
    LookArgs,
    line_help,
    llama_subcommands,
    parse_line,
)
from ipyllama.magics.options import CELL_OPTIONS, CellArgs, cell_help, llama_arguments, parse_cell_line
from ipyllama.magics.parser import split_line
from ipyllama.options import GenerateOptions, option_names


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", []),
        ("  a   b ", ["a", "b"]),
        ('--system "You\'re terse"', ["--system", "You're terse"]),
        ("--system='say \"hi\"'", ['--system=say "hi"']),
        (r'"say \"hi\""', ['say "hi"']),
        (r"C:\models\new.gguf", [r"C:\models\new.gguf"]),
        (r'"C:\my models\new.gguf"', [r"C:\my models\new.gguf"]),
        ("\"\" ''", ["", ""]),
        ("a\"b c\"'d e'", ["ab cd e"]),
        ("日本 🦙", ["日本", "🦙"]),
    ],
)
def test_words_and_quotes(line: str, words: list[str]) -> None:
    assert split_line(line) == words


@pytest.mark.parametrize("line", ["--system You're terse", '--system "open', "--stop '"])
def test_an_open_quote_is_named(line: str) -> None:
    with pytest.raises(BadOption, match=r"the quote ['\"] in .* is not closed"):
        parse_cell_line(line)


def test_an_empty_line_overrides_nothing() -> None:
    assert parse_cell_line("") == CellArgs()


def test_what_is_shown_besides() -> None:
    assert parse_cell_line("--show tokens --logprobs 3") == CellArgs(show="tokens", overrides={"logprobs": 3})
    for line, message in (
        ("--show all", "--show: unknown value 'all'"),
        ("--show tokens --samples 2", "--show tokens is for one answer"),
        ("--logprobs 21", "logprobs must be between 0 and 20"),
    ):
        with pytest.raises(BadOption, match=message):
            parse_cell_line(line)


def test_every_option_of_the_cell() -> None:
    line = (
        "--model m --system 'Be brief.' --chat c --reset -n 7 -t 0.5 --top-p 0.9 --top-k 3 --min-p 0.1 "
        "--repeat-penalty 1.1 --seed 5 --stop a --stop '\\n\\n' --out answer --quiet --no-stream"
    )
    assert parse_cell_line(line) == CellArgs(
        model="m",
        system="Be brief.",
        chat="c",
        reset=True,
        out="answer",
        quiet=True,
        stream=False,
        overrides={
            "max_tokens": 7,
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 3,
            "min_p": 0.1,
            "repeat_penalty": 1.1,
            "seed": 5,
            "stop": ("a", "\n\n"),
        },
    )


def test_short_and_joined_forms() -> None:
    assert parse_cell_line("-m x -s y -n7 -t0 -o z -q") == parse_cell_line(
        "--model=x --system=y --max-tokens=7 --temperature=0 --out=z --quiet"
    )


@pytest.mark.parametrize(
    ("line", "stop"), [("--stop ---", "---"), ("--stop '- x'", "- x"), ("--stop=-", "-"), ("--stop --x", "--x")]
)
def test_a_value_may_begin_with_a_dash(line: str, stop: str) -> None:
    assert parse_cell_line(line).overrides == {"stop": (stop,)}


def test_an_option_is_not_taken_for_the_value_that_is_missing() -> None:
    with pytest.raises(BadOption, match=r"^-m/--model: a value is missing$"):
        parse_cell_line("--model --raw")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--temprature 1", "unknown option '--temprature' of %%llama: did you mean '--temperature'?"),
        ("--max_tokens=3", "unknown option '--max_tokens' of %%llama: did you mean '--max-tokens'?"),
        ("-t 3", "temperature must be between 0 and 2: got 3.0"),
        ("-n 0", "max_tokens must be at least 1: got 0"),
        ("-n many", "--max-tokens: a whole number is needed: got 'many'"),
        ("--seed dice", "--seed: a whole number is needed: got 'dice'"),
        ("--top-p x", "--top-p: a number is needed: got 'x'"),
        ("--out 3x", "--out: '3x' cannot be the name of a variable"),
        ("--out class", "--out: 'class' cannot be the name of a variable"),
        ("--stop ''", "stop must be texts of at least one character: got ''"),
        ("--raw --chat c", "--raw completes the text as it stands, outside any conversation: leave out --chat"),
    ],
)
def test_errors_of_the_cell_say_what_to_do(line: str, message: str) -> None:
    with pytest.raises(BadOption) as error:
        parse_cell_line(line)
    assert str(error.value) == message


def test_options_are_never_abbreviated() -> None:
    with pytest.raises(BadOption, match="unknown option '--temp'"):
        parse_cell_line("--temp 0.5")


def test_a_prompt_on_the_line_is_told_where_it_belongs() -> None:
    with pytest.raises(BadOption, match=r"^'What' is not an option of %%llama: the prompt goes below this line"):
        parse_cell_line("What is a llama?")


@pytest.mark.parametrize(
    ("line", "args"),
    [
        ("", LineArgs("help")),
        ("--help", LineArgs("help")),
        ("help", LineArgs("help")),
        ("help load", LineArgs("load", help=True)),
        ("load --help", LineArgs("load", help=True)),
        ("load smollm2", LineArgs("load", "smollm2")),
        ('load "my model.gguf" --n-ctx 4096 --threads 4', LineArgs("load", "my model.gguf", 4096, 4)),
        ("load --n-ctx 4096 smollm2", LineArgs("load", "smollm2", 4096)),
        ("unload", LineArgs("unload")),
        ("unload smollm2", LineArgs("unload", "smollm2")),
        ("use smollm2", LineArgs("use", "smollm2")),
        ("models", LineArgs("models")),
        ("info x --n-ctx 512", LineArgs("info", "x", 512)),
        ("status", LineArgs("status")),
        ("reset", LineArgs("reset")),
        ("reset --chat 'my review'", LineArgs("reset", chat="my review")),
        ("why", LineArgs("why")),
        ("why 2 --chat review", LineArgs("why", "2", chat="review")),
        ("tokens", LookArgs("tokens")),
        ("tokens village --chat review", LookArgs("tokens", "village", chat="review")),
        ('branch 2 0 " Well" --name x', LookArgs("branch", words=("2", "0", " Well"), called="x")),
        ("branch 2 0 504 -n 9", LookArgs("branch", words=("2", "0", "504"), sampling={"max_tokens": 9})),
        ("sample", LookArgs("sample")),
        (
            'sample "The sky" -t 1 --top-k 5 --draw 3',
            LookArgs("sample", "The sky", draw=3, sampling={"temperature": 1.0, "top_k": 5}),
        ),
        ("sample --turn 2 --at 4 --seed random", LookArgs("sample", turn="2", at=4, sampling={"seed": "random"})),
        ("cache", CacheArgs("cache view")),
        ("cache status", CacheArgs("cache status")),
        ("cache --help", LineArgs("cache", help=True)),
        ("cache ls --help", CacheArgs("cache ls", help=True)),
        ("help cache", LineArgs("cache", help=True)),
        ("help cache ls", LineArgs("cache ls", help=True)),
        ("cache ls --model smollm2 --sort size -n 5", CacheArgs("cache ls", model="smollm2", sort="size", number=5)),
        ("cache pin 3f2a", CacheArgs("cache pin", names=("3f2a",))),
        ("cache unpin 3f2a 91c0", CacheArgs("cache unpin", names=("3f2a", "91c0"))),
        ("cache rm 3f2a 91c0", CacheArgs("cache rm", names=("3f2a", "91c0"))),
        ("cache rm --older 12h", CacheArgs("cache rm", older=43200.0)),
        ("cache limit", CacheArgs("cache limit")),
        ("cache limit 2G --ram 500M", CacheArgs("cache limit", "2G", ram=500 << 20)),
        ("cache export 'my file.kv' --chat c", CacheArgs("cache export", "my file.kv", chat="c")),
        ("cache export a.kv --cell 2", CacheArgs("cache export", "a.kv", cell="2")),
        ("cache import a.kv", CacheArgs("cache import", "a.kv")),
        ("cache clear --yes", CacheArgs("cache clear", yes=True)),
    ],
)
def test_every_subcommand(line: str, args: LineArgs) -> None:
    assert parse_line(line) == args


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("laod x", "unknown subcommand 'laod': did you mean 'load'?"),
        ("help laod", "unknown subcommand 'laod': did you mean 'load'?"),
        (
            "xyz",
            "unknown subcommand 'xyz': known are load, unload, use, models, info, status, kv, reset, chat, tree, "
            "goto, rm, rename, undo, history, copy, export, resume, cache, why, tokens, branch, sample, index, "
            "search, help",
        ),
        ("sample x --at one", "--at: a whole number is needed: got 'one'"),
        ("sample x --top-p 3", "top_p must be between 0 and 1: got 3.0"),
        ("branch", "%llama branch needs a TURN AT TOKEN...: %llama branch TURN AT TOKEN..."),
        ("cache verfy", "unknown subcommand 'verfy' of %llama cache: did you mean 'verify'?"),
        ("help cache verfy", "unknown subcommand 'verfy' of %llama cache: did you mean 'verify'?"),
        ("help load x", "'x' is one word too many: %llama help load shows the help of load"),
        (
            "cache ls extra",
            "'extra' is one word too many for %llama cache ls: known are --model, --sort, --number, --help",
        ),
        ("cache clear yes", "'yes' is one word too many for %llama cache clear: known are --yes, --help"),
        ("cache export a b", "'b' is one word too many for %llama cache export: a file with spaces goes in quotes"),
        ("cache ls --sort sise", "--sort: unknown value 'sise': did you mean 'size'?"),
        ("cache ls --sort x", "--sort: unknown value 'x': there are age, size, saved"),
        ("cache ls -n 0", "--number: at least 1 is needed: got 0"),
        ("cache rm --older soon", "--older: an age is written like '12h' or '30d': got 'soon'"),
        ("cache limit --ram x", "--ram: a size is a number of bytes, or a text like '500M' or '10G': got 'x'"),
        ("cache limit --ram 2", "--ram: 2 would be that many bytes: write 2M or 2G"),
        ("cache export", "%llama cache export needs a FILE: %llama cache export FILE"),
        ("cache --sort size", "unknown option '--sort' of %llama cache: known are --help"),
        ("load", "%llama load needs a name: %llama load NAME"),
        ("load my model", "'model' is one word too many for %llama load: a name with spaces goes in quotes"),
        ("load x --n_ctx 5", "unknown option '--n_ctx' of %llama load: did you mean '--n-ctx'?"),
        ("load x --n-ctx long", "--n-ctx: a whole number is needed: got 'long'"),
        ("load x --n-ctx 0", "--n-ctx: at least 1 is needed: got 0"),
        ("load x --threads -2", "--threads: at least 1 is needed: got -2"),
        ("status --verbose", "unknown option '--verbose' of %llama status: known are --help"),
    ],
)
def test_errors_of_the_line_say_what_to_do(line: str, message: str) -> None:
    with pytest.raises(BadOption) as error:
        parse_line(line)
    assert str(error.value) == message


def test_help_names_every_option_with_its_default() -> None:
    text = cell_help()
    for option in CELL_OPTIONS:
        assert ", ".join(option.flags) in text
    flags = {option.flags[-1] for option in CELL_OPTIONS if not option.repeat}
    for name in set(option_names()) - {"grammar"}:
        flag = "--" + name.replace("_", "-")
        if flag in flags:
            assert re.search(rf"{flag} .*\(default {getattr(GenerateOptions(), name)}\)", text)


def examples(text: str, magic: str) -> list[str]:
    lines = text.partition("\nExamples\n")[2].splitlines()
    found = [line.strip() for line in lines if line.strip().startswith(f"{magic} ") or line.strip() == magic]
    return [line.partition("   ")[0].removeprefix(magic).strip() for line in found]


def test_every_example_in_the_help_parses() -> None:
    cells, lines = examples(cell_help(), "%%llama"), examples(line_help(), "%llama")
    assert len(cells) >= 7
    for line in cells:
        parse_cell_line(line)
    assert {parse_line(line).command.split()[0] for line in lines} == {command.name for command in COMMANDS}


@pytest.mark.parametrize("path", sorted(BY_PATH.keys() - {"help"}))
def test_every_subcommand_has_an_example_in_its_own_help(path: str) -> None:
    text = line_help(path)
    assert all(option.flags[-1] in text for option in BY_PATH[path].options if "--help" not in option.flags)
    commands = {parse_line(line).command for line in examples(text, "%llama")}
    assert commands == {f"{path} {command.name}" for command in BY_PATH[path].commands} or commands == {path}


def test_help_of_one_subcommand_holds_its_own_options_only() -> None:
    text = line_help("load")
    assert "--n-ctx N" in text
    assert "--chat" not in text


def test_the_decorators_give_docstring_and_parser() -> None:
    @llama_arguments
    def cell(line: str, body: str) -> None: ...

    @llama_subcommands
    def line(line: str) -> None: ...

    assert cell.__doc__ == cell_help()
    assert line.__doc__ == line_help()
    assert cell.parser("-n 3") == CellArgs(overrides={"max_tokens": 3})
    assert line.parser("status") == LineArgs("status")


@pytest.mark.parametrize(
    ("line", "on_full", "think"),
    [
        ("--on-full summarise-by recap", "summarise-by recap", None),
        ('--on-full "summarise-by recap" --think', "summarise-by recap", True),
        ("--no-think --on-full shift", "shift", False),
        ("", None, None),
    ],
)
def test_what_a_conversation_does(line: str, on_full: str | None, think: bool | None) -> None:
    args = parse_cell_line(line)
    assert (args.on_full, args.think) == (on_full, think)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--on-full summarise-by", "summarise-by needs the turn"),
        ("--on-full summarise-by -n 60", "summarise-by needs the turn"),
        ("--on-full drop", "unknown way 'drop'"),
        ("--think --no-think", "exclude each other"),
        ("--raw --on-full shift", "leave out --on-full"),
        ("--sweep grammar=a.gbnf", "grammar cannot be swept"),
        ("--sweep top_k=1 --sweep top-k=2", "top_k is there twice"),
        ("--sweep stop=a", "stop cannot be swept"),
        ("--raw --no-think", "leave out --no-think"),
    ],
)
def test_what_a_conversation_cannot_do(line: str, said: str) -> None:
    with pytest.raises(BadOption, match=said):
        parse_cell_line(line)
