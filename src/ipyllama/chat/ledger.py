"""The next prompt as a difference: what the model sampled is kept to the token, only new text is tokenised.

How: the conversation is rendered twice, as it is and with every reply replaced by a mark (`layout`). Where the text
up to a reply is what the model read before it answered, that turn's own tokens stand; where a reply came through
unchanged, its sampled tokens stand; the rest is tokenised. Templates that only append leave the new message as rest.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate
from typing import Final, Protocol

from ipyllama.chat.layout import Layout, lay_out
from ipyllama.chat.messages import Messages, conversation
from ipyllama.chat.turn import Message, Turn, exchanges
from ipyllama.ledger import Ledger
from ipyllama.vocab import tokenize_after
from ipyllama.why import Cause

WORTH: Final = 64
"""Tokens. A shorter part is not worth a step of its own."""


class Vocabulary(Protocol):
    """What is asked of a model's vocabulary."""

    @property
    def bos(self) -> int: ...

    @property
    def add_bos(self) -> bool: ...

    @property
    def n_tokens(self) -> int: ...

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]: ...

    def piece(self, token: int) -> bytes:
        """What the token adds to a reply's text; nothing for a control token."""

    def is_eog(self, token: int) -> bool: ...


@dataclass(frozen=True, slots=True)
class Loss:
    """What became of the tokens of a conversation that are not used again."""

    cause: Cause
    note: str
    """for the reader"""


@dataclass(frozen=True, slots=True)
class PromptPlan:
    """The next prompt: its tokens, the text they stand for, and how many leading tokens are the parent's."""

    ledger: Ledger
    text: str
    kept: int = 0
    loss: Loss | None = None
    """why less than the parent's whole ledger was kept; None where nothing was lost"""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader should know."""
        return (self.loss.note,) if self.loss else ()


def next_prompt(
    vocab: Vocabulary,
    render: Callable[[Messages], str],
    parent: Turn | None,
    said: Message,
    system: str | None = None,
    history: Sequence[Turn] | None = None,
) -> PromptPlan:
    """The prompt for the message `said` after `parent`, under `system` (None: the template's own default).

    Where a part of the message ends evaluation begins anew, and so it does where the first message begins: others that
    are like it up to there share the state.
    `render` is the template with its switches set, generation prompt included. `history` are the turns that stand in
    the prompt, by default those that `parent` remembers. Raises what `render` raises.
    """
    parts = [said] if isinstance(said, str) else said
    message, cuts = "".join(parts), list(accumulate(map(len, parts[:-1])))
    if parent is None:
        text = render(conversation(system, (), message))
        return PromptPlan(_cut(vocab, _begin(vocab, text), text, message, (0, *cuts)), text)
    turns = parent.remembered if history is None else history
    messages = conversation(system, exchanges(turns), message)
    text = render(messages)
    layout = lay_out(render, messages, text) if turns else None
    fresh = _rebuild(vocab, layout, turns) if layout else _begin(vocab, text)
    kept = parent.ledger.common_prefix(fresh)
    unchanged = layout is not None and layout.replies[-1].strip() == parent.text.strip()
    loss = _loss(vocab, parent, system, kept, cut=unchanged) if len(turns) == len(parent.remembered) else None
    return PromptPlan(_cut(vocab, _join(parent.ledger, kept, fresh), text, message, cuts), text, kept, loss)


def _begin(vocab: Vocabulary, text: str) -> Ledger:
    """Tokens from the very beginning: BOS once, whether the template writes it or the vocabulary asks for it."""
    tokens = vocab.tokenize(text, False, True)
    if vocab.add_bos and tokens[:1] != [vocab.bos]:
        tokens = [vocab.bos, *tokens]
    return Ledger().append_prompt(tokens)


def _cut(vocab: Vocabulary, ledger: Ledger, text: str, message: str, cuts: Sequence[int]) -> Ledger:
    """The same tokens, with a segment of its own for what ends at each of these places of `message`, with which `text`
    ends, or beside white space there, as far as that is worth a step."""
    at = text.rfind(message.strip())
    if at < 0 or not ledger.segments or ledger.segments[-1].sampled:
        return ledger
    *earlier, last = ledger.segments
    begins, found = at - (len(message) - len(message.lstrip())), [0] * len(cuts)
    known = len(text), len(last.tokens)
    for i in reversed(range(len(cuts))):  # from the end, so that no text is tokenised again for each place
        place = max(at, begins + cuts[i])
        before, after = len(text[:place].rstrip()), len(text) - len(text[place:].lstrip())
        count = cache(partial(_n_before, vocab, last.tokens, text, known))
        found[i] = next((n for start in (place, after, before) if (n := count(start)) is not None), 0)
        if i > 0 and (n := count(before)) is not None:  # white space may be read in another way where nothing follows
            known = before, n
    done, cut = 0, Ledger(tuple(earlier))
    for n in found:
        if n - done >= WORTH:
            cut, done = cut.append_prompt(last.tokens[done:n]), n
    return cut.append_prompt(last.tokens[done:])


def _n_before(vocab: Vocabulary, tokens: Sequence[int], text: str, known: tuple[int, int], start: int) -> int | None:
    """How many of the last `tokens` of `text` stand before the place `start`; None where a token goes over it. `known`
    is a later place, and how many stand before that."""
    until, n_until = known
    tail = tokenize_after(vocab, text[start:until])
    n = n_until - len(tail)
    return n if n >= 0 and list(tokens[n:n_until]) == tail else None


def _rebuild(vocab: Vocabulary, layout: Layout, turns: Sequence[Turn]) -> Ledger:
    """The whole prompt out of the latest turn that still stands, and what the layout holds from there on."""
    start, ledger = 0, None
    for index, turn in reversed(list(enumerate(turns))):
        if layout.before(index).rstrip() == turn.prompt.rstrip():
            start, ledger = index, _parts(turn.ledger)[0]
            break
    if ledger is None:
        ledger = _begin(vocab, layout.chunks[0])
    for index in range(start, len(turns)):
        ledger = _append(vocab, ledger, turns[index], layout.replies[index], layout.chunks[index + 1])
    return ledger


def _append(vocab: Vocabulary, ledger: Ledger, turn: Turn, rendered: str, after: str) -> Ledger:
    """`ledger`, then the reply of `turn` as the template rendered it, then the template's text `after` it."""
    if rendered.strip() != turn.text.strip() or not turn.ledger.segments:
        return ledger.append_prompt(tokenize_after(vocab, rendered + after))
    sampled, together = _parts(turn.ledger)[1], any(segment.together for segment in turn.ledger.segments[-1:])
    count, rest = _spoken(vocab, sampled, turn.text)
    if not rest and len(sampled) == count + 1 and vocab.is_eog(sampled[count]):
        tokens = vocab.tokenize(after.lstrip(), False, True)
        if tokens[:1] == [sampled[count]]:  # the model ended its turn as the template would have
            return ledger.append_sampled(sampled, together=together).append_prompt(tokens[1:])
    ledger = ledger.append_sampled(sampled[:count], together=together)
    return ledger.append_prompt(tokenize_after(vocab, rest + after))


def _spoken(vocab: Vocabulary, sampled: Sequence[int], text: str) -> tuple[int, str]:
    """How many sampled tokens `text` stands for, the end-of-turn token aside, and what of it they leave over.

    It stands for all of them, unless a stop text cut it. White space around it does not count.
    """
    said = sampled[:-1] if sampled and vocab.is_eog(sampled[-1]) else sampled
    pieces = [vocab.piece(token) for token in said]
    shown, _ = codecs.utf_8_decode(b"".join(pieces), "replace", False)  # a character that was only begun is not shown
    if shown.strip() == text.strip():
        return len(said), ""
    data = text.strip().encode()
    at = safe = count = 0
    for number, piece in enumerate(pieces, start=1):
        new = piece if at else piece.lstrip()
        if not data.startswith(new, at):
            break
        at += len(new)
        if at == len(data) or data[at] & 0xC0 != 0x80:  # not inside a character
            safe, count = at, number
    return count, data[safe:].decode()


def _parts(ledger: Ledger) -> tuple[Ledger, tuple[int, ...]]:
    """A turn's ledger as the prompt and the reply's sampled tokens."""
    if ledger.segments and ledger.segments[-1].sampled:
        return Ledger(ledger.segments[:-1]), ledger.segments[-1].tokens
    return ledger, ()


def _join(old: Ledger, n: int, fresh: Ledger) -> Ledger:
    """The first `n` tokens of `old`, then those of `fresh` behind them.

    The latter are evaluated anew, so they are prompt even where they were sampled once; their segments end where
    replies begin. A prompt segment that `n` cuts goes on, because its end is no turn's.
    """
    ledger = old.head(n)
    pending: tuple[int, ...] = ()
    if n not in accumulate(len(segment.tokens) for segment in old.segments) and ledger.segments:
        *before, last = ledger.segments
        if not last.sampled:
            ledger, pending = Ledger(tuple(before)), last.tokens
    start = 0
    for segment in fresh.segments:
        pending += segment.tokens[max(n - start, 0) :]
        start += len(segment.tokens)
        if not segment.sampled:
            ledger, pending = ledger.append_prompt(pending), ()
    return ledger.append_prompt(pending)


def _loss(vocab: Vocabulary, parent: Turn, system: str | None, kept: int, cut: bool) -> Loss | None:
    ledger = parent.ledger
    lost = len(ledger) - kept
    if lost == 0 or (lost == 1 and vocab.is_eog(ledger.tokens[-1])):
        return None
    if system != parent.system:
        note = f"the system prompt changed, so the conversation was read again from token {kept} on"
        return Loss("system prompt changed", note)
    if cut and kept >= len(_parts(ledger)[0]):
        return None  # what a stop text cut off was never part of the conversation
    number = next(n for n, turn in enumerate(parent.path, start=1) if kept < len(turn.ledger))
    what = "leaves thinking out of" if any(turn.thinking for turn in parent.path[number - 1 :]) else "rewrote"
    note = f"the template {what} history in turn {number}: the prompt differs from token {kept} on"
    return Loss("template rewrote history", note)
