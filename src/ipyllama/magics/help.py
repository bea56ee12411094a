"""The words of `%%llama?` and `%llama?`: what the option tables cannot say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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

    %%llama --raw -n 40 --stop "\\n\\n"
    Once upon a time

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
    ("help", "%llama help"),
    ("help", "%llama help load"),
)


def render_cell_help(options: Iterable[Option]) -> str:
    """Help for `%%llama`."""
    return f"{CELL_INTRO}\n\nOptions\n\n{_option_lines(options)}\n\n{CELL_EXAMPLES}"


def render_line_help(commands: Sequence[Command]) -> str:
    """Help for `%llama`: all subcommands with examples, or one of them."""
    parts = [] if len(commands) == 1 else [LINE_INTRO]
    for command in commands:
        usage = " ".join(filter(None, ("%llama", command.name, command.argument)))
        lines = [f"{usage}\n    {command.help}"]
        own = [option for option in command.options if "--help" not in option.flags]
        if own:
            lines.append(_option_lines(own, indent=6))
        parts.append("\n".join(lines))
    wanted = {command.name for command in commands}
    examples = [line for name, line in COMMAND_EXAMPLES if name in wanted]
    return "\n\n".join(parts) + ("\n\nExamples\n\n" + "\n".join(f"    {line}" for line in examples) if examples else "")


def _option_lines(options: Iterable[Option], indent: int = 4) -> str:
    lines = [(" ".join(filter(None, (", ".join(option.flags), option.metavar))), option.help) for option in options]
    width = max(len(head) for head, _ in lines)
    return "\n".join(f"{' ' * indent}{head:<{width}}  {text}" for head, text in lines)
