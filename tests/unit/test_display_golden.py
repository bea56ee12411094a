"""Every renderer beside a file with what it should give. `UPDATE_GOLDEN=1 pytest ...` writes them: read the diff."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ipyllama.chat import Turn
from ipyllama.chat.turn import Place
from ipyllama.display import ModelRow, Progress, capability_bundle, models_table, reply_bundle, status_table
from ipyllama.display.cache import cache_table, prefix_table
from ipyllama.display.conversation import Said, conversation_bundle
from ipyllama.display.documents import documents_table
from ipyllama.display.progress import line_bundle, progress_bundle
from ipyllama.display.rag import hits_bundle, rag_bundle
from ipyllama.display.recall import RecallPlot, evaluation_table
from ipyllama.display.reply import streaming_bundle
from ipyllama.display.tokens import TokenList
from ipyllama.display.why import turns_table
from ipyllama.engine.capability import ENCODER, Capability
from ipyllama.explain import Explanation, Span, explain
from ipyllama.ledger import Ledger
from ipyllama.lens.divergence import Divergence
from ipyllama.lens.next_token import NextToken, Source
from ipyllama.logprobs import Logprob, TokenLogprob
from ipyllama.magics.commands import line_help
from ipyllama.magics.options import cell_help
from ipyllama.options import GenerateOptions
from ipyllama.prefix import PrefixInfo, Stats
from ipyllama.prefix.records import Counts
from ipyllama.rag.evaluate import Evaluation, Found
from ipyllama.rag.reply import RagReply
from ipyllama.rag.types import Chunk, Hit
from ipyllama.reply import Reply, Timings, Usage
from ipyllama.why import Why

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

NOW = 1_800_000_000.0
MB = 1_000_000
PREFIXES = [
    PrefixInfo("3f2a91c0", "0" * 16, "smollm2", 2304, 6 * MB, 47 * MB, 8.2, NOW - 30, ("disk", "RAM"), (1, 2)),
    PrefixInfo("91c03f2a7", "0" * 16, "smollm2", 310, 7 * MB, 0, 0.9, NOW - 7200, ("disk",), (1, 2)),
    PrefixInfo("b0" * 4, "1" * 16, "", 1024, 130 * MB, 0, 75.0, NOW - 40 * 86400, ("disk",), (1, 2)),
    PrefixInfo("c0" * 4, "0" * 16, "<b>日本", 12, 1 * MB, 0, 0.1, None, ("RAM",), (1, 2)),
    PrefixInfo("d0" * 4, "2" * 16, "", 0, 5 * MB, 0, 0.0, NOW - 300, ("disk",), (), "damaged: its header is damaged"),
    PrefixInfo("d1" * 4, "2" * 16, "", 0, 5 * MB, 0, 0.0, NOW - 300, ("disk",), (), "damaged: its header is damaged"),
    PrefixInfo("e0" * 4, "0" * 16, "smollm2", 5, 1 * MB, 0, 0.1, NOW, ("RAM",), ()),
]
PINNED = [replace(PREFIXES[0], pinned=2304, hits=1200), replace(PREFIXES[1], pinned=256), PREFIXES[2]]
TEXTS = {
    "3f2a91c0": "which of these rivers, if any, flows through the old town of Basel?\nassistant",
    "91c03f2a7": "日本語🦙 <script>alert(1)</script> \x1b[31mred",
    "c0" * 4: "",
}
STATS = Stats(Path("/home/ann/.ipyllama/lesson/prefix"), "", 67 * MB, 14, 10 << 30, 34 * MB, 6, 1 << 30, Counts(), "")
TROUBLED = Stats(
    Path("/data/<x>"),
    "s3://class/prefix",
    0,
    0,
    2 * MB,
    0,
    0,
    512 << 20,
    Counts(hits=9, saved=1, seconds=12.4, damaged=[f"tokens {n} to {n + 256}: its state is damaged" for n in range(4)]),
    "nothing is saved in /data/<x>: the disk is full",
)


def turn(message: str, usage: Usage, why: Why | None) -> Turn:
    return Turn(text="…", message=message, ledger=Ledger().append_prompt(range(300)), usage=usage, why=why)


TURNS = [
    turn("Which rivers\nflow through Basel?", Usage(0, 0, 41, 9), Why("first use", 41, 0)),
    turn("And through <Bern>, 日本 and all the other towns there?", Usage(49, 0, 12, 9), Why("continued", 61, 49)),
    turn("Again", Usage(0, 256, 1044, 0), Why("text changed", 1300, 256, 290, (2, 3, 9, 4), (5, 3, 9, 4))),
    turn("Stopped", Usage(), None),
    replace(turn("Once more", Usage(restored=41), None), replayed=True),
    turn("Of yesterday", Usage(0, 12, 49, 9), None),
]


class Words:
    """A vocabulary whose tokens are words."""

    def piece(self, token: int, special: bool = False) -> bytes:
        known = {1: " a", 2: " chatty", 5: " <terse>\n", 9: " geographer\t\x1b[1m"}
        return known.get(token, f" {token}").encode()


def explained(reply: Reply) -> dict[str, str]:
    explanation = explain(reply, Words())
    assert explanation is not None
    return explanation._repr_mimebundle_()


PIECES = ("The", " <script>alert(1)</script>", "\n", "日".encode()[:1], "日".encode()[1:], "<|im_end|>", "\x1b[1m", "")


def told(number: int, chance: float, entropy: float) -> TokenLogprob:
    """A token with three alternatives: itself, half as likely another, and one that is hardly possible."""
    pieces = [piece if isinstance(piece, bytes) else piece.encode() for piece in PIECES]
    other, third = pieces[(number + 1) % len(pieces)], pieces[(number + 3) % len(pieces)]
    one = Logprob(number, pieces[number], math.log(chance))
    top = (one, Logprob(number + 100, other, math.log(chance / 2)), Logprob(number + 200, third, math.log(1e-6)))
    return TokenLogprob(number, one.bytes, one.logprob, entropy, tuple(sorted(top, key=lambda each: -each.logprob)))


CHANCES = ((0.9999, 0.001), (0.62, 1.4), (0.34, 2.2), (0.034, 4.8), (0.0004, 9.0), (1.0, 0.0), (0.85, 0.6), (0.5, 1.0))
TOKENS = tuple(told(number, *each) for number, each in enumerate(CHANCES))


class Letters(Words):
    """A vocabulary of letters, and one token that is no text."""

    n_tokens = 8

    def piece(self, token: int, special: bool = False) -> bytes:
        return b"\xe6\x97" if token == 7 else f" {'abcdef<'[token]}".encode()

    def detokenize(self, tokens: Sequence[int], special: bool = False) -> str:
        return b"".join(map(self.piece, tokens)).decode("utf-8", "replace")


def looked(**options: float) -> NextToken:
    logits = np.log(np.array([0.01, 0.4, 0.2, 0.1, 0.05, 0.04, 0.15, 0.05], np.float32))
    source = Source(None, Letters(), lambda ledger: logits.copy())  # samplers of these options ask nothing of a model
    ledger = Ledger().append_prompt([1, 2, 6])
    return NextToken.read(source, ledger, 0, GenerateOptions().replace_from(options))


SAID = Turn.of(
    Reply(ANSWER, usage=USAGE, timings=TIMINGS, finish_reason="length", notes=("a <b>note</b>",)),
    Place(message="Why <b>is</b>\n  it? \x1b[31m", parent=TURNS[0], name="<i>draft</i>"),
    Ledger(),
)

FOUND = (
    Found("vector", (0.7, 0.81, 0.86, 0.88, 0.91), 0.778, 0.0148, 0.021),
    Found("text", (0.43, 0.52, 0.58, 0.63, 0.67), 0.512, 0.0059, 0.0101),
    Found("hybrid", (0.71, 0.83, 0.87, 0.89, 0.914), 0.789, 0.0211, 0.0304),
)
CITED = RagReply.of(
    Reply(
        "It has **three** rooms [2], and no more [7].",
        usage=Usage(16, 1383, 85, 12),
        timings=Timings(prefill=0.5, first_token=0.5, decode=0.4),
        exact=False,
        fused=True,
    ),
    "How many rooms?",
    (
        Hit(Chunk("1", "The castle:\n\n  nine <b>rooms</b>.", "docs/castle.md", "Places > Castle"), 0.41, 2, None),
        Hit(Chunk("2", "The mill has three rooms. " * 20, "mill <1>.md"), 0.93, 1, 1),
    ),
).checked(Divergence((0.25, 0.0625), (True, False), 1468, 5.25))


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
    "reply_cache_off": lambda: reply_bundle(Reply("One", usage=USAGE, why=Why("cache off", 812, 780))),
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
    "cache": lambda: cache_table(STATS, "beside the notebook", model="smollm2")._repr_mimebundle_(),
    "cache_off": lambda: cache_table(TROUBLED, "IPYLLAMA_PREFIX_DIR says so", on=False)._repr_mimebundle_(),
    "cache_ram": lambda: cache_table(
        replace(STATS, location=None), "chosen when the model was loaded"
    )._repr_mimebundle_(),
    "prefixes_pinned": lambda: prefix_table(PINNED, TEXTS, now=NOW, number=20, empty="")._repr_mimebundle_(),
    "prefixes": lambda: prefix_table(PREFIXES, TEXTS, now=NOW, number=20, empty="")._repr_mimebundle_(),
    "prefixes_shared": lambda: prefix_table(PREFIXES, None, now=NOW, number=2, empty="")._repr_mimebundle_(),
    "prefixes_none": lambda: prefix_table([], {}, now=NOW, number=2, empty="nothing <yet>")._repr_mimebundle_(),
    "turns": lambda: turns_table(TURNS, TURNS[2], (1, 2, 4, 7, 0, 9))._repr_mimebundle_(),
    "turns_none": lambda: turns_table([], TURNS[2], ())._repr_mimebundle_(),
    "conversation": lambda: conversation_bundle(
        "Chat 'x <y>' with m: 2 turns", "Be <brief>.\nAnd kind.", [Said(TURNS[0], 1), Said(SAID, 3, 1, 3, stale=True)]
    ),
    "conversation_none": lambda: conversation_bundle("Chat 'x' with m: 0 turns", None, []),
    "tokens": lambda: TokenList('Tokens of the answer to "Who <b>is</b> it?"', TOKENS)._repr_mimebundle_(),
    "tokens_none": lambda: TokenList("Tokens", ())._repr_mimebundle_(),
    "stages": lambda: looked(temperature=0.5, top_k=0, top_p=0.8, min_p=0.2)._repr_mimebundle_(),
    "stages_greedy": lambda: looked(temperature=0)._repr_mimebundle_(),
    "why": lambda: explained(TURNS[2]),
    "why_continued": lambda: explained(TURNS[1]),
    "why_end": lambda: Explanation(
        Why("template rewrote history", 60, 20, 20, (), (1,), "x < y"), (), (Span("<think>", True),)
    )._repr_mimebundle_(),
    "capability": lambda: capability_bundle(FULL),
    "capability_extend": lambda: capability_bundle(Capability("extend", False, "hybrid: part <attention>")),
    "capability_none": ENCODER._repr_mimebundle_,
    "documents": lambda: documents_table(
        "Index docs: 1,203 chunks of 2 documents, minilm",
        {"docs/<b>.md": 1200, "latin.txt": 3},
        {"scan.pdf": "the PDF holds no text (scanned pages?)", "latin.txt": "is not UTF-8: read as <Windows-1252>"},
    )._repr_mimebundle_(),
    "documents_many": lambda: documents_table(
        "Index many", {f"file {i}.md": i for i in range(30)}, {}
    )._repr_mimebundle_(),
    "documents_none": lambda: documents_table("Index new", {}, {})._repr_mimebundle_(),
    "evaluation": lambda: evaluation_table(
        Evaluation("faq <b>", 1493, 5, FOUND, (("How <i>?", "a.md"),))
    )._repr_mimebundle_(),
    "recall": lambda: RecallPlot({found.mode: found.recall for found in FOUND})._repr_mimebundle_(),
    "recall_hostile": lambda: RecallPlot({'"><img src=x onerror=alert(1)>': (0.0,), "b": (1.0,)})._repr_mimebundle_(),
    "cited": lambda: rag_bundle(CITED),
    "cited_none": lambda: RagReply.of(Reply("Hm."), "Why?", ())._repr_mimebundle_(),
    "hits": lambda: hits_bundle("how <many> rooms?", CITED.hits),
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
