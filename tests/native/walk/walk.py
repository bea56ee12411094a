"""The operations of a walk, each done on the context and on the rules."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from native.walk import upstream
from native.walk.kinds import N_VOCAB
from native.walk.rules import Piece, Refused, Run, Token
from native.walk.states import Saved
from native.walk.subject import Copy, Failure, Subject, attempt, tokens_of

from ipyllama import _core
from ipyllama.errors import Aborted, BadArgument, BadState, DecodeError, LlamaError


class Walk(Subject):
    """One context on its way. Every do_NAME takes plain values and does nothing where it makes no sense."""

    # steps

    def do_decode(self, number: int, n: int, salt: int, outputs: str = "LAST", position: int | None = None) -> None:
        if number in self.sequences:
            piece = Piece(number, tokens_of(n, salt), outputs != "NONE", position)
            wanted = getattr(_core.Outputs, outputs)
            worked = self._step(lambda: self.sequences[number].decode(list(piece.tokens), wanted, position), [piece])
            if worked and outputs == "ALL" and self.sequences[number].all_logits().shape != (n, N_VOCAB):
                raise Failure("logits are not those of all tokens of the step")

    def do_batch(self, parts: list[tuple[int, int, int, str]]) -> None:
        pieces = [Piece(number, tokens_of(n, salt), outputs != "NONE") for number, n, salt, outputs in parts]
        if all(piece.number in self.sequences for piece in pieces):
            self._step(lambda: self.context.decode(self._batch(parts)), pieces)

    def _batch(self, parts: list[tuple[int, int, int, str]]) -> _core.Batch:
        batch = _core.Batch()
        for number, n, salt, outputs in parts:
            batch.add(self.sequences[number], list(tokens_of(n, salt)), getattr(_core.Outputs, outputs))
        return batch

    def _step(self, act: Callable[[], object], pieces: list[Piece]) -> bool:
        result, got = attempt(act)
        room = self.model.used() + sum(len(piece.tokens) for piece in pieces) <= self.kind.n_ctx
        if isinstance(got, DecodeError) and self.kind.window and room:
            self._full_early()
            self.model.check_step(pieces)
            self.model.logits.clear()
            self.model.shift_pending = False
            return False
        self.settle(result, got, lambda: self.model.decode(pieces))
        return got is None

    def do_flag(self, number: int, n: int, salt: int) -> None:
        if number in self.sequences:
            piece = Piece(number, tokens_of(n, salt))
            self.context.abort()
            act = lambda: self.sequences[number].decode(list(piece.tokens))  # noqa: E731
            self.both(act, lambda: self.model.decode([piece], flag=True))
            self.context.clear_abort()

    def do_abort(self, parts: list[tuple[int, int, int, str]], delay: float) -> None:
        """A step that is aborted at some moment, or is over before: which depends on the machine."""
        if any(number not in self.sequences for number, *_ in parts):
            return
        pieces = [Piece(number, tokens_of(n, salt), outputs != "NONE") for number, n, salt, outputs in parts]
        batch = self._batch(parts) if len({number for number, *_ in parts}) == len(parts) else None
        if batch is None:
            return
        timer = threading.Timer(delay, self.context.abort)
        timer.start()
        result, got = attempt(lambda: self.context.decode(batch))
        timer.join()
        self.context.clear_abort()
        if not isinstance(got, Aborted):
            self._step_done(result, got, pieces)
        elif "flag is set" not in str(got):
            self.outcomes[self._name, "Aborted"] += 1
            self.model.logits.clear()
            self.model.shift_pending = False
            self._aborted(pieces)

    def _step_done(self, result: object, got: LlamaError | None, pieces: list[Piece]) -> None:
        def again() -> object:
            if got is not None:
                raise got
            return result

        self._step(again, pieces)

    def _aborted(self, pieces: list[Piece]) -> None:
        """Finished micro-batches stay. Recurrent state has no way back, that of others in the context neither."""
        if self.kind.recurrent:
            for number in list(self.sequences) if len(pieces) > 1 else [pieces[0].number]:
                self.model.clear(number)
            return
        for piece in pieces:
            n = len(self.sequences[piece.number]) - len(self.model.run(piece.number).tokens)
            if n > 0:
                self.model.evaluate(piece._replace(tokens=piece.tokens[:n], wanted=False))

    # changes

    def do_open(self, number: int | None) -> None:
        sequence, _ = self.both(lambda: _core.Sequence(self.context, number), lambda: self.model.open(number))
        if sequence is not None:
            self.sequences[sequence.id] = sequence

    def do_fork(self, number: int) -> None:
        if number in self.sequences:
            twin, _ = self.both(self.sequences[number].fork, lambda: self.model.fork(number))
            if twin is not None:
                self.sequences[twin.id] = twin

    def do_close(self, number: int) -> None:
        if number in self.sequences:
            self.both(self.sequences.pop(number).close, lambda: self.model.close(number))

    def do_cp(self, source: int, number: int, p0: int, p1: int | None) -> None:
        if {source, number} <= set(self.sequences):
            act = lambda: self.sequences[number].cp(self.sequences[source], p0, p1)  # noqa: E731
            self.both(act, lambda: self.model.cp(source, number, p0, p1))

    def do_clear_all(self, data: bool) -> None:
        self.both(lambda: self.context.memory.clear(data), self.model.clear_all)

    def do_sequence(self, name: str, number: int, *arguments: object) -> None:
        """rm, trim, add, div, keep, clear: the same words on both sides."""
        if number in self.sequences:
            act = getattr(self.sequences[number], name)
            self.both(lambda: act(*arguments), lambda: getattr(self.model, name)(number, *arguments))

    # states

    def do_save(self, name: str, number: int, p0: int = 0, p1: int | None = None, partial: bool = False) -> None:
        if number in self.sequences:
            act = lambda: self.sequences[number].save(p0, p1, partial=partial)  # noqa: E731
            data, saved = self.both(act, self._observed(lambda: self.model.save(number, p0, p1, partial)))
            if saved is not None:
                if self.sequences[number].state_size(p0, p1, partial=partial) != len(data):
                    raise Failure("state_size() is not the size of save()")
                self.copies[name] = Copy(data, saved, self.model.run(number).tokens)

    def do_restore(self, name: str, number: int) -> None:
        copy = self.copies.get(name)
        if copy and number in self.sequences and copy.owner is None and not copy.saved.partial and self._fits(copy, ()):
            tokens = [token.token for token in copy.saved.run.tokens]
            self._restore(number, copy, lambda: self.sequences[number].restore(copy.data, tokens))

    def _restore(self, number: int, copy: Copy, act: Callable[[], object]) -> None:
        result, got = attempt(act)
        fits = self.model.used() + len(copy.saved.run.tokens) <= self.kind.n_ctx
        if isinstance(got, BadState) and self.kind.window and fits and "empty now" in str(got):
            self._full_early()
            self.model.clear(number)
            return
        self.settle(result, got, lambda: self.model.restore(number, copy.saved))

    def do_append(self, name: str, number: int) -> None:
        copy = self.copies.get(name)
        if not copy or number not in self.sequences or copy.owner is not None or copy.saved.partial:
            return
        before = self.model.run(number).tokens
        if not self._fits(copy, before):
            return
        tokens = [token.token for token in copy.saved.run.tokens]
        result, got = attempt(lambda: self.sequences[number].append(copy.data, tokens))
        if isinstance(got, BadState) and self.kind.window and "empty now" in str(got):
            self._full_early()
            self.model.logits.pop(number, None)
            return
        self.settle(result, got, lambda: self.model.append(number, copy.saved))

    def _fits(self, copy: Copy, before: tuple[Token, ...]) -> bool:
        """Recurrent state sums up what came before, so a part of a sequence has a meaning in its own place only."""
        there = [token.pos for token in before] == [token.pos for token in copy.origin[: len(before)]]
        in_place = there and _same((*before, *copy.saved.run.tokens), copy.origin)
        return in_place or not (self.kind.recurrent and self.kind.attention)

    def do_rewind(self, name: str, number: int) -> None:
        copy = self.copies.get(name)
        if not copy or number not in self.sequences or not copy.saved.partial:
            return
        tokens, saved = self.model.run(number).tokens, copy.saved.run.tokens
        alike = [t.token for t in tokens[: len(saved)]] == [t.token for t in saved]
        if alike and not _same(tokens[: len(saved)], copy.origin):
            return  # the same tokens with other numbers in their cells: nothing can tell
        ids = [token.token for token in saved]
        self.both(lambda: self.sequences[number].rewind(copy.data, ids), lambda: self.model.rewind(number, copy.saved))

    def do_save_on_device(self, name: str, number: int) -> None:
        """Twice the same number of tokens, all at one position, is refused: see prepare_device() in ext/engine."""
        positions = {token.pos for token in self.model.run(number).tokens} if number in self.sequences else set()
        if number in self.sequences and (len(positions) > 1 or len(self.sequences[number]) < 2):
            data, saved = self.both(
                self.sequences[number].save_on_device, self._observed(lambda: self._saved_on_device(number))
            )
            if saved is not None:
                if data.n_tokens != len(saved.run.tokens):
                    raise Failure("n_tokens is not the number of tokens")
                self.copies[name] = Copy(data, saved, owner=self.sequences[number])
                self.on_device[number] = name

    def _saved_on_device(self, number: int) -> Saved:
        saved = self.model.save(number)  # a pending shift is applied first
        if not self.kind.on_device:
            raise Refused(BadArgument)
        return saved

    def do_restore_on_device(self, name: str, number: int) -> None:
        copy = self.copies.get(name)
        if not copy or number not in self.sequences or copy.owner is None:
            return

        def rule() -> None:
            if copy.owner is not self.sequences[number] or self.on_device[number] != name:
                raise Refused(BadState)
            positions = [token.pos for token in copy.saved.run.tokens]
            self.model.restore(number, copy.saved)
            run = self.model.runs[number]  # it knows all positions
            tokens = tuple(t._replace(pos=pos) for t, pos in zip(run.tokens, positions, strict=True))
            self.model.runs[number] = replace(run, tokens=tokens)

        result, got = attempt(lambda: self.sequences[number].restore_on_device(copy.data))
        if isinstance(got, BadState) and self.kind.window and "empty now" in str(got):
            self._full_early()
            self.model.clear(number)
            return
        self.settle(result, got, rule)

    def do_save_all(self, name: str) -> None:
        data, runs = self.both(self.context.save, self._observed(self.model.save_all))
        parts = upstream.parts(data, self.kind.attention, self.kind.window > 0)
        self.audit(parts)
        if self.kind.window:
            runs = {
                number: replace(run, hole_end=_complete_from(parts[1], number, run)) for number, run in runs.items()
            }
        self.contexts[name] = (data, runs)

    def do_restore_all(self, name: str) -> None:
        if name not in self.contexts:
            return
        data, runs = self.contexts[name]
        tokens = {number: [token.token for token in run.tokens] for number, run in runs.items()}
        self.both(lambda: self.context.restore(data, tokens), lambda: self.model.restore_all(runs))


def _same(tokens: tuple[Token, ...], others: tuple[Token, ...]) -> bool:
    """True if each pair comes from one evaluation."""
    return len(tokens) == len(others) and all(a.made is b.made for a, b in zip(tokens, others, strict=True))


def _complete_from(cells: list[upstream.Cell], number: int, run: Run) -> int:
    """From which position on these are all cells of the sequence."""
    there = {cell.pos for cell in cells if number in cell.sequences}
    first = run.tokens[-1].pos
    for token in reversed(run.tokens):
        if token.pos not in there:
            break
        first = token.pos
    return first
