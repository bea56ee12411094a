"""The chat panel: a conversation outside of cells, in the same tree as theirs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import fields
from types import EllipsisType
from typing import Any, Final

import traitlets

from ipyllama.chat import Chat, Turn
from ipyllama.chat.turn import Message
from ipyllama.display.conversation import Said, conversation_bundle, conversation_title, said
from ipyllama.display.reply import answer_html
from ipyllama.display.stream import ReplyStream
from ipyllama.display.text import footer
from ipyllama.display.units import format_bytes, plural
from ipyllama.engine import Job
from ipyllama.errors import BadOption, LlamaError
from ipyllama.llm import LLM, load, loaded
from ipyllama.options import GenerateOptions
from ipyllama.reply import Event, Finished
from ipyllama.widgets.live import LiveView
from ipyllama.widgets.play import PlayView, play_script
from ipyllama.widgets.view import Bundle, style

CONTROLS: Final = ("temperature", "top_p", "max_tokens", "seed")
"""Options that the view has fields for."""
NOTHING: Final[dict[str, Any]] = {}


class ChatPanel(PlayView):
    """What was said on the way to the head of `chat`, and what can be done about it. Whatever changes the tree, a cell
    or another panel, is shown here too.

    The methods return at once; one thing is done after another. `options`, those of `GenerateOptions`, are for the
    answers that are asked for here. `load` loads a model that is chosen here, by its path.
    """

    _esm = play_script("panel")
    _css = style("panel")
    title = traitlets.Unicode().tag(sync=True)
    turns: traitlets.List[Any] = traitlets.List(help="what is shown of each turn, see `packed`").tag(sync=True)
    running = traitlets.Dict(help="the message that is being answered: text; empty if none").tag(sync=True)
    doing = traitlets.Unicode(help="what takes a while").tag(sync=True)
    model = traitlets.Unicode(help="the path of the model that answers").tag(sync=True)
    models: traitlets.List[Any] = traitlets.List(
        help="those to choose from: path, name, size where it is not loaded"
    ).tag(sync=True)
    sampling = traitlets.Dict(help="the options that have fields").tag(sync=True)

    def __init__(self, chat: Chat, *, load: Callable[[str], LLM] = load, **options: Any) -> None:
        self._unwatch: Callable[[], None] = lambda: None
        self.chat, self.options = chat, GenerateOptions().replace_from(options)
        self._load = load
        self._html: dict[str, str] = {}  # of each turn's answer, by its id: rendered once
        self._job: Job | None = None
        self._stopped = threading.Event()
        self._late = False
        super().__init__(sampling=self._sampling())
        self._follow()

    def close(self) -> None:
        self._unwatch()
        super().close()

    def show_live(self) -> None:
        super().show_live()
        self._unwatch = self.chat.watch(self._changed_elsewhere)

    def bundle(self) -> Bundle:
        turns = said(self.chat, self.chat.head)
        return conversation_bundle(conversation_title(self.chat, len(turns)), self.chat.system, turns)

    # -- what can be done ---------------------------------------------------------------------------------

    def ask(self, text: str, after: Turn | str | EllipsisType | None = ...) -> None:
        """Ask, and go on from the head or from another turn; None is the beginning."""
        self._answering(text, lambda: self._ask(text, self.chat.head if after is ... else after))

    def again(self, turn: Turn | str) -> None:
        """Answer a turn's message once more, with the next seed, as another branch."""
        self._answering("", lambda: self._again(self._turn(turn)))

    def edit(self, turn: Turn | str, text: str) -> None:
        """Ask something else in a turn's place, as another branch; the turn stays where it is."""
        self._answering(text, lambda: self._ask(text, self._turn(turn).parent, self._turn(turn)))

    def goto(self, turn: Turn | str) -> None:
        """Show the branch of a turn, and go on from there."""
        self._do(lambda: self._goto(turn))

    def stop(self) -> None:
        """End the answer that is being written; what there is stays, as a turn."""
        self._stopped.set()
        if (job := self._job) is not None:
            job.cancel()

    def set(self, **options: Any) -> None:
        """Change options for the answers from now on."""
        self.options = self.options.replace_from(options)
        self.sampling = self._sampling()

    def use(self, model: str) -> None:
        """Let another model go on with the conversation, by its name or path; it is loaded where it is not."""
        self._do(lambda: self._use(model))

    def list_models(self) -> None:
        """Look for the models of this machine that can be chosen."""
        self._do(self._list_models, "models")

    def told(self, content: dict[str, Any]) -> None:
        self.send({"kind": "heard"})
        match content:
            case {"kind": "ask", "text": str(text), "after": str() | None as after}:
                self.ask(text, after)
            case {"kind": "again", "turn": str(turn)}:
                self.again(turn)
            case {"kind": "edit", "turn": str(turn), "text": str(text)}:
                self.edit(turn, text)
            case {"kind": "goto", "turn": str(turn)}:
                self.goto(turn)
            case {"kind": "stop"}:
                self.stop()
            case {"kind": "set", "options": dict(options)} if options.keys() <= {*CONTROLS}:
                self._do(lambda: self.set(**options))
            case {"kind": "use", "model": str(model)}:
                self.use(model)
            case {"kind": "models"}:
                self.list_models()
            case {"kind": "cells"}:
                self._do(lambda: self.send({"kind": "cells", "cells": self.chat.cells()}))
            case {"kind": "late"}:
                self._late = True

    def _changed_elsewhere(self) -> None:
        if not self.chat.begun:
            self.stop()  # it was reset: nobody would get the answer, and others wait for it
        self.worker.do(self._follow, "follow")

    # -- on the worker's thread ---------------------------------------------------------------------------

    def _do(self, what: Callable[[], object], key: str = "") -> None:
        def do() -> None:
            try:
                what()
            except LlamaError as error:
                self.problem = ""  # the same problem once more is a change, too
                self.problem = str(error)

        self.worker.do(do, key)

    def _answering(self, text: str, what: Callable[[], bool]) -> None:
        """Do what leads to an answer; where there is none in the end, `text` goes back to who wrote it."""

        def do() -> None:
            answered = False
            try:
                answered = what()
            finally:
                if not answered:
                    self.send({"kind": "unsent", "text": text})

        self._stopped.clear()
        self._do(do)

    def _turn(self, turn: Turn | str) -> Turn:
        """A turn by its id, also one on the way to the head that has been replaced."""
        if isinstance(turn, Turn):
            return turn
        return next((each for each in self.chat.path() if each.id == turn), None) or self.chat[turn]

    def _ask(self, text: str, after: Turn | str | None, like: Turn | None = None) -> bool:
        if not (text := text.strip()):
            raise BadOption("there is nothing to ask: write a message")
        where: dict[str, Any] = {"after": None if after is None else self._turn(after)}
        if like is not None:
            where |= {"system": like.system, "think": like.think}
        return self._answer(text, where, self.options)

    def _again(self, turn: Turn) -> bool:
        siblings = next(
            (group for group in self.chat.children().values() if turn.id in {each.id for each in group}), [turn]
        )
        options = self.options
        if options.seed != "random":
            options = options.replace_from({"seed": max(each.seed for each in siblings)}).with_seed(1)
        return self._answer(turn.said, {"after": turn.parent, "system": turn.system, "think": turn.think}, options)

    def _goto(self, turn: Turn | str) -> None:
        self.chat.goto(self._turn(turn))
        self._follow()

    def _answer(self, text: Message, where: dict[str, Any], options: GenerateOptions) -> bool:
        """Whether anything was answered."""
        self.problem = ""
        try:
            self._job = self.chat.start(text, **where, **{f.name: getattr(options, f.name) for f in fields(options)})
            if self._stopped.is_set():
                self._job.cancel()
            parent = where["after"]
            with self.hold_sync():
                self._show(said(self.chat, parent))
                self.running = {"text": text}
            return bool(self._job.run(self._feed()).tokens)
        finally:
            self._job = None
            with self.hold_sync():
                self._follow()
                self.running = NOTHING

    def _feed(self) -> Callable[[Event], None]:
        """Shows an answer while it is written; when it has ended, it is a turn like others."""
        view = LiveView(self.send, self.slot, lambda bundle: lambda following: None)
        stream = ReplyStream(view)

        def feed(event: Event) -> None:
            if self._late:
                self._late = False
                view.restart()
            if not isinstance(event, Finished):
                stream.feed(event)

        return feed

    def _follow(self) -> None:
        """Show what was said up to the head."""
        self._show(said(self.chat, self.chat.head))

    def _show(self, turns: list[Said]) -> None:
        llm = self.chat.llm
        before = self.turns
        with self.hold_sync():
            self.title = f"{self.chat.name} · {plural(len(turns), 'turn')}"
            self.turns = [packed(each, self._answer_html(each.turn)) for each in turns]
            if isinstance(llm, LLM):
                self.model = str(llm.path)
                if all(each["path"] != self.model for each in self.models):
                    self.models = [*self.models, _model(llm)]
        if self._handles and before != self.turns:
            self.changed()

    def _answer_html(self, turn: Turn) -> str:
        if turn.id not in self._html:
            self._html[turn.id] = answer_html(turn)
        return self._html[turn.id]

    def _use(self, model: str) -> None:
        before = self.chat.llm
        if isinstance(before, LLM) and before.n_busy and not before.closed:
            raise BadOption(f"{before.name} is writing an answer: choose another model when it has ended")
        try:
            self.doing = f"loading {model.rpartition('/')[2]}"
            self.chat.use(self._load(model))
        finally:
            self.doing = ""
            self.model = ""  # the field goes back where it failed
            self._follow()

    def _list_models(self) -> None:
        from ipyllama.models import list_models

        found = {str(llm.path): _model(llm) for llm in loaded() if llm.can_generate}
        for entry in list_models():
            if entry.header is not None and entry.header.causal and not entry.problem:
                size = f"{format_bytes(entry.size)}, not loaded"
                found.setdefault(str(entry.path), {"path": str(entry.path), "name": entry.name, "size": size})
        self.models = list(found.values())

    def _sampling(self) -> dict[str, Any]:
        return {name: getattr(self.options, name) for name in CONTROLS}


def packed(each: Said, html: str) -> dict[str, Any]:
    """What the front end draws of a turn; `before` and `after` are the ids of where the branches beside it end."""
    turn = each.turn
    return {
        "id": turn.id,
        "message": turn.message,
        "html": html,
        "answer": turn.answer,
        "cost": footer(turn, ""),
        "marks": each.label,
        "at": each.at,
        "of": each.of,
        "before": each.before.id if each.before else None,
        "after": each.after.id if each.after else None,
    }


def _model(llm: LLM) -> dict[str, Any]:
    return {"path": str(llm.path), "name": llm.name, "size": ""}
