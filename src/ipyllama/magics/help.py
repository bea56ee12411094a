"""The words of `%%llama?` and `%llama?`: what the option tables cannot say."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Final

from ipyllama.magics.parser import Command, Option

CELL_INTRO: Final = """\
Ask a language model that runs inside this kernel.

    %%llama [options]
    The prompt: everything below the first line, sent as written.

Each new cell continues the conversation; only its own words are computed, the rest is still in memory.
The line below an answer says what was reused, what was computed, and how fast.

Python variables

    {{name}} in the prompt is replaced by str(name); {{user.name}}, {{rows[0]}} and {{ages['Ann']}} work too.
    A long text that is inserted is read once, whatever is asked below it in this cell, or in others with --after none.
    Without that the next cell continues the conversation, which has the text already: ask on without it.
    \\{{name}} stays as {{name}}. Single braces, $, JSON, LaTeX and code pass untouched.
    In --system "..." they work as well. What is not a variable is sent as written, and a note says so."""

CELL_EXAMPLES: Final = """\
Examples

    %%llama
    What is a prefix cache?

    %%llama --system "You're a terse geographer." -n 60
    Which rivers flow through Basel?

    %%llama --chat review --reset
    Here is a function. What would you change?
    {{source}}

    %%llama --out answer --quiet -t 0                    then: answer.text, answer.usage, answer.timings
    List three prime numbers.

    %%llama --name village                               then, in other cells: two ways to go on from there
    Tell me about a village by the sea.

    %%llama --after village --name storm
    A storm comes up. What happens?

    %%llama --after village --samples 3 -t 1
    A stranger comes. Who is it?

    %%llama --rag handbook -k 6 --out answer             then: answer.hits, answer.citations
    How do I reset my password?

    %%llama --rag handbook --reuse fused --check
    Who may reset it for me?

    %%llama --raw -n 40 --stop "\\n\\n"
    Once upon a time

    %%llama --show tokens
    Name a river in Europe.

    %%llama --seed random --top-p 0.9 --min-p 0
    Invent a name for a cat.

    %%llama --model "~/models/my model.gguf" --no-stream
    Hello!

Stop (or I, I in the notebook) interrupts an answer; what was written is kept, marked [interrupted].
Defaults can be changed for the session: %config Llama.max_tokens = 200
The same in Python: llm = ipyllama.load("smollm2"); llm.chat(system="Be brief.").ask("Hello!")
%llama? tells how to load models and look at their state."""

LINE_INTRO: Final = """\
Load models that run inside this kernel, and look after them.

    %llama SUBCOMMAND [options]

%%llama? tells how to ask. A name is a registry name (smollm2), a model already on this machine, a path to a
GGUF file (in quotes if it has spaces), or hf:owner/repo/file.gguf."""

COMMAND_EXAMPLES: Final = (
    ("load", "%llama load smollm2"),
    ("load", "%llama load smollm2 --n-ctx 4096 --threads 4"),
    ("load", '%llama load "C:\\models\\my model.gguf"'),
    ("load", "%llama load hf:owner/repo/file.gguf"),
    ("use", "%llama use smollm2"),
    ("unload", "%llama unload"),
    ("unload", "%llama unload smollm2"),
    ("models", "%llama models"),
    ("info", "%llama info smollm2"),
    ("status", "%llama status"),
    ("reset", "%llama reset"),
    ("reset", "%llama reset --chat review"),
    ("chat", "%llama chat"),
    ("chat", "%llama chat review"),
    ("chat", "%llama chat --cells"),
    ("tree", "%llama tree"),
    ("goto", "%llama goto village"),
    ("rm", "%llama rm 3"),
    ("rename", "%llama rename 3 draft"),
    ("undo", "%llama undo"),
    ("history", "%llama history --chat review"),
    ("copy", "%llama copy messages"),
    ("export", "%llama export story.md"),
    ("resume", "%llama resume"),
    ("cache", "%llama cache"),
    ("cache view", "%llama cache view"),
    ("cache status", "%llama cache status"),
    ("cache", "%llama cache ls"),
    ("cache ls", "%llama cache ls --sort size -n 5"),
    ("cache rm", "%llama cache rm 3f2a91c0"),
    ("cache rm", "%llama cache rm --older 30d"),
    ("cache pin", "%llama cache pin 3f2a91c0"),
    ("cache unpin", "%llama cache unpin 3f2a91c0"),
    ("cache limit", "%llama cache limit 2G"),
    ("cache limit", "%llama cache limit --ram 500M"),
    ("cache where", "%llama cache where"),
    ("cache off", "%llama cache off"),
    ("cache on", "%llama cache on"),
    ("cache verify", "%llama cache verify"),
    ("cache flush", "%llama cache flush"),
    ("cache export", "%llama cache export lesson.kv"),
    ("cache export", "%llama cache export lesson.kv --chat review"),
    ("cache import", "%llama cache import lesson.kv"),
    ("cache clear", "%llama cache clear --yes"),
    ("why", "%llama why"),
    ("why", "%llama why 2"),
    ("why", "%llama why --chat review"),
    ("kv", "%llama kv"),
    ("tokens", "%llama tokens"),
    ("tokens", "%llama tokens village"),
    ("branch", '%llama branch village 3 " storm" --name storm'),
    ("branch", "%llama branch 2 0 504"),
    ("sample", '%llama sample "The capital of France is" -t 1 --top-k 20'),
    ("sample", "%llama sample --turn village --at 3"),
    ("index", "%llama index handbook docs/ notes.md"),
    ("index", "%llama index handbook {{pages}}"),
    ("index", "%llama index handbook"),
    ("index", "%llama index"),
    ("search", "%llama search handbook how do I reset my password"),
    ("search", "%llama search handbook -k 10 --mode text password"),
    ("help", "%llama help"),
    ("help", "%llama help load"),
    ("help", "%llama help cache ls"),
)


def render_cell_help(options: Iterable[Option]) -> str:
    """Help for `%%llama`."""
    return f"{CELL_INTRO}\n\nOptions\n\n{_option_lines(options)}\n\n{CELL_EXAMPLES}"


def render_line_help(commands: Mapping[str, Command]) -> str:
    """Help for `%llama`: all subcommands by full name with examples, or one of them."""
    parts = [] if len(commands) == 1 else [LINE_INTRO]
    parts += [_command_lines(path, command) for path, command in commands.items()]
    return "\n\n".join(parts) + _example_lines(commands)


def render_group_help(path: str, group: Command) -> str:
    """Help for a group of subcommands: each of them with its options, and examples."""
    members = {f"{path} {command.name}": command for command in group.commands}
    parts = [f"%llama {path} [SUBCOMMAND]\n    {group.help}\n    alone: {group.commands[0].name}"]
    parts += [_command_lines(name, command) for name, command in members.items()]
    return "\n\n".join(parts) + _example_lines({path: group} | members)


def _command_lines(path: str, command: Command) -> str:
    usage = " ".join(filter(None, ("%llama", path, "[SUBCOMMAND]" if command.commands else command.argument)))
    lines = [f"{usage}\n    {command.help}"]
    own = [option for option in command.options if "--help" not in option.flags]
    if own:
        lines.append(_option_lines(own, indent=6))
    if command.commands:
        width = max(len(member.name) for member in command.commands)
        lines += [f"      {member.name:<{width}}  {member.help}" for member in command.commands]
    return "\n".join(lines)


def _example_lines(wanted: Container[str]) -> str:
    examples = [f"    {line}" for path, line in COMMAND_EXAMPLES if path in wanted]
    return "\n\nExamples\n\n" + "\n".join(examples) if examples else ""


def _option_lines(options: Iterable[Option], indent: int = 4) -> str:
    lines = [(" ".join(filter(None, (", ".join(option.flags), option.metavar))), option.help) for option in options]
    width = max(len(head) for head, _ in lines)
    return "\n".join(f"{' ' * indent}{head:<{width}}  {text}" for head, text in lines)
