"""From a question to an answer that cites documents: find chunks, lay them out, ask."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from ipyllama.engine import Job
from ipyllama.errors import BadOption, Interrupted, NoModelLoaded, PromptTooLong
from ipyllama.lens.divergence import Seen
from ipyllama.rag.frame import INSTRUCTION, layout_for
from ipyllama.rag.order import better_order, stable
from ipyllama.rag.reply import RagReply
from ipyllama.rag.retrievers import found_by
from ipyllama.rag.types import Hit, Retriever
from ipyllama.stop import Stop
from ipyllama.vocab import Remembering, Tokenizer

if TYPE_CHECKING:
    from ipyllama.layout import Layout
    from ipyllama.ledger import Ledger
    from ipyllama.llm import LLM
    from ipyllama.reply import Reply

Order = Literal["stable", "score"]
Laid = tuple[tuple[Hit, ...], "Layout"]
"""Hits in the order in which they are read, and the prompt with them."""


def ask(llm: LLM, retriever: Retriever, question: str, k: int = 4, **options: Any) -> RagReply:
    """The answer to `question` from the `k` chunks that `retriever` finds for it, with citations such as [1]. It is an
    `Index`, another `Retriever`, or whatever `as_retriever` takes.

    `order`: "stable", by document and place in it, so that prompts share the most; "score", the best first. `check`:
    write the exact distributions' divergence into the reply, which reads the prompt a second time. `instruction`: what
    the model is told to do with the documents. `search`: options for the retriever's `search`. All others as in
    `LLM.complete`: `reuse="fused"` computes each chunk once, wherever it stands.

    Raises `BadOption`, `PromptTooLong`, `CannotFuse`, and what the retriever raises. Ctrl-C raises `Interrupted`.
    """
    check = options.pop("check", False)
    with Stop():
        asked = start(llm, retriever, question, k, check=check, **options)
        reply = asked.job.result()
        assert isinstance(reply, RagReply)
        return asked.check(reply) if check else reply


@dataclass(frozen=True, slots=True)
class Asked:
    """A question that is being answered: the reply of `job` is a `RagReply`."""

    llm: LLM
    job: Job
    layout: Layout
    seen: Seen | None

    def check(self, reply: RagReply) -> RagReply:
        """Compare the answer with the exact one, where that was asked for. Ctrl-C raises `Interrupted` with it."""
        if self.seen is None or not self.seen.logits:
            return reply
        try:
            return reply.checked(self.llm.compare(self.layout, reply, self.seen))
        except Interrupted:
            raise Interrupted(reply) from None


def start(  # noqa: PLR0913 - what a question needs, each by name
    llm: LLM,
    retriever: Retriever,
    question: str,
    k: int = 4,
    *,
    order: Order = "stable",
    check: bool = False,
    instruction: str = INSTRUCTION,
    search: dict[str, Any] | None = None,
    **options: Any,
) -> Asked:
    """Like `ask`, but returns at once, the search done."""
    if not isinstance(question, str) or not question.strip():
        raise BadOption("the question is empty: write what you want to know")
    if order not in get_args(Order):
        raise BadOption(f"order must be one of {', '.join(get_args(Order))}: got {order!r}")
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise BadOption(f"k, the number of chunks, must be a whole number of at least 1: got {k!r}")
    if not isinstance(instruction, str):
        raise BadOption(f"instruction must be a text: got {instruction!r:.80}")
    found = found_by(retriever, question, k, search)
    ordered = stable if order == "stable" else tuple
    vocab, n_answer = Remembering(llm.vocab), int(options.get("max_tokens") or 0)

    def laid(n: int) -> Laid:
        hits = ordered(found[:n])
        return hits, layout_for(llm.template, question, [hit.chunk for hit in hits], instruction)

    hits, layout = _fitting(laid, len(found), vocab, llm.n_ctx, n_answer)
    advice = better_order(llm, layout, vocab) if options.get("reuse") != "fused" else ""
    notes = options.pop("notes", ())
    if len(hits) < len(found):
        notes = (*notes, f"{len(found) - len(hits)} of {len(found)} chunks were left out: no room in the context")

    def wrap(reply: Reply, ledger: Ledger) -> Reply:
        return RagReply.of(reply, question, hits, advice)

    seen = Seen() if check else None
    return Asked(llm, llm.start(layout, notes=notes, wrap=wrap, watch=seen, **options), layout, seen)


def newest() -> LLM:
    """The model that was loaded last, of those that generate. Raises `NoModelLoaded`."""
    from ipyllama.llm import loaded

    for llm in reversed(loaded()):
        if llm.can_generate:
            return llm
    raise NoModelLoaded('no model that answers is loaded: llm = ipyllama.load("smollm2"), then ask(..., llm=llm)')


def _fitting(laid: Callable[[int], Laid], n: int, vocab: Tokenizer, n_ctx: int, n_answer: int) -> Laid:
    """The best of n hits, as many as leave room for the answer and one at least, in their order, and the prompt with
    them. Raises `PromptTooLong` where that one does not fit."""
    room = n_ctx - min(n_answer, n_ctx // 4)

    def size(n: int) -> int:
        return len(laid(n)[1].read(vocab)[0])

    if size(n) >= room:
        n = bisect_left(range(1, n), True, key=lambda n: size(n) >= room) or min(1, n)
        if n < 2 and size(n) >= n_ctx:
            raise PromptTooLong(size(n), n_ctx)
    return laid(n)
