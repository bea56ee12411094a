"""Random scenarios with reuse="exact": whatever was asked, edited, stopped, restarted, evicted or damaged before, the
logits of every sampled token and the tokens are, bit for bit, those of a model that has nothing in memory.

`python -m native.scenarios.run --cases 600` (from tests/) runs many, here are some for each kind of model. A failure
names its seed and the shortest list of operations that was found. Where a job was stopped depends on the machine, so
scenarios with `stop` may not repeat.

Bugs that were planted to see that they are found, with --seed 9, and where:

- Live KV is reused as far as the tokens agree, not to the end of a piece. Scenario 40, llama: off by 0.004.
- After a restore the rest is evaluated in pieces of 128. Scenario 1, gemma3: off by 0.01.
- Live KV is not trimmed where the prompt parts from it. Scenario 0, llama: off by 0.97.
- The checksum of a block's state is not compared. Scenario 3, lfm2, a bit of every file flipped: off by 0.001.
- The ends of restored blocks are forgotten. Scenario 0, llama: an exact answer is called inexact.
- A block is saved with one token of the one before it. Scenario 1, gemma3.
- A block too many counts as saved. Scenario 1, gemma3: "tokens were at hand".
- The ledger of an answer lacks its last token. Scenario 0, llama.

Not found, because a second check sees it: the checksum of the header, the key against the tokens, the name of the file
(each left out alone), trimming recurrent state (llama.cpp refuses).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from native.ask import Oracle
from native.scenarios.cold import MOST, N_CTX
from native.scenarios.run import TINY, kinds, scenario
from native.scenarios.subject import Kind, Mismatch, Subject

from ipyllama.prefix.keys import Link
from ipyllama.prefix.live import Live

CASES = 5  # of each kind
REAL = "real.73"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Iterator[dict[str, Kind]]:
    with kinds([*TINY, "smollm2"], tmp_path_factory.mktemp("scenarios"), smollm2) as opened:
        yield {kind.name: kind for kind in opened}


@pytest.mark.parametrize("name", TINY)
def test_random_scenarios(models: dict[str, Kind], name: str) -> None:
    total: Counter[str] = Counter()
    for case in range(CASES):
        total += scenario(models[name], f"sample.{case}").counts
    assert min(total["reused"], total["restored"], total["computed"]) > 200
    assert total["damage"] > 2
    assert total["restart"] > 4


def test_a_random_scenario_with_the_real_model(models: dict[str, Kind]) -> None:
    """It goes on, is asked again, stopped, damaged, restarted and edited; seconds, where others take a minute."""
    counts = scenario(models["smollm2"], REAL).counts
    assert counts["answers"] == 5
    assert min(counts["reused"], counts["restored"]) > 20


@pytest.mark.parametrize("name", TINY)
def test_the_cold_answers_are_those_of_llama_h(
    models: dict[str, Kind], tmp_path: Path, oracle: Oracle, name: str
) -> None:
    kind = models[name]
    subject = Subject(kind, tmp_path / "store", slow=True)
    subject.ask(0, 300, 5)
    subject.go_on(-1, 1, (40, 260), 5)
    subject.close()
    for point in subject.points:
        cold = kind.cold.ask(point)
        segments = [(segment.tokens, segment.sampled) for segment in point.segments]
        answer = oracle.run(kind.path, segments, n_ctx=N_CTX, n_threads=1, n_greedy=MOST, folder=tmp_path)
        assert cold.tokens == answer.greedy
        assert np.array_equal(cold.logits[0], answer.first.view(np.uint32))
        assert np.array_equal(cold.logits[-1], answer.last.view(np.uint32))


@pytest.mark.parametrize("name", TINY)
def test_no_prompt_token_is_computed_twice(models: dict[str, Kind], tmp_path: Path, name: str) -> None:
    """The new tokens and one: the last of an answer was sampled and never evaluated. Live, in another process, on an
    earlier branch."""
    subject = Subject(models[name], tmp_path, slow=True)

    def computed(operation: str, *arguments: object) -> int:
        before = subject.counts["computed"]
        subject.do((operation, *arguments))
        return subject.counts["computed"] - before

    assert computed("ask", 0, 400, 6) == 400
    assert computed("go_on", -1, 1, (41,), 6) == 40 + 1
    assert computed("again", -1, 6) == 1
    subject.restart()
    assert computed("go_on", -1, 2, (301,), 6) == 300 + 1
    subject.restart()
    assert computed("go_on", 0, 2, (21,), 6) == 20 + 1
    assert computed("go_on", -2, 0, (31,), 6) == 30 + 1
    subject.restart()
    assert computed("again", 0, 6) == 1
    subject.close()


def forget_and_keep(live: Live, n: int) -> None:
    """A cut that leaves the cells where they are."""
    live._tokens, live._ends = live._tokens[:n], [end for end in live._ends if end <= n]
    live._exact = min(live._exact, n)


@pytest.mark.parametrize(
    ("name", "owner", "method", "wrong"),
    [
        ("llama", Live, "_cut", forget_and_keep),
        ("gemma3", Link, "usable", property(lambda self: True)),
    ],
    ids=["nothing is trimmed", "going on inside a piece"],
)
def test_a_fault_is_found_and_shortened(
    models: dict[str, Kind], monkeypatch: pytest.MonkeyPatch, name: str, owner: type, method: str, wrong: object
) -> None:
    monkeypatch.setattr(owner, method, wrong)

    def until_one_fails() -> None:
        for case in range(40):
            scenario(models[name], f"wrong.{case}")

    with pytest.raises(AssertionError, match="short form:") as caught:
        until_one_fails()
    assert len(str(caught.value).splitlines()) <= 8


def test_an_answer_that_differs_by_one_bit_is_told(models: dict[str, Kind], tmp_path: Path) -> None:
    subject = Subject(models["llama"], tmp_path, slow=True)
    subject.ask(0, 20, 2)
    answer = models["llama"].cold.ask(subject.points[0])
    row = answer.logits[1].copy()
    row[7] ^= 1
    other = type(answer)(answer.tokens, (answer.logits[0], row, *answer.logits[2:]))
    assert "sampled token 1" in other.differs(answer)
    subject.kind = SimpleNamespace(cold=SimpleNamespace(ask=lambda ledger: other), tokens=(262, 356), longest=600)
    with pytest.raises(Mismatch):
        subject.ask(1, 20, 2)
    subject.close()
