"""A branch inside an answer: its tokens up to a place, another token there, and whatever follows that."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial
from numbers import Integral
from typing import TYPE_CHECKING, Any

from ipyllama.chat.record import record
from ipyllama.chat.tree import Tree
from ipyllama.chat.turn import Place, Turn, check_name
from ipyllama.engine import Opening
from ipyllama.errors import BadOption
from ipyllama.ledger import Ledger
from ipyllama.logprobs import TokenLogprob, has_top, shortened
from ipyllama.vocab import tokenize_after

if TYPE_CHECKING:
    from ipyllama.chat.speaker import Speaker
    from ipyllama.engine import Job
    from ipyllama.options import GenerateOptions


@dataclass(frozen=True, slots=True)
class Branch:
    """What is to be read, and the first tokens of the answer."""

    prompt: Ledger
    opening: Opening

    @classmethod
    def of(cls, turn: Turn, at: int, token: int, options: GenerateOptions) -> Branch:
        """Where logprobs are asked for and known of the tokens before `at`, nothing is evaluated again; but if they are
        not known of `token`, the token before it. Where none are known, it is every token of the answer."""
        asked = turn.ledger.head(len(turn.ledger) - len(turn.tokens))
        given = (*turn.tokens[:at], token)
        known = _known(turn, at, token, options.logprobs)
        n_read = len(given) if options.logprobs is None else len(known)
        return cls(asked.append_sampled(given[:n_read]), Opening(n_read, known, given[n_read:]))


def _known(turn: Turn, at: int, token: int, n: int | None) -> tuple[TokenLogprob, ...]:
    """What the turn tells of the branch's first tokens, with `n` alternatives each."""
    if n is None or turn.logprobs is None or not has_top(turn.logprobs[: at + 1], n):
        return ()
    there = turn.logprobs[at]
    taken = next((each for each in (*there.top, there) if each.id == token), None)
    here = () if taken is None else (TokenLogprob(token, taken.bytes, taken.logprob, there.entropy, there.top),)
    return shortened((*turn.logprobs[:at], *here), n)


def start_branch(llm: Speaker, tree: Tree, turn: Turn, at: int, token: int | str, options: dict[str, Any]) -> Job:
    """The job of a branch, see `Chat.branch`."""
    if not turn.tokens or not turn.ledger:
        raise BadOption("this turn has no tokens of this model: ask again, then branch")
    if isinstance(at, bool) or not isinstance(at, Integral) or not 0 <= at < len(turn.tokens):
        raise BadOption(f"the answer has tokens 0 to {len(turn.tokens) - 1:,}: there is no {at!r}")
    rest = dict(options)
    name, fresh, notes = rest.pop("name", None), rest.pop("fresh", False), rest.pop("notes", ())
    if name is not None:
        check_name(name)
    kept = {item.name: getattr(turn.options, item.name) for item in fields(turn.options)}
    chosen = turn.options.replace_from(kept | rest)
    branch = Branch.of(turn, int(at), find_token(llm, turn, int(at), token), chosen)
    values = {item.name: getattr(turn, item.name) for item in fields(Place)}
    values |= {"cell": None, "run": 0, "name": name, "sample": 0, "n_samples": 1, "moved": False, "options": chosen}
    wrap = partial(record, tree, Place(**values), None)
    return llm.generate(branch.prompt, chosen, notes, wrap, fresh=fresh, opening=branch.opening, caller=turn.chat)


def find_token(llm: Speaker, turn: Turn, at: int, token: int | str) -> int:
    """The id of a token given by its id or its text; of texts, those of the alternatives come first.

    Raises `BadOption` for a text that is not one token, and for an id that is not in the vocabulary.
    """
    if isinstance(token, str):
        if turn.logprobs is not None:
            for each in turn.logprobs[at].top:
                if each.bytes == token.encode("utf-8", "replace"):
                    return each.id
        found = tokenize_after(llm.vocab, token)
        if len(found) != 1:
            raise BadOption(f"{token!r} is {len(found)} tokens of {llm.name}, it must be one: try the id of a token")
        return found[0]
    if isinstance(token, bool) or not isinstance(token, Integral) or not 0 <= token < llm.vocab.n_tokens:
        raise BadOption(f"{token!r} is no token: ids are 0 to {llm.vocab.n_tokens - 1:,}, or write its text")
    return int(token)


def with_logprobs(turn: Turn, n: int) -> Turn:
    """The turn with `n` alternatives for each token, evaluated again where they are not known."""
    if turn.logprobs is not None and has_top(turn.logprobs, n):
        return replace(turn, logprobs=shortened(turn.logprobs, n))
    if turn.chat is None:
        raise BadOption("this turn belongs to no conversation: ask with logprobs=5 to have them")
    if not turn.tokens:
        return replace(turn, logprobs=())
    prompt = turn.ledger.head(len(turn.ledger) - len(turn.tokens))
    return replace(turn, logprobs=turn.chat.llm.score(prompt, turn.tokens, n))
