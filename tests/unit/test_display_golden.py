"""Every renderer beside a file with what it should give. `UPDATE_GOLDEN=1 pytest ...` writes them: read the diff."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ipyllama.display import ModelRow, Progress, capability_bundle, models_table, reply_bundle, status_table
from ipyllama.display.progress import line_bundle, progress_bundle
from ipyllama.display.reply import streaming_bundle
from ipyllama.engine.capability import ENCODER, Capability
from ipyllama.magics.options import cell_help, line_help
from ipyllama.reply import Reply, Timings, Usage

GOLDEN = Path(__file__).parent / "golden"
SUFFIX = {"text/plain": "txt", "text/markdown": "md", "text/html": "html"}

ANSWER = r"""A **prefix cache** keeps what it has *already* computed:

1. The second question costs only its own words.
   - nested, with [a link](https://example.org/a?b=1&c=2)
2. Restoring is a copy: `state_seq_set_data(tmp)`.

```python
def fib(n: int) -> int:
    '''Return the n-th "number".'''  # 1 < 2
    return n if n < 2 else fib(n - 1) + fib(n - 2)
```

    indented & plain

| model   |  size | |
|---------|------:|:-:|
| SmolLM2 | 93 MB | ~~x~~ |

> Energy is $E = mc^2$; it costs $5 or $6.

$$\int_0^1 x^2\,dx$$

\[ a < b \]

Inline \(a^2\), 日本語, 🦙.
"""
USAGE = Usage(reused=780, computed=32, generated=120)
FULL = Capability("full", can_shift=True)
TIMINGS = Timings(prefill=0.04, first_token=0.041, decode=2.48)

CASES: dict[str, Callable[[], dict[str, str]]] = {
    "reply": lambda: reply_bundle(Reply(ANSWER, usage=USAGE, timings=TIMINGS)),
    "reply_interrupted": lambda: reply_bundle(
        Reply(
            "Here it is:\n\n```python\nfor i in",
            finish_reason="interrupted",
            usage=Usage(0, 256, 1000, 9),
            timings=Timings(first_token=2.5, decode=2),
            notes=("{{nmae}} is not a variable here: sent as written", "a <b>second</b> *note*"),
        )
    ),
    "reply_length": lambda: reply_bundle(
        Reply("One, two", finish_reason="length", usage=Usage(0, 0, 1, 1), timings=Timings(first_token=0.01))
    ),
    "reply_context": lambda: reply_bundle(Reply("One", finish_reason="context", usage=USAGE, timings=TIMINGS)),
    "reply_error": lambda: reply_bundle(Reply("One", finish_reason="error", usage=USAGE, timings=TIMINGS)),
    "reply_replayed": lambda: reply_bundle(
        Reply("One, two", finish_reason="length", usage=USAGE, timings=TIMINGS, notes=("a note",), replayed=True)
    ),
    "reply_empty": lambda: reply_bundle(Reply("", usage=Usage(0, 0, 5, 1), timings=Timings(first_token=0.5))),
    "reply_white": lambda: reply_bundle(Reply(" \n\n", usage=Usage(0, 0, 5, 2), timings=Timings(first_token=0.5))),
    "streaming": lambda: streaming_bundle("Half an *ans"),
    "progress": lambda: progress_bundle(Progress("reading the prompt", 1024, 4000, eta=12.2)),
    "progress_bytes": lambda: progress_bundle(Progress("fetching <x>", 46_500_000, 93_000_000, "bytes", 75)),
    "progress_unknown": lambda: progress_bundle(Progress("fetching", 46_500_000, 0, "bytes")),
    "line": lambda: line_bundle("waiting: 2 answers ahead"),
    "models": lambda: models_table(
        [
            ModelRow("smollm2", 93_012_345, "Q4_1", 8192, True, "user cache", in_use=True),
            ModelRow("llama3.1:70b", 42_520_000_000, "Q4_K_M", 131_072, False, "Ollama"),
            ModelRow("日本語🦙", 1_200_000_000, "", None, None, "/models/<b>&co"),
        ]
    )._repr_mimebundle_(),
    "models_none": lambda: models_table([])._repr_mimebundle_(),
    "status": lambda: status_table(
        {"model": "smollm2", "context": "812 of 8,192 tokens", "capability": FULL, "chats": "main (3 turns)"}, "In use"
    )._repr_mimebundle_(),
    "capability": lambda: capability_bundle(FULL),
    "capability_extend": lambda: capability_bundle(Capability("extend", False, "hybrid: part <attention>")),
    "capability_none": ENCODER._repr_mimebundle_,
    "help_cell": lambda: {"text/plain": cell_help()},
    "help_line": lambda: {"text/plain": line_help()},
}


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    for mime, shown in CASES[name]().items():
        path = GOLDEN / f"{name}.{SUFFIX[mime]}"
        if os.environ.get("UPDATE_GOLDEN"):
            path.write_bytes(f"{shown}\n".encode())
        assert f"{shown}\n" == path.read_bytes().decode(), f"{path.name} differs"


def test_no_golden_file_is_left_over() -> None:
    wanted = {f"{name}.{SUFFIX[mime]}" for name, case in CASES.items() for mime in case()}
    assert {path.name for path in GOLDEN.iterdir()} == wanted
