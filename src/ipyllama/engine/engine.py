"""Engine: one worker thread owns model and contexts; everyone else enqueues.

The caller's thread only waits on a queue, so an interrupt reaches it at once. It sets the abort flag, which
llama.cpp reads between graph nodes, and the running step ends within milliseconds.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from ipyllama import _core, crash
from ipyllama.engine import native_log
from ipyllama.engine.answer import Answer, Request, unbegun_reply
from ipyllama.engine.generate import Generation
from ipyllama.engine.job import Job
from ipyllama.engine.kv import KVBoard
from ipyllama.engine.states import States
from ipyllama.engine.task import Task
from ipyllama.engine.together import Together
from ipyllama.engine.work import FairQueue, Work
from ipyllama.errors import Aborted, ClosedError, LlamaError, WrongModel
from ipyllama.ledger import Ledger
from ipyllama.reply import Reply
from ipyllama.stop import Stop

T = TypeVar("T")
Wrap = Callable[[Reply, Ledger], Reply]
"""Turns the finished reply and its ledger into what the caller keeps, before `Finished`. It runs on the worker, or
where a job is cancelled while it waits, on the thread that cancels; on that of the caller for a replayed reply."""


class Engine:
    """Runs generations and other tasks one at a time. Callers take turns: of those that wait, the one that was served
    least recently is next. `close()` ends the running one and frees the contexts."""

    def __init__(self, model: _core.Model, context: _core.Context | None, states: States | None) -> None:
        """Takes the context over, and with it `states`, which fills it; None for a model that does not generate."""
        self._model, self._context, self._live = model, context, states
        self._at_end: list[Callable[[], None]] = []
        self._bell: queue.SimpleQueue[bool] = queue.SimpleQueue()  # True: there is work; False: there will be none
        # Guards the three below. The garbage collector may cancel a job wherever it runs, also under this lock.
        self._lock = threading.RLock()
        self._queue = FairQueue()
        self._running: Work | None = None
        self._closed = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="ipyllama-engine", daemon=True)
        self._thread.start()
        _alive.add(self)

    def submit(
        self, request: Request, wrap: Wrap = lambda reply, ledger: reply, *, caller: object | None = None
    ) -> Job:
        """Queue a generation. None is the caller of all who do not say who they are.

        Raises `ClosedError` after `close()`, `WrongModel` where nothing can be generated.
        """
        if self._context is None or self._live is None:
            raise WrongModel(f"{request.model_name} encodes text and cannot generate: load a chat or completion model")
        if self._closed:  # before the context is asked for anything
            raise ClosedError.of_model(request.model_name)
        job = Job(self._cancel)
        begin = partial(Generation, job, self._model, self._live, self._context.n_ctx, request)
        drop = partial(_drop_job, job, request, wrap)
        what = f"answering with {request.model_name}"
        run = partial(self._generate, job, what, begin, wrap)
        self._put(Work(self if caller is None else caller, (job,), run, drop, self._context.abort))
        return job

    def submit_together(
        self, requests: Sequence[Request], wraps: Sequence[Wrap], *, caller: object | None = None
    ) -> list[Job]:
        """Queue several generations that are to run at once, as `Together` does; a job for each. The model takes as
        many at a time as there is room for, and begins no more while other callers wait. None is a caller of its own.
        Raises like `submit`."""
        if self._context is None or self._live is None:
            raise WrongModel(f"{requests[0].model_name} encodes text and cannot generate: load a chat model")
        jobs = [Job(self._cancel) for _ in requests]
        self._put_together(jobs[0] if caller is None else caller, jobs, requests, wraps)
        return jobs

    def call(self, function: Callable[[Task[T]], T], abort: Callable[[], None] = lambda: None) -> Task[T]:
        """Queue `function(task)`, to run on the worker thread; `abort` ends a native step that it may be in. Raises
        `ClosedError` after `close()`."""
        task: Task[T] = Task(self._cancel)
        drop = partial(task.fail, Aborted("stopped before it began"))
        self._put(Work(self, (task,), partial(self._call, task, function), drop, abort))
        return task

    def at_end(self, function: Callable[[], None]) -> None:
        """Run this on the worker thread when it ends. Ask before the first call that makes it needed."""
        self._at_end.append(function)

    @property
    def context(self) -> _core.Context | None:
        """The context that generates, for tasks on the worker thread."""
        return self._context

    @property
    def board(self) -> KVBoard | None:
        """What is in the context, for any thread; None for a model that does not generate."""
        return None if self._live is None else self._live.board

    @property
    def n_live(self) -> int:
        """Tokens whose KV is in the context now."""
        return len(self._live) if self._live else 0

    def held(self, tokens: Sequence[int]) -> int:
        """How many leading tokens of a prompt have their KV in the context now."""
        return self._live.held(tokens) if self._live else 0

    @property
    def n_busy(self) -> int:
        """Jobs that run or wait."""
        with self._lock:
            return len(self._queue) + (self._running is not None)

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """End every job, stop the worker, free the contexts. Safe to call twice, and again after Ctrl-C."""
        with self._lock:
            already, self._closed = self._closed, True
            work = [*self._queue.in_turn(), *([self._running] if self._running else [])]
        if not already:
            if self._context is not None:
                self._context.abort()  # it may be warming up
            self._bell.put(False)  # after that: the worker closes the context
        for each in work:
            for job in each.jobs:
                job.cancel()
        if threading.current_thread() is not self._thread:
            # A join that Ctrl-C ends takes the thread for dead (CPython 3.11): the next one would not wait.
            self._ended.wait()
            self._thread.join()

    def abandon(self) -> None:
        """After a fork, in the child: the worker is not there, and whatever it held is the parent's."""
        self._lock = threading.RLock()
        self._closed, self._queue, self._running = True, FairQueue(), None
        self._thread, self._ended = threading.current_thread(), threading.Event()
        self._ended.set()

    def _put(self, work: Work) -> None:
        with self._lock:
            if self._closed:
                raise ClosedError.of_model()
            Stop.watch_here(*work.jobs)
            self._bell.put(True)  # first: the worker may find nothing, but nothing may wait for a bell
            self._queue.put(work)
            self._announce()

    def _put_together(
        self, caller: object, jobs: Sequence[Job], requests: Sequence[Request], wraps: Sequence[Wrap]
    ) -> None:
        assert self._context is not None
        run = partial(self._generate_together, caller, jobs, requests, wraps)
        drop = partial(_drop_jobs, jobs, requests, wraps)
        self._put(Work(caller, tuple(jobs), run, drop, self._context.abort))

    def _cancel(self, job: Job | Task[Any]) -> None:
        with self._lock:
            running, waiting = self._running, self._queue.find(job)
            if running is not None and job in running.jobs and running.cancelled:
                running.abort()
            dropped = waiting is not None and waiting.cancelled and self._queue.remove(waiting)
            if dropped:
                self._announce()
        if waiting is not None and dropped:  # nobody has to wait for the jobs ahead of it
            waiting.drop()

    def _serve(self) -> None:
        try:
            self._warm_up()
            self._work_on()
        finally:
            self._ended.set()

    def _warm_up(self) -> None:
        if self._live is not None:
            try:
                self._live.warm_up()
            except LlamaError:
                self._live.clear()  # closed in the meantime, or whoever asks first is told what is wrong
            finally:
                native_log.forward()

    def _work_on(self) -> None:
        while self._bell.get():
            work = self._take()
            if work is not None:
                try:
                    work.drop() if work.cancelled else work.run()
                finally:
                    native_log.forward()
                    with self._lock:
                        self._running = None
            del work  # a finished reply is the caller's to keep, not ours
        for function in self._at_end:
            function()
        if self._live is not None:
            self._live.clear()
        if self._context is not None:
            self._context.close()

    def _take(self) -> Work | None:
        """Make the next work the running one; None if what the bell was rung for was cancelled."""
        with self._lock:
            self._running = self._queue.take()
            if self._context is not None:
                self._context.clear_abort()
            self._announce()
            return self._running

    def _announce(self) -> None:
        for place, work in enumerate(self._queue.in_turn(), start=int(self._running is not None)):
            work.tell(place)

    def _generate(self, job: Job, what: str, begin: Callable[[], Generation], wrap: Wrap) -> None:
        try:
            with crash.running(what):
                reply, ledger = begin().run()
            job.finish(wrap(reply, ledger))
        except BaseException as error:  # noqa: BLE001 - whatever it is belongs to the caller; the worker lives on
            if not isinstance(error, LlamaError) and self._live is not None:
                self._live.clear()  # of unknown cause: do not build on what is in the context
            job.fail(error)

    def _generate_together(
        self, caller: object, jobs: Sequence[Job], requests: Sequence[Request], wraps: Sequence[Wrap]
    ) -> None:
        assert self._context is not None
        assert self._live is not None
        n_ctx, ended = self._context.n_ctx, set[int]()

        def conclude(number: int, reply: Reply, ledger: Ledger) -> None:
            ended.add(number)
            jobs[number].finish(wraps[number](reply, ledger))

        try:
            with crash.running(f"answering with {requests[0].model_name}"):
                pairs = zip(jobs, requests, strict=True)
                answers = [Answer(job, self._model, request, n_ctx) for job, request in pairs]
                group = Together(answers, self._context, self._live, conclude, partial(self._others_wait, caller))
                group.run()
            if rest := group.unbegun:
                left = [jobs[n] for n in rest], [requests[n] for n in rest], [wraps[n] for n in rest]
                self._put_together(caller, *left)
        except BaseException as error:  # noqa: BLE001 - see above
            if not isinstance(error, LlamaError):
                self._live.clear()
            for number, job in enumerate(jobs):
                if number not in ended:
                    job.fail(error)

    def _others_wait(self, caller: object) -> bool:
        with self._lock:
            return self._queue.has_others(caller)

    def _call(self, task: Task[T], function: Callable[[Task[T]], T]) -> None:
        try:
            task.finish(function(task))
        except BaseException as error:  # noqa: BLE001 - see above
            task.fail(ClosedError.of_model() if isinstance(error, Aborted) and self._closed else error)


def _drop_jobs(jobs: Sequence[Job], requests: Sequence[Request], wraps: Sequence[Wrap]) -> None:
    for job, request, wrap in zip(jobs, requests, wraps, strict=True):
        _drop_job(job, request, wrap)


def _drop_job(job: Job, request: Request, wrap: Wrap) -> None:
    try:
        job.finish(wrap(unbegun_reply(request, job), request.prompt))
    except Exception as error:  # noqa: BLE001 - it belongs to whoever waits for the reply
        job.fail(error)


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
