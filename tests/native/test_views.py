"""Views without a browser: what messages of a front end do, and what it is given to draw."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from native.jobs import endless

from ipyllama.lens import SamplingLab
from ipyllama.llm import LLM
from ipyllama.reply import Delta, Reply
from ipyllama.widgets.lab import LabView
from ipyllama.widgets.tokens import TokenView, packed
from ipyllama.widgets.worker import Worker

Load = Callable[..., LLM]
TEXT = "Once upon a time there was a"


def wait(until: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not until():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)


def asked(llm: LLM, n: int = 12, **options: object):
    forbid = {llm.vocab.eos: float("-inf")}
    return llm.chat().ask("Say hello.", max_tokens=n, logprobs=3, logit_bias=forbid, **options)


def tell(view: TokenView | LabView, **content: object) -> None:
    """What ipywidgets does with a message of the front end."""
    view._handle_custom_msg(content, [])


def test_what_is_drawn_is_what_the_reply_tells(load: Load) -> None:
    turn = asked(load("smollm2"))
    drawn = packed(turn, "")
    tokens = turn.logprobs
    assert np.frombuffer(drawn["ids"], np.int32).tolist() == list(turn.tokens)
    np.testing.assert_allclose(np.frombuffer(drawn["logprobs"], np.float32), [t.logprob for t in tokens], rtol=1e-6)
    np.testing.assert_allclose(np.frombuffer(drawn["entropies"], np.float32), [t.entropy for t in tokens], rtol=1e-6)
    others = np.frombuffer(drawn["others"], np.int32).reshape(len(tokens), drawn["n_top"])
    assert others.tolist() == [[other.id for other in token.top] for token in tokens]
    assert "".join(drawn["texts"]).startswith(turn.text)
    known = np.frombuffer(drawn["known"], np.int32).tolist()
    pieces = dict(zip(known, drawn["known_bytes"].split("\n"), strict=True))
    assert all(pieces[other.id] == other.bytes.hex(" ") for token in tokens for other in token.top)
    assert known == sorted(known)
    assert len(drawn["known_texts"].split("\n")) == len(known)
    assert (drawn["branches"], len(drawn["likely"]), len(drawn["open"])) == (True, len(tokens), len(tokens))
    assert packed(Reply("", logprobs=()), "")["n_top"] == 0


def test_a_click_branches_and_the_branch_can_be_branched(load: Load) -> None:
    turn = asked(load("llama"))
    view = turn.token_view()
    sent: list[object] = []
    view.observe(sent.append, "answers")
    token = turn.logprobs[3].top[1].id
    tell(view, kind="branch", answer=0, at=3, token=token)
    wait(lambda: len(view.replies) == 2 and not view.running)
    branch = view.replies[1]
    assert (branch.tokens[:4], branch.usage.computed) == ((*turn.tokens[:3], token), 1)
    assert turn.chat.head == branch
    assert view.answers[1]["title"].startswith("Branch at token 3: ")
    assert view.answers[1]["title"].endswith(" · turn 2, the next cell continues from it")
    assert view.dirty
    tell(view, kind="branch", answer=1, at=5, token=branch.logprobs[5].top[2].id)
    wait(lambda: len(view.replies) == 3)
    assert view.replies[2].tokens[:5] == branch.tokens[:5]
    text = str(view)
    assert text.count("perplexity") == 3
    assert sent == []  # not all of them again with each
    assert len(view.get_state("answers")["answers"]) == 3
    assert view.bundle()["text/html"].count("Branch at token") == 2
    tell(view, kind="left")
    wait(lambda: not view.dirty)


def test_stop_keeps_what_there_is(load: Load) -> None:
    llm = load("llama", n_ctx=8192)
    forbid = {llm.vocab.eos: float("-inf")}
    turn = llm.chat().start("Go on.", max_tokens=8000, logprobs=1, logit_bias=forbid)
    next(event for event in turn if isinstance(event, Delta))
    turn.cancel()
    turn.wait()
    view = turn.reply.token_view()
    tell(view, kind="branch", answer=0, at=0, token=300)
    wait(lambda: view.written)
    tell(view, kind="stop")
    wait(lambda: len(view.replies) == 2)
    assert view.replies[1].finish_reason == "interrupted"
    assert 1 < len(view.replies[1].tokens) < 8000
    wait(lambda: view.running == {})


def test_stopped_before_it_begins_it_is_no_turn(load: Load) -> None:
    llm = load("llama", n_ctx=8192)
    view, seen = asked(llm).token_view(), []
    view.observe(lambda change: seen.append(change["new"]), "running")
    job = endless(llm)
    tell(view, kind="branch", answer=0, at=3, token=300)
    tell(view, kind="stop")
    wait(lambda: len(seen) == 2)  # the front end was told that it began, and that it ended
    assert (view.written, seen[1], len(view.replies)) == ("", {}, 1)
    job.cancel()
    assert len(view.replies[0].chat.all_turns) == 1


def test_what_cannot_be_branched_is_said(load: Load) -> None:
    llm = load("llama")
    view = llm.complete("abc", max_tokens=3, logprobs=2).token_view()
    assert not view.answers[0]["branches"]
    tell(view, kind="branch", answer=0, at=1, token=300)
    wait(lambda: "belongs to no conversation" in view.problem)
    view = asked(llm).token_view()
    tell(view, kind="branch", answer=0, at=99, token=300)
    wait(lambda: "there is no 99" in view.problem)
    tell(view, kind="branch", answer=7, at=0, token=300)
    tell(view, kind="branch", answer=0, at=0, token=10**8)
    wait(lambda: "is no token" in view.problem)
    for nonsense in ({"kind": "branch", "answer": "0", "at": 0, "token": 1}, {"kind": "open"}, {}):
        tell(view, **nonsense)
    view._handle_custom_msg("text", [])
    llm.close()
    tell(view, kind="branch", answer=0, at=0, token=300)
    wait(lambda: f"{llm.name} was unloaded: load it again" in view.problem)
    assert len(view.replies) == 1
    again = load("llama")  # the view goes on with it
    tell(view, kind="branch", answer=0, at=0, token=300)
    wait(lambda: len(view.replies) == 2)
    assert view.replies[1].chat.llm is again


def test_two_views_on_one_model_wait_for_each_other(load: Load) -> None:
    llm = load("llama", n_ctx=4096)
    views = [asked(llm, seed=seed).token_view() for seed in (1, 2)]
    other = llm.sampling_lab("x")
    job, lab = endless(llm), LabView(other)
    for view in views:
        for at in (2, 4):
            tell(view, kind="branch", answer=0, at=at, token=300 + at)
    tell(lab, kind="draw", n=3)
    job.cancel()
    wait(lambda: [len(view.replies) for view in views] == [3, 3] and len(lab.lab.drawn) == 3)
    for view in views:
        for branch in view.replies[1:]:
            again = llm.score(branch.ledger.head(len(branch.ledger) - len(branch.tokens)), branch.tokens, 3)
            assert branch.logprobs == again


@pytest.fixture
def lab(load: Load) -> SamplingLab:
    return load("smollm2").sampling_lab(TEXT, temperature=1.0)


def test_sliders_change_the_lab(lab: SamplingLab) -> None:
    view = LabView(lab)
    assert [column["name"] for column in view.state["columns"]] == [
        "model", "penalties", "top-k", "top-p", "min-p", "temperature",
    ]  # fmt: skip
    assert [column["off"] for column in view.state["columns"]] == [False, True, False, False, False, False]
    tell(view, kind="set", options={"top_k": 3, "repeat_penalty": 1.2})
    wait(lambda: view.state["options"]["top_k"] == 3)
    assert (lab.options.top_k, lab.options.repeat_penalty) == (3, 1.2)
    assert view.state["columns"][2]["left"] == "3 left"
    rows = {row["id"]: row["shares"] for row in view.state["rows"]}
    for number, stage in enumerate(lab.next.stages):
        assert all(shares[number] == stage.probability(token) for token, shares in rows.items())
    tell(view, kind="set", options={"temperature": 0})
    wait(lambda: view.state["options"]["temperature"] == 0)
    assert [column["off"] for column in view.state["columns"]] == [False, False, True, True, True, False]


def test_of_many_moves_the_last_of_each_slider_counts(lab: SamplingLab) -> None:
    view, free = LabView(lab), threading.Event()
    view.worker.do(lambda: free.wait(60) and None)
    for options in ({"top_k": 5}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.2}, {"min_p": 0.1}):
        tell(view, kind="set", options=options)
    assert len(view.worker._waiting) <= 4, "what a later move of the same slider makes needless is not done"
    free.set()
    wait(lambda: view.state["options"]["min_p"] == 0.1)
    assert (lab.options.top_k, lab.options.top_p, lab.options.min_p) == (3, 0.5, 0.1)


def test_draws_are_appended_and_taken_back(lab: SamplingLab) -> None:
    view = LabView(lab)
    tell(view, kind="draw", n=4)
    wait(lambda: len(view.state["drawn"]) == 4)
    assert lab.text == "".join(view.state["drawn"])
    assert view.bundle()["text/plain"].startswith("4 tokens drawn:")
    tell(view, kind="undo")
    wait(lambda: len(view.state["drawn"]) == 3)
    token = view.state["rows"][1]["id"]
    tell(view, kind="append", token=token)
    wait(lambda: len(view.state["drawn"]) == 4 and lab.drawn[-1] == token)
    assert view.state["before"] == TEXT
    assert view.dirty


def test_what_cannot_be_set_is_said(lab: SamplingLab) -> None:
    view = LabView(lab)
    tell(view, kind="set", options={"top_p": 7})
    wait(lambda: "top_p must be between 0 and 1" in view.problem)
    tell(view, kind="set", options={"top_p": "x"})
    wait(lambda: "must be a number" in view.problem)
    tell(view, kind="append", token=10**8)
    wait(lambda: "there is no token" in view.problem)
    tell(view, kind="set", options={"grammar": "root ::= x"})
    tell(view, kind="set", options=None)
    tell(view, kind="draw", n="4")
    tell(view, kind="undo")
    wait(lambda: view.problem == "")
    assert (lab.drawn, lab.options.top_p, lab.options.grammar) == ((), 0.95, "")


def test_a_worker_forgets_what_the_next_of_its_kind_makes_needless() -> None:
    worker, gate, done = Worker("test"), threading.Event(), []
    worker.do(lambda: gate.wait(60))
    for number in range(5):
        worker.do(lambda number=number: done.append(number), "slider")
    worker.do(lambda: done.append("draw"))
    worker.do(lambda: done.append(6), "slider")
    worker.do(lambda: done.append(7), "slider")
    gate.set()
    wait(lambda: len(done) == 3)
    assert done == [4, "draw", 7]


def test_a_worker_outlives_what_goes_wrong(caplog: pytest.LogCaptureFixture) -> None:
    worker, done = Worker("test"), []
    worker.do(lambda: 1 / 0)
    worker.do(lambda: done.append(1))
    wait(lambda: done)
    assert "ZeroDivisionError" in caplog.text
