"""Engine: one worker thread owns model and context; everyone else enqueues.

The caller's thread only waits on a queue, so an interrupt reaches it at once. It sets the abort flag, which
llama.cpp reads between graph nodes, and the running step ends within milliseconds.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass

from ipyllama import _core, crash
from ipyllama.engine import native_log
from ipyllama.engine.generate import Generation, Request, unbegun_reply
from ipyllama.engine.job import Job
from ipyllama.engine.live import Live
from ipyllama.errors import ClosedError, LlamaError
from ipyllama.ledger import Ledger
from ipyllama.reply import Queued, Reply

Wrap = Callable[[Reply, Ledger], Reply]
"""Turns the finished reply and its ledger into what the caller keeps, before `Finished`. It runs on the worker, or
where a job is cancelled while it waits, on the thread that cancels."""


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    job: Job
    request: Request
    wrap: Wrap


class Engine:
    """Runs generations one at a time, in order. `close()` ends the running one and frees the context."""

    def __init__(self, model: _core.Model, context: _core.Context, *, ram_limit: int) -> None:
        """Takes the context over. `ram_limit`: bytes of KV that may wait in RAM for a return to an earlier branch."""
        self._model, self._context = model, context
        # Recurrent state has no positions to cut at; only a whole copy leads back.
        can_trim = not (model.is_recurrent or model.is_hybrid)
        sequence = _core.Sequence(context)
        self._live = Live(sequence, can_trim=can_trim, window=model.n_swa, ram_limit=ram_limit)
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards the three below
        self._waiting: list[_Work] = []
        self._running: Job | None = None
        self._closed = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="ipyllama-engine", daemon=True)
        self._thread.start()
        _alive.add(self)

    def submit(self, request: Request, wrap: Wrap = lambda reply, ledger: reply) -> Job:
        """Queue a generation. Raises `ClosedError` after `close()`."""
        job = Job(self._cancel)
        work = _Work(job, request, wrap)
        with self._lock:
            if self._closed:
                raise ClosedError("this model was unloaded: load it again")
            ahead = len(self._waiting) + (self._running is not None)
            if ahead:
                job.emit(Queued(ahead))
            self._waiting.append(work)
            self._work.put(work)
        return job

    @property
    def n_live(self) -> int:
        """Tokens whose KV is in the context now."""
        return len(self._live)

    @property
    def n_busy(self) -> int:
        """Jobs that run or wait."""
        with self._lock:
            return len(self._waiting) + (self._running is not None)

    @property
    def parked_bytes(self) -> int:
        """Bytes of KV that wait in RAM."""
        return self._live.parked_bytes

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """End every job, stop the worker, free the context. Safe to call twice, and again after Ctrl-C."""
        with self._lock:
            already, self._closed = self._closed, True
            jobs = [*(work.job for work in self._waiting), *([self._running] if self._running else [])]
        if not already:
            self._work.put(None)
        for job in jobs:
            job.cancel()
        if threading.current_thread() is not self._thread:
            # A join that Ctrl-C ends takes the thread for dead (CPython 3.11): the next one would not wait.
            self._ended.wait()
            self._thread.join()

    def abandon(self) -> None:
        """After a fork, in the child: the worker is not there, and whatever it held is the parent's."""
        self._lock = threading.Lock()
        self._closed, self._waiting, self._running = True, [], None
        self._thread, self._ended = threading.current_thread(), threading.Event()
        self._ended.set()

    def _cancel(self, job: Job) -> None:
        with self._lock:
            if job is self._running:
                self._context.abort()
            waiting = next((work for work in self._waiting if work.job is job), None)
            if waiting is not None:
                self._waiting.remove(waiting)
                self._announce()
        if waiting is not None:  # nobody has to wait for the jobs ahead of it
            try:
                job.finish(waiting.wrap(unbegun_reply(waiting.request, job), waiting.request.prompt))
            except Exception as error:  # noqa: BLE001 - it belongs to whoever waits for the reply
                job.fail(error)

    def _serve(self) -> None:
        try:
            self._work_on()
        finally:
            self._ended.set()

    def _work_on(self) -> None:
        while (work := self._work.get()) is not None:
            if self._take(work):
                try:
                    self._run(work)
                finally:
                    with self._lock:
                        self._running = None
            del work  # a finished reply is the caller's to keep, not ours
        self._live.release()
        self._context.close()

    def _take(self, work: _Work) -> bool:
        """Make a job the running one; False if it was cancelled while it waited."""
        with self._lock:
            if work not in self._waiting:
                return False
            self._waiting.remove(work)
            self._running = work.job
            self._context.clear_abort()
            self._announce()
            return True

    def _announce(self) -> None:
        ahead = int(self._running is not None)
        for place, work in enumerate(self._waiting, start=ahead):
            work.job.emit(Queued(place))

    def _run(self, work: _Work) -> None:
        try:
            generation = Generation(work.job, self._model, self._live, self._context.n_ctx, work.request)
            with crash.running(f"answering with {work.request.model_name}"):
                reply, ledger = generation.run()
            work.job.finish(work.wrap(reply, ledger))
        except BaseException as error:  # noqa: BLE001 - whatever it is belongs to the caller; the worker lives on
            if not isinstance(error, LlamaError):
                self._live.clear()  # of unknown cause: do not build on what is in the context
            work.job.fail(error)
        finally:
            native_log.forward()


_alive: weakref.WeakSet[Engine] = weakref.WeakSet()


def _abandon_all() -> None:
    for engine in list(_alive):
        engine.abandon()
    _alive.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)


@atexit.register
def _close_all() -> None:
    """A worker inside llama.cpp must be gone before the interpreter is."""
    for engine in list(_alive):
        engine.close()
