"""Short ways to jobs: prompts, options, a job that takes seconds, and a gate that holds the worker."""

from __future__ import annotations

import threading

from ipyllama.engine import Job
from ipyllama.ledger import Ledger
from ipyllama.llm import LLM
from ipyllama.options import GenerateOptions
from ipyllama.reply import Event, Queued, Reply


class Gate:
    """A wrap that holds the worker until the gate is opened."""

    def __init__(self) -> None:
        self.reached, self.open = threading.Event(), threading.Event()

    def __call__(self, reply: Reply, ledger: Ledger) -> Reply:
        self.reached.set()
        assert self.open.wait(60)
        return reply


def prompt(llm: LLM, text: str) -> Ledger:
    return Ledger().append_prompt(llm.tokenize(text))


def options(**chosen: object) -> GenerateOptions:
    return GenerateOptions().replace_from({"temperature": 0, **chosen})


def endless(llm: LLM, text: str = "go") -> Job:
    """A job that runs for seconds if nobody ends it."""
    return llm.generate(prompt(llm, text), GenerateOptions(max_tokens=100_000, temperature=0))


def places(events: list[Event]) -> list[int]:
    return [event.place for event in events if isinstance(event, Queued)]
