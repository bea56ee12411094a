"""What the magics of one shell work with: the model in use and the conversations by name."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ipyllama.display import ProgressLine, View
from ipyllama.display.units import format_bytes, format_count, format_seconds, plural
from ipyllama.errors import ModelNotFound, NoModelLoaded
from ipyllama.options import did_you_mean

if TYPE_CHECKING:
    from ipyllama.chat import Chat, Turn
    from ipyllama.llm import LLM
    from ipyllama.prefix import PrefixMemory
    from ipyllama.reply import Reply
    from ipyllama.widgets.panel import ChatPanel

DEFAULT_CHAT: Final = "default"


class Session:
    """Loaded models in the order of loading; one of them answers. A conversation belongs to a model and a name."""

    def __init__(self) -> None:
        self._llms: list[LLM] = []
        self._current: LLM | None = None
        self._chats: dict[tuple[Path, str], Chat] = {}
        self._execution: object = None
        self.paused = False
        """whether models look up and save nothing"""
        self._last: Reply | None = None
        self._in_use: Chat | None = None

    @property
    def last(self) -> Reply | None:
        """The newest answer of a cell."""
        return self._last

    @last.setter
    def last(self, reply: Reply | None) -> None:
        self._last = reply
        if (chat := getattr(reply, "chat", None)) is not None:  # a turn, and no answer to `--raw`
            self._in_use = chat

    @property
    def answering(self) -> LLM | None:
        """The model that answers, None where none is loaded."""
        return None if self._current is None or self._current.closed else self._current

    @property
    def current(self) -> LLM:
        """The model that answers. Raises `NoModelLoaded`."""
        if self.answering is None:
            raise NoModelLoaded("no model is loaded: run  %llama load smollm2  first (%llama models lists others)")
        return self.answering

    def answers(self, llm: LLM | None) -> bool:
        """Whether this is the model that answers."""
        return llm is not None and llm is self._current

    @property
    def llms(self) -> list[LLM]:
        """The models that were loaded here."""
        return [llm for llm in self._llms if not llm.closed]

    @property
    def loaded(self) -> list[LLM]:
        """These, and then what else is loaded in this kernel: in Python, or by an index that embeds with it."""
        from ipyllama.llm import loaded

        own = self.llms
        return [*own, *(llm for llm in loaded() if llm not in own)]

    @property
    def chat_names(self) -> list[str]:
        return sorted({name for _, name in self._chats})

    def load(self, name: str, view: View, **options: Any) -> LLM:
        """Load a model, or find it loaded, with its progress in `view`; it does not become current.

        Loaded with other options, it takes the place of the one that was loaded before.
        """
        from ipyllama.llm import load

        line: ProgressLine | None = None

        def progress(done: int, total: int | None, label: str) -> None:
            nonlocal line
            if line is None or line.label != label:
                line = ProgressLine(label, view)
            line(done, total or 0)

        began = time.monotonic()
        known = self.llms
        try:
            llm = load(name, progress=progress, **options)
        except BaseException:
            if line is not None:
                line.finish()
            raise
        _pause(llm, self.paused)
        if llm not in known:
            self._llms.append(llm)
            for earlier in [other for other in known if other.path == llm.path]:
                self._forget(earlier)
        view.line(_load_summary(llm, None if llm in known else time.monotonic() - began))
        return llm

    def use(self, llm: LLM) -> None:
        self._current = llm

    def find(self, name: str, among: Sequence[LLM] | None = None) -> LLM:
        """A loaded model by name; without `among`, of those that were loaded here. Raises `NoModelLoaded`."""
        llms = self.llms if among is None else among
        for llm in llms:
            if name.lower() == llm.name.lower() or Path(name).expanduser().resolve() == llm.path.resolve():
                return llm
        names = [llm.name for llm in llms]
        hint = did_you_mean(name, names) or (f"loaded: {', '.join(names)}" if names else "nothing is loaded")
        raise NoModelLoaded(f"'{name}' is not loaded: {hint}")

    def find_or_load(self, name: str, view: View) -> LLM:
        try:
            return self.find(name)
        except NoModelLoaded:
            return self.load(name, view)

    def unload(self, name: str | None) -> LLM:
        """Free one model's memory, whoever still holds it; the next loaded one answers then."""
        llm = self.current if name is None else self.find(name, self.loaded)
        self._forget(llm)
        if self._current is llm:
            self._current = self._llms[-1] if self._llms else None
        return llm

    def chat(self, llm: LLM, name: str | None, system: str, *, anew: bool = False) -> Chat:
        """The conversation of this name with this model; one that begins does so with `system` ("": the template's)."""
        key = (llm.path.resolve(), name or DEFAULT_CHAT)
        chat = self._chats.get(key)
        if chat is None:
            chat = self._chats[key] = llm.chat(system=system or None, name=key[1])
            _keep(chat)
        elif anew or not chat.begun:
            chat.reset(system or None)  # the same object: a panel may show it
        chat.use(llm)  # the model may have been unloaded and loaded again
        self._in_use = chat
        return chat

    @property
    def memory(self) -> PrefixMemory:
        """The prefix memory of the model that answers; the usual one where none is loaded."""
        if self.answering is not None:
            return self.answering.memory
        from ipyllama.prefix.location import memory_for

        return memory_for(True)

    def pause(self, paused: bool) -> None:
        """Let the models of this session look up and save prefixes and replies no more, or again."""
        self.paused = paused
        for llm in self.llms:
            _pause(llm, paused)

    def llm_of(self, reply: Reply) -> LLM | None:
        """The model that gave a reply, None where it is no longer loaded."""
        return next((llm for llm in self.llms if llm.name == reply.model), None)

    def conversation(self, name: str | None = None) -> Chat:
        """A conversation with the model that answers; without a name the one in use, which a cell asked in last, or the
        default one. Raises `ModelNotFound` where none is called that."""
        if name is None and self._in_use is not None:
            return self._in_use
        name = name or DEFAULT_CHAT
        chat = self._chats.get((self.current.path.resolve(), name))
        if chat is None:
            names = self.chats_of(self.current)
            hint = did_you_mean(name, names) or f"there are: {', '.join(names) or 'none'}"
            raise ModelNotFound(f"no conversation with {self.current.name} is called '{name}': {hint}")
        return chat

    def turns(self, chat: str | None = None) -> tuple[Turn, ...]:
        """The turns of a conversation up to its newest; without a name those up to the newest answer of a cell."""
        from ipyllama.chat import Turn

        if chat is not None:
            return self.conversation(chat).turns
        return self.last.path if isinstance(self.last, Turn) else ()

    def turn(self, name: str, chat: str | None = None) -> Turn:
        """A turn of a conversation by its name, its number in `%llama tree`, or its cell. Raises `UnknownTurn`."""
        return self.conversation(chat)[name]

    @property
    def turn_names(self) -> list[str]:
        """What the turns of the conversation in use can be called."""
        try:
            chat = self.conversation()
        except (ModelNotFound, NoModelLoaded):
            return []
        return [*(turn.name for turn in chat.all_turns if turn.name), *map(str, range(1, len(chat.all_turns) + 1))]

    def begin(self, llm: LLM, name: str | None) -> Chat:
        """The conversation of this name, which may not have begun yet; without a name the one in use."""
        return self.chat(llm, name or self._name_in_use, "")

    @property
    def _name_in_use(self) -> str:
        return self._in_use.name if self._in_use is not None else DEFAULT_CHAT

    def panel(self, name: str | None, system: str, **options: Any) -> ChatPanel:
        """A panel of the conversation of this name, or of that in use; one that begins does so with `system`."""
        from ipyllama.display.views import NullView
        from ipyllama.widgets.panel import ChatPanel

        chat = self.chat(self.current, name or self._name_in_use, system)
        return ChatPanel(chat, load=lambda path: self.find_or_load(path, NullView()), **options)

    def owner(self, cell: str | None, execution: object) -> str | None:
        """The cell that owns the turn of this execution: only the first, where a loop asks several times."""
        first, self._execution = execution != self._execution, execution
        return cell if first else None

    def reset(self, name: str | None) -> tuple[str, int]:
        """Forget a conversation with every model, without a name the one in use; its name, and how many turns it had.
        Raises `ModelNotFound` for a wrong name."""
        wanted = name or self._name_in_use
        chats = [chat for (_, chat_name), chat in self._chats.items() if chat_name == wanted]
        if not chats and name is not None:
            hint = did_you_mean(name, self.chat_names) or f"there are: {', '.join(self.chat_names) or 'none'}"
            raise ModelNotFound(f"no conversation is called '{name}': {hint}")
        turns = sum(len(chat.all_turns) for chat in chats)
        for chat in chats:
            chat.reset()
        self.last = None
        return wanted, turns

    def chats_of(self, llm: LLM) -> dict[str, int]:
        """Number of turns of each conversation with this model that has begun."""
        return {
            name: len(chat.all_turns)
            for (path, name), chat in self._chats.items()
            if path == llm.path.resolve() and chat.all_turns
        }

    def _forget(self, llm: LLM) -> None:
        llm.close()
        if llm in self._llms:
            self._llms.remove(llm)

    def close(self) -> None:
        """Free every model that was loaded here."""
        for llm in self.llms:
            llm.close()
        self._llms, self._current, self._chats, self._in_use = [], None, {}, None


def _pause(llm: LLM, paused: bool) -> None:
    llm.memory.paused, llm.memory.replies.enabled = paused, not paused


def _keep(chat: Chat) -> None:
    """Let a conversation of this notebook be there for the next kernel."""
    from ipyllama.prefix.location import chats_location, file_name

    if (folder := chats_location()) is not None:
        name = file_name(chat.name)
        if name != chat.name:  # another conversation's name may give the same
            name = f"{name}-{hashlib.sha256(chat.name.encode('utf-8', 'replace')).hexdigest()[:8]}"
        chat.keep(folder / file_name(chat.llm.name) / name)


def _load_summary(llm: LLM, seconds: float | None) -> str:
    how = "already loaded" if seconds is None else f"loaded in {format_seconds(seconds)}"
    size = format_bytes(llm.path.stat().st_size)
    context, threads = f"context of {format_count(llm.n_ctx)} tokens", plural(llm.n_threads, "thread")
    return f"{llm.name}: {llm.description}, {size}, {context}, {threads} · {how}"
