"""LLM: a loaded model, and the plain Python way to everything that the magics do."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Iterable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from ipyllama import _core, crash
from ipyllama.engine import Engine, Fusing, Job, KVBoard, KVMap, Opening, Request, Shift, Stream, gather
from ipyllama.engine.answer import Watch
from ipyllama.engine.capability import Capability, CapabilityProbe
from ipyllama.engine.embed import STEP
from ipyllama.engine.engine import Wrap
from ipyllama.errors import BadOption, CannotFuse, WrongModel
from ipyllama.layout import Layout
from ipyllama.ledger import Ledger, as_ledger
from ipyllama.lens.looks import Looks
from ipyllama.loading import LoadOptions, context_options, identify, load_options
from ipyllama.models import LocalModel, Progress, resolve
from ipyllama.models.progress import reporting
from ipyllama.options import GenerateOptions
from ipyllama.prefix import PrefixMemory
from ipyllama.prefix.binding import binding
from ipyllama.prefix.fuse import FUSED_IN
from ipyllama.prefix.live import Live
from ipyllama.prefix.location import Cache, memory_for
from ipyllama.prefix.replies.replay import ModelReplies, replay
from ipyllama.reply import Event, Finished, Reply
from ipyllama.sharing import LoadedModels
from ipyllama.stop import Stop
from ipyllama.vocab import Vocabulary, tokenize_after

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ipyllama.chat import Chat, ChatTemplate
    from ipyllama.embed import Pooling, TextEncoder, TooLong
    from ipyllama.explain import Explanation
    from ipyllama.prefix.where import Where
    from ipyllama.widgets.kv import KVView

Prompt = str | Sequence[str] | Layout
"""A text, or the parts of one: what other prompts share, then what they do not; or one with documents."""


def load(
    name_or_path: str | os.PathLike[str],
    *,
    cache: Cache = True,
    progress: Progress | None = None,
    **options: Any,
) -> LLM:
    """Load a model by path, registry name, `hf:owner/repo/file.gguf`, or the name of one already on this machine.

    A model that is loaded already is shared at once. `options` are the fields of `LoadOptions`; `progress` is
    called with (done, total, label). `cache` is where prefix states are kept so that the next process finds them: True
    for the notebook's own folder, or the user's cache outside of one; a folder; a `PrefixMemory`; None or False for RAM
    only.

    Raises `ModelNotFound`, `BadModelFile`, `FetchError`, `NotEnoughMemory` or `BadOption`.
    """
    wanted = load_options(options)
    crash.warn()
    found = resolve(os.fspath(name_or_path), progress=progress)
    return _loaded.get(found, wanted, memory_for(cache), progress)


class LLM(Looks):
    """One model with its context. Made by `load`. Closing it frees the memory, whoever still holds it."""

    def __init__(self, found: LocalModel, native: _core.Model, options: LoadOptions, memory: PrefixMemory) -> None:
        self._model, self.options = native, options
        self.name, self.path, self.file = found.name, Path(found.path), identify(found.path)
        self.vocab = Vocabulary(native)
        self.n_ctx_train = native.n_ctx_train
        self.description, self.quantisation = found.header.description, found.header.quantisation
        self.can_generate = found.header.causal
        self._is_recurrent = native.is_recurrent
        self._context_options = partial(context_options, options)
        context = _core.Context(native, self._context_options()) if self.can_generate else None
        self.n_ctx = context.n_ctx if context else min(options.n_ctx or self.n_ctx_train, self.n_ctx_train)
        self.n_threads = self._context_options().n_threads
        try:
            self.memory = memory.bind(binding(found.name, found.path, native, options), options.ram_limit)
            self._replies = ModelReplies(
                memory.replies, self.memory.binding, options.n_gpu_layers, self.n_ctx, self.vocab
            )
            self._engine = Engine(native, context, self._states(context) if context else None)
        except BaseException:
            if context is not None:
                context.close()
            raise
        self._probe = self._make_probe()
        self._template: ChatTemplate | None = None

    def _states(self, context: _core.Context) -> Live:
        # Recurrent state has no positions to cut at; only a copy leads back.
        can_trim = not (self._model.is_recurrent or self._model.is_hybrid)
        return Live(_core.Sequence(context), self.memory, context.n_ctx, can_trim=can_trim)

    @property
    def weights(self) -> str:
        """A digest that tells its file from others: SHA-256 in hexadecimal, see `models.fingerprint`."""
        return self.memory.binding.weights

    @property
    def template(self) -> ChatTemplate | None:
        """The model's chat template, or None."""
        if self._template is None and (source := self._model.chat_template()):
            from ipyllama.chat import ChatTemplate

            self._template = ChatTemplate(source, self._token_text(self._model.bos), self._token_text(self._model.eos))
        return self._template

    def complete(self, prompt: Prompt, **options: Any) -> Reply:
        """Continue `prompt` as it is, without a template. Control tokens written out in it count as such.

        A prompt in parts, as `[document, question]`, is the same text, with a mark where each part ends: prompts
        that begin with the same parts share the whole of them in memory and on disk. Texts that are not marked share
        whole pieces of 256 tokens. Each part is tokenized by itself. A `Layout` is a prompt with documents; with
        `reuse="fused"` the KV of each document is computed once, wherever it stands: approximate, and marked so.

        A request that was answered before gets the same reply at once, `replayed`; `fresh=True` computes it again.
        `options`: max_tokens, stop, temperature, top_p, top_k, min_p, repeat_penalty, seed, grammar, logit_bias and
        all others of `GenerateOptions`, which has their meaning and defaults.

        Raises `BadOption`, `PromptTooLong` and `CannotFuse`. Ctrl-C raises `Interrupted`, whose `reply` holds what was
        generated.
        """
        with Stop():
            return self.start(prompt, **options).result()

    async def acomplete(self, prompt: Prompt, **options: Any) -> Reply:
        """Like `complete`, without blocking the event loop. Cancelling the task ends the generation."""
        return await self.stream(prompt, **options).aresult()

    def stream(self, prompt: Prompt, **options: Any) -> Stream[Reply]:
        """Like `complete`, but gives out the text as it comes: `for piece in llm.stream(prompt)`, or `async for`.

        It is asked for when the loop begins; leaving the loop ends the generation. `Stream` tells more.
        """
        return Stream(partial(self.start, prompt, **options))

    def start(
        self,
        prompt: Prompt,
        *,
        notes: tuple[str, ...] = (),
        fresh: bool = False,
        wrap: Wrap = lambda reply, ledger: reply,
        watch: Watch | None = None,
        **options: Any,
    ) -> Job:
        """Like `complete`, but returns the `Job` at once: iterate over it for events, or `cancel()` it. `notes` go
        into the reply; `wrap` and `watch` as in `generate`."""
        self._require_generation()
        chosen, fusing = GenerateOptions().replace_from(options), None
        if isinstance(prompt, Layout):
            ledger, movable = prompt.read(self.vocab)
            if chosen.reuse == "fused":
                self.require_fusing()
                fusing = Fusing(movable, chosen.recompute)
        else:
            ledger = self._prompt(prompt)
        return self.generate(ledger, chosen, notes, wrap, fresh=fresh, fusing=fusing, watch=watch)

    def chat(self, system: str | None = None, name: str = "default") -> Chat:
        """A new conversation. `system` None leaves the system prompt to the model's template."""
        from ipyllama.chat import Chat

        self._require_generation()
        return Chat(self, system=system, name=name)

    def embed(
        self,
        texts: Iterable[str],
        *,
        pooling: Pooling | None = None,
        normalize: bool = True,
        too_long: TooLong = "split",
        progress: Progress | None = None,
    ) -> NDArray[np.float32]:
        """The vectors of texts: float32, shape (n_texts, n_embd), in their order.

        `pooling` makes one vector of a text's tokens: "mean", "cls" (the first) or "last"; None is the model's own
        way, or the mean where it has none, as generative models. `normalize` scales vectors to length 1.

        A text over `text_limit` tokens is evaluated in pieces and its vector is their mean, weighted by tokens
        (`too_long="split"`), or loses its end ("truncate"); a `TooLongWarning` says which texts. "error" raises
        `TextTooLong` before anything is evaluated. A text without tokens has a vector of zeros.

        `progress` is called with (tokens done, all tokens, label); None shows a bar on stderr after a second. Ctrl-C
        raises `Interrupted`. Raises `WrongModel` for ranking models where `pooling` is None, and `BadOption`.
        """
        return self._texts.embed(texts, pooling, normalize, too_long, progress)

    def rerank(
        self,
        query: str,
        texts: Iterable[str],
        *,
        too_long: Literal["truncate", "error"] = "truncate",
        progress: Progress | None = None,
    ) -> NDArray[np.float32]:
        """How well each text answers the query: float32, shape (n_texts,), in their order; higher is better.

        Scores are the first output of the model's classifier, as it is. Texts that do not fit beside the query lose
        their end, with a `TooLongWarning`, or raise `TextTooLong`, as does a query that fills the limit alone.
        Raises `WrongModel` where the model is no ranker. `progress` and Ctrl-C as for `embed`.
        """
        return self._texts.rerank(query, texts, too_long, progress)

    @property
    def text_limit(self) -> int:
        """Most tokens that `embed` and `rerank` evaluate at once: of context and training the lesser, and 512 with
        generative models, which compute logits for every token besides."""
        limits = (self.n_ctx, self.n_ctx_train, STEP if self.can_generate else 0)
        return min(limit for limit in limits if limit > 0)

    @property
    def capability(self) -> Capability:
        """What sequences can do here, tried out when it is first asked for: waits until answers before it are done."""
        return self._probe()

    @property
    def capability_now(self) -> Capability | None:
        """The same, or None where it is not known and an answer is being written."""
        return self._probe() if self._probe.known or self.n_busy == 0 else None

    def generate(  # noqa: PLR0913 - what the engine is to know of a prompt, of which most callers give two or three
        self,
        ledger: Ledger,
        options: GenerateOptions,
        notes: tuple[str, ...] = (),
        wrap: Wrap = lambda reply, ledger: reply,
        *,
        fresh: bool = False,
        shift: Shift | None = None,
        fusing: Fusing | None = None,
        opening: Opening | None = None,
        watch: Watch | None = None,
        caller: object | None = None,
    ) -> Job:
        """Queue a generation from exact token ids; where this request was answered before, the job has ended already.

        `wrap` makes the final reply of (reply, ledger). `fresh` computes in any case. `shift` tells of KV that can be
        moved to where this prompt has it, `fusing` of parts that are computed once each (under reuse="fused"); the
        reply is not exact then. `opening` are the answer's first tokens, where they are chosen beforehand. `watch` gets
        the raw logits of each choice; nothing is replayed then. `caller` is who takes turns with others that wait;
        None is one caller, too.
        """
        if options.reuse == "fused" and fusing is None:
            raise BadOption('reuse="fused" is for prompts with documents: give a Layout, or ask an index')
        concrete = options.with_concrete_seed()
        request = Request(ledger, concrete, self.name, notes, shift, fusing, opening or Opening(), watch)
        if self.closed or self.memory.paused or options.seed == "random":
            return self._engine.submit(request, wrap, caller=caller)
        if not fresh and watch is None and (reply := self._replies.find(request)):
            return replay(reply, request, wrap)
        return self._engine.submit(request, self._replies.keeping(request, wrap), caller=caller)

    def generate_together(
        self,
        ledgers: Sequence[Ledger],
        options: Sequence[GenerateOptions],
        notes: tuple[str, ...] = (),
        wraps: Sequence[Wrap] | None = None,
        *,
        caller: object | None = None,
    ) -> list[Job]:
        """Queue several generations that run at once; arguments as in `generate`, a list where each has its own."""
        pairs = zip(ledgers, options, strict=True)
        requests = [Request(ledger, each.with_concrete_seed(), self.name, notes) for ledger, each in pairs]
        if not requests:
            return []
        wraps = wraps or [lambda reply, ledger: reply] * len(requests)
        return self._engine.submit_together(requests, wraps, caller=caller)

    def map(
        self,
        prompts: Iterable[str],
        *,
        system: str | None = None,
        raw: bool = False,
        progress: Progress | None = None,
        **options: Any,
    ) -> list[Reply]:
        """Answers to independent prompts, several written at a time (`n_parallel` of `load`), in their order.

        Each prompt is a question by itself, under `system`, put into words by the model's template; with `raw`, or
        where the model has none, a text to continue. What all of them begin with is computed once. `progress` is
        called with (done, all prompts, label); None shows a bar on stderr after a second. `options` as in `complete`;
        answers may differ from those of single runs within rounding. Ctrl-C raises `Interrupted`.
        """
        self._require_generation()
        if isinstance(prompts, str):
            raise BadOption("a list of prompts is needed: complete(prompt) and chat.ask(text) take one")
        chosen = GenerateOptions().replace_from(options)
        as_text = raw or self.template is None
        ledgers = [self._prompt(text) if as_text else self.chat(system).prompt(text) for text in prompts]
        done = 0

        def count(number: int, event: Event) -> None:
            nonlocal done
            done += isinstance(event, Finished)
            report(done, len(ledgers), self.name)  # also where none is finished yet: a bar shows then

        with Stop(), reporting(progress, unit="answers", delay=1.0) as report:
            jobs = self.generate_together(ledgers, [chosen] * len(ledgers))
            return gather(jobs, count)

    def explain(self, reply: Reply) -> Explanation | None:
        """Why a prompt cost what it did, with the text on both sides of where it parts from an earlier one; None where
        nothing was read for it."""
        from ipyllama.explain import explain

        return explain(reply, self.vocab)

    def where(self, prompts: Iterable[Ledger | Sequence[int]]) -> list[Where]:
        """How much of each prompt's beginning is in the context, in RAM and on disk now. Reads no block and waits for
        no answer. `turn.where()` asks for one turn."""
        from ipyllama.prefix.where import where_are

        return where_are(self.memory, [as_ledger(prompt) for prompt in prompts], self._engine.held)

    def tokenize(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of `text`; see `Vocabulary.tokenize`."""
        return self.vocab.tokenize(text, add_special, parse_special)

    def detokenize(self, tokens: list[int], special: bool = False) -> str:
        """The text of token ids; see `Vocabulary.detokenize`."""
        return self.vocab.detokenize(tokens, special)

    def metadata(self) -> dict[str, str]:
        """The GGUF metadata, scalars only, as text."""
        return self._model.metadata()

    @property
    def n_live(self) -> int:
        """Tokens whose KV is in the context now."""
        return self._engine.n_live

    def kv(self) -> KVMap:
        """What is in the context's cells now, sequence by sequence, and where it came from. Waits for nothing."""
        runs = self._kv_board().runs()
        note = "a recurrent model sums all tokens up in one state: they take no cells" if self._is_recurrent else ""
        if self.closed:
            runs, note = (), "it was unloaded: load it again, then %llama kv shows its new context"
        return KVMap(self.n_ctx, runs, self.name, note)

    def kv_view(self) -> KVView:
        """The same as a live view in the notebook: it follows what is evaluated."""
        from ipyllama.widgets.kv import KVView

        return KVView(self.kv, self._kv_board(), self.vocab)

    def _kv_board(self) -> KVBoard:
        self._require_generation()
        assert self._engine.board is not None
        return self._engine.board

    @property
    def n_busy(self) -> int:
        """Answers that run or wait."""
        return self._engine.n_busy

    @property
    def closed(self) -> bool:
        return self._engine.closed

    def standing(self) -> LLM:
        """This model, or where it was closed and its file loaded again since, the one that is open now."""
        return _loaded.standing(self)

    def close(self) -> None:
        """End running answers and free context and weights. Safe to call twice and from any thread."""
        self._engine.close()
        self.memory.ram.clear()
        self.memory.rest()
        _loaded.forget(self, self._model)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        use = f"{self.n_live:,} of {self.n_ctx:,} tokens in use"
        use = use if self.can_generate else f"for texts of up to {self.text_limit:,} tokens"
        state = "closed" if self.closed else f"{self.description}, {use}"
        return f"<LLM {self.name}: {state}>"

    @cached_property
    def _texts(self) -> TextEncoder:
        from ipyllama.embed import TextEncoder

        return TextEncoder(self.name, self._model, self._engine, self._context_options, self.text_limit)

    def _make_probe(self) -> CapabilityProbe:
        options = self._context_options()
        commit = _core.build_info()["llama_cpp_commit"]
        key = (self.file, commit, options.swa_full, options.type_k, options.type_v, options.flash_attention)
        return CapabilityProbe(self._engine, self._model, key, options)

    def require_fusing(self) -> None:
        """Raises `CannotFuse`, with the reason, where KV cannot be moved from one prompt to another."""
        self._require_generation()
        if reason := self._unmovable():
            raise CannotFuse(f'the KV of {self.name} cannot be moved ({reason}): use reuse="exact"')
        if self.options.n_parallel < FUSED_IN:
            raise CannotFuse(f"parts are moved in {FUSED_IN} sequences: load {self.name} with n_parallel={FUSED_IN}")

    def _unmovable(self) -> str:
        if self._model.n_swa:
            return f"its sliding window of {self._model.n_swa:,} tokens depends on what stood before"
        found = self.capability
        return "" if found.can_shift else found.reason or "positions in its memory cannot be changed"

    def _prompt(self, prompt: Prompt) -> Ledger:
        if isinstance(prompt, Layout):
            return prompt.read(self.vocab)[0]
        parts = [prompt] if isinstance(prompt, str) else prompt
        if not parts or not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
            raise BadOption(f"the prompt must be a text or a list of texts: got {reprlib.repr(prompt)}")
        first, *others = parts
        ledger = Ledger().append_prompt(self.vocab.tokenize(first, parse_special=True))
        for part in others:
            ledger = ledger.append_prompt(tokenize_after(self.vocab, part))
        return ledger

    def _require_generation(self) -> None:
        if not self.can_generate:
            use = "rerank(query, texts) gives its scores" if self._model.n_cls_out else "embed(texts) gives its vectors"
            raise WrongModel(f"{self.name} encodes text and cannot generate: {use}, a chat model answers")

    def _token_text(self, token: int) -> str:
        return self.vocab.piece(token, special=True).decode("utf-8", "replace") if token >= 0 else ""


_loaded: Final = LoadedModels(LLM)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_loaded.abandon)


def loaded() -> list[LLM]:
    """Every model that is loaded now, oldest first."""
    return _loaded.all()
