"""Our engine against llama.h itself: the same token ids, the same logits bit for bit, cold or from reused KV."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from native.ask import Answer, Oracle, bits
from numpy.typing import NDArray

from ipyllama import _core
from ipyllama.ledger import Ledger
from ipyllama.llm import LLM
from ipyllama.options import GenerateOptions
from ipyllama.reply import Reply, Usage
from ipyllama.vocab import Vocabulary

SHORT = "The capital of France is"
MULTILINGUAL = (
    "Das Käsebrötchen ist köstlich. Ποιος είναι εκεί; Съешь ещё этих мягких булок. 日本語の文章を書きます。"
    "한국어도 조금. שלום עולם! مرحبا بالعالم. नमस्ते दुनिया। ประเทศไทย 🎉👩‍👩‍👧‍👦🇫🇷 naïve café — “quotes” …\n\t1,234.56 €"
)
LONG = "".join(f"{n}. In {1900 + 7 * n} a ship left the harbour with {n * 13} crates of green tea. " for n in range(41))
STORY = "".join(f"{n}. The {color} fox met a dog near {n * 17} trees. " for n in range(9) for color in ("red", "grey"))
LATER = "And what did they do then, all of them, under the trees? " * 7
N_GREEDY = 32
EVERY_KIND = ("smollm2", "llama", "gemma3", "mamba", "lfm2", "jamba")
TRIMMABLE = ("smollm2", "llama", "gemma3")

TEXTS = {
    "empty": "",
    "space": " ",
    "spaces": "   a  b \n\n\n c\t\t",
    "newlines": "\r\n\r\n\n",
    "multilingual": MULTILINGUAL,
    "combining": "e\u0301 n\u0303 \u202eright to left\u202c zero\u200bwidth \ufeff bom",
    "emoji": "👩🏽‍🚀🏳️‍🌈👨‍👩‍👧‍👦" * 3,
    "control": "\x01\x02\x7f\x1b[31m",
    "embedded NUL": "before\x00after",
    "special tokens": "<|im_start|>system\nx<|im_end|><|endoftext|><s></s>",
    "half a special token": "<|im_start <|im_start|",
    "numbers": "0123456789 3.14159 1e-10 0x1F 1,000,000",
    "code": "def f(x):\n    return {'a': [1, 2]}  # ok\n\n\tif (x != y) { y -= 1; }",
    "long word": "ab" * 2000,
    "noncharacters": "\uffff\U0010ffff\ue000",
    "apostrophes": "I'll don't WE'VE they’re 'S",
}


def answer(llm: LLM, ledger: Ledger) -> tuple[Reply, NDArray[np.float32], Usage]:
    """A greedy reply, the logits after the prompt, and what the prompt cost."""
    first = llm.generate(ledger, GenerateOptions(temperature=0, max_tokens=1)).result()
    logits = llm._engine._live.sequence.logits()
    return llm.generate(ledger, GenerateOptions(temperature=0, max_tokens=N_GREEDY)).result(), logits, first.usage


class Asked:
    """A model and the oracle, asked for the same thing; every answer must agree."""

    def __init__(self, llm: LLM, oracle: Oracle, folder: Path) -> None:
        self.llm, self.oracle, self.folder = llm, oracle, folder

    def check(self, ledger: Ledger) -> tuple[Ledger, Usage]:
        """The ledger with the reply, and what the prompt cost."""
        reply, logits, usage = answer(self.llm, ledger)
        cold = self.cold(ledger)
        assert reply.tokens == cold.greedy
        assert np.array_equal(bits(logits), bits(cold.first))
        assert np.array_equal(bits(self.llm._engine._live.sequence.logits()), bits(cold.last))
        assert usage.prompt == len(ledger)
        return ledger.append_sampled(reply.tokens), usage

    def cold(self, ledger: Ledger) -> Answer:
        segments = [(segment.tokens, segment.sampled) for segment in ledger.segments]
        n_ctx, n_threads = self.llm.n_ctx, self.llm.n_threads
        return self.oracle.run(
            self.llm.path, segments, n_ctx=n_ctx, n_threads=n_threads, n_greedy=N_GREEDY, folder=self.folder
        )

    def prompt(self, text: str, after: Ledger | None = None) -> Ledger:
        return (after or Ledger()).append_prompt(self.llm.tokenize(text, add_special=after is None))


@pytest.mark.parametrize("text", [SHORT, MULTILINGUAL, LONG], ids=["short", "multilingual", "long"])
def test_cold_prompts_on_the_real_model(load, oracle: Oracle, tmp_path: Path, text: str) -> None:
    asked = Asked(load("smollm2", n_ctx=2048, n_threads=2), oracle, tmp_path)
    ledger = asked.prompt(text)
    assert (len(ledger) > 1000) == (text is LONG)
    _, usage = asked.check(ledger)
    assert usage == Usage(computed=len(ledger), generated=1)


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_reused_and_restored_equal_cold(load, oracle: Oracle, tmp_path: Path, kind: str) -> None:
    """A conversation as cells live it: follow up, run again, edit, go elsewhere and come back."""
    asked = Asked(load(kind, n_ctx=2048), oracle, tmp_path)
    first, usage = asked.check(asked.prompt(STORY))
    assert usage.computed == usage.prompt

    follow_up = asked.prompt("Now tell me about the trees and the dog.", after=first)
    second, usage = asked.check(follow_up)
    assert usage.reused == len(first) - 1  # the last sampled token was never evaluated

    _, usage = asked.check(follow_up)  # run again
    assert (usage.reused + usage.restored, usage.computed) == (len(follow_up) - 1, 1)

    third, usage = asked.check(asked.prompt("What is a fox? Say it in ten words.", after=first))  # edited
    if kind in TRIMMABLE:
        assert usage.reused == len(first)
    else:  # back to the last checkpoint on the way: before the last token of the first answer
        assert (usage.reused, usage.restored) == (0, len(first) - 1)

    asked.check(asked.prompt("Something else altogether, and long enough to be worth the while. " * 4))
    _, usage = asked.check(asked.prompt(LATER, after=second))  # back on the first branch
    assert usage.restored == len(second) - 1
    _, usage = asked.check(asked.prompt(LATER, after=third))  # and on the other one
    assert usage.reused + usage.restored == len(third) - 1


def test_an_edit_in_the_middle_loses_one_piece_at_most(load, oracle: Oracle, tmp_path: Path) -> None:
    asked = Asked(load("llama"), oracle, tmp_path)
    tokens = asked.llm.tokenize(LONG)[:620]
    asked.check(Ledger().append_prompt(tokens))
    edited = [*tokens[:600], *reversed(tokens[600:])]
    _, usage = asked.check(Ledger().append_prompt(edited))
    assert usage.reused == 512


def test_the_same_tokens_in_other_turns_are_another_schedule(load, oracle: Oracle, tmp_path: Path) -> None:
    """Pieces of less than 64 tokens are summed in another order: the live KV of one is not the other's."""
    asked = Asked(load("llama"), oracle, tmp_path)
    tokens = asked.llm.tokenize(LONG)[:300]
    asked.check(Ledger().append_prompt(tokens))
    _, usage = asked.check(Ledger().append_prompt(tokens[:40]).append_prompt(tokens[40:]))
    assert usage.reused == 0
    sampled = Ledger().append_prompt(tokens[:40]).append_sampled(tokens[40:60]).append_prompt(tokens[60:])
    _, usage = asked.check(sampled)
    assert usage.reused == 40


@pytest.mark.parametrize("size", [1, 2, 3, 255, 256, 257, 258, 511, 512, 513, 514])
def test_every_size_around_the_ends_of_pieces(load, oracle: Oracle, tmp_path: Path, size: int) -> None:
    asked = Asked(load("llama", n_ctx=2048), oracle, tmp_path)
    tokens = asked.llm.tokenize(LONG)
    ledger, _ = asked.check(Ledger().append_prompt(tokens[:size]))
    asked.check(ledger.append_prompt(tokens[:size]))


@pytest.fixture(scope="module", params=["smollm2", "llama"])
def vocabulary(request: pytest.FixtureRequest, tiny, smollm2: Path) -> tuple[Path, Vocabulary]:
    path = smollm2 if request.param == "smollm2" else tiny(request.param)
    return path, Vocabulary(_core.Model.load(str(path), vocab_only=True))


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_tokens_are_those_of_llama_h(vocabulary: tuple[Path, Vocabulary], oracle: Oracle, text: str) -> None:
    path, ours = vocabulary
    for add_special, parse_special in ((False, False), (True, True)):
        expected = oracle.tokenize(path, text.encode(), add_special=add_special, parse_special=parse_special)
        assert ours.tokenize(text, add_special, parse_special) == expected
