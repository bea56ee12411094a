"""A walk through the native layer, `ipyllama._core`: every public name of it, in use, with what it promises asserted.

    python examples/native_layer.py MODEL.gguf RANKER.gguf [LORA.gguf PROJECTOR.gguf]

takes a model that generates and one that ranks (a BERT with a classifier), an adapter and an image projector.
docs/native.md tells the rules behind it.
"""

from __future__ import annotations

import sys
import threading

import numpy as np
import numpy.typing as npt

from ipyllama import _core
from ipyllama.errors import Aborted, BadArgument, BadState, CannotShift, CannotTrim, ClosedError

Logits = npt.NDArray[np.float32]


def about_the_build() -> dict[str, str]:
    """What is linked in, what it can compute on, and what it wrote to its log."""
    first = _core.log_next()
    known: list[tuple[int, int, str]] = _core.log_since(max(0, first - 5))
    assert all(number < _core.log_next() and 1 <= level <= 4 and text for number, level, text in known)
    devices: list[tuple[str, str]] = _core.devices()
    assert devices
    assert "CPU" in _core.system_info()
    return _core.build_info()


def load(path: str) -> _core.Model:
    """Another thread may watch `fraction` and call `cancel`; here it is cancelled from the start, then not."""
    watch = _core.LoadProgress()
    watch.cancel()
    try:
        _core.Model.load(path, progress=watch)
    except Aborted:
        assert watch.fraction < 1.0
    return _core.Model.load(path, n_gpu_layers=0, use_mmap=True, vocab_only=False, check_tensors=True)


def read_model(model: _core.Model) -> dict[str, int | bool | str]:
    """Sizes and kind of a model; -1 and 0 stand for what it does not have."""
    assert model.metadata()["general.architecture"] in model.description
    kinds = {"recurrent": model.is_recurrent, "hybrid": model.is_hybrid}
    kinds |= {"encoder": model.has_encoder, "decoder": model.has_decoder}
    sizes = {"bytes": model.size, "parameters": model.n_params, "vocabulary": model.n_vocab}
    sizes |= {"context": model.n_ctx_train, "width": model.n_embd, "embedding": model.n_embd_out}
    sizes |= {"layers": model.n_layer, "heads": model.n_head, "KV heads": model.n_head_kv, "window": model.n_swa}
    return {**kinds, **sizes, "pooling": model.pooling, "template": model.chat_template() or ""}


def tokens_of(model: _core.Model, text: str) -> list[int]:
    """Text to token ids, and back."""
    tokens = model.tokenize(text, add_special=False, parse_special=False)
    assert model.detokenize(tokens) == b"".join(model.piece(token) for token in tokens)
    specials = {"bos": model.bos, "eos": model.eos, "eot": model.eot, "sep": model.sep}
    known = {name: token for name, token in specials.items() if token >= 0}
    assert all(model.piece(token, special=True) for token in known.values())
    assert not any(model.is_eog(token) or model.is_control(token) for token in tokens)
    added = (model.add_bos, model.add_eos, model.add_sep)
    return ([known["bos"]] if added[0] else []) + tokens


def make_context(model: _core.Model, *, embeddings: bool = False, pooling: str = "unspecified") -> _core.Context:
    """Options with a name and a type each; the context holds on to the model."""
    options = _core.ContextOptions()
    options.n_ctx, options.n_batch, options.n_ubatch = 512, 256, 256
    options.n_seq_max = 4
    options.n_threads, options.n_threads_batch = 1, 1
    options.flash_attention = -1
    options.swa_full, options.offload_kqv = True, True
    options.type_k = options.type_v = "f16"
    options.embeddings, options.pooling = embeddings, pooling
    options.rope_freq_base = options.rope_freq_scale = 0.0
    context = _core.Context(model, options)
    assert (context.n_ctx, context.n_batch, context.n_ubatch, context.n_seq_max) == (512, 256, 256, 4)
    assert context.n_vocab == model.n_vocab
    context.set_threads(1, 1)
    assert context.n_threads == context.n_threads_batch == 1
    return context


def step_and_logits(sequence: _core.Sequence, tokens: list[int]) -> Logits:
    """A step appends to the ledger; the array that `logits` gives is the caller's own."""
    assert (len(sequence), sequence.pos_min, sequence.pos_max, sequence.has_logits) == (0, -1, -1, False)
    sequence.decode(tokens, _core.Outputs.ALL)
    assert sequence.tokens == tokens
    assert sequence.positions == list(range(len(tokens)))
    assert len(set(sequence.cells)) == len(sequence) == len(tokens)
    every: Logits = sequence.all_logits()
    assert np.array_equal(every[-1], sequence.logits())
    return sequence.logits()


def several_sequences(context: _core.Context, tokens: list[int]) -> None:
    """Sequences share a context: one batch steps them all, a fork shares cells, each position can be asked for."""
    with _core.Sequence(context, 2) as one, _core.Sequence(context) as two:
        batch = _core.Batch()
        batch.add(one, tokens, outputs=_core.Outputs.LAST)
        batch.add(two, tokens, outputs=_core.Outputs.NONE, position=0)
        assert len(batch) == 2 * len(tokens)
        context.decode(batch)
        batch.clear()
        assert (one.id, one.has_logits, two.has_logits) == (2, True, False)
        two.clear()
        two.cp(one, 0, None)
        assert context.memory.counts[one.id] == len(two)
        assert context.memory.used < context.memory.total
        twin = two.fork()
        assert twin.cells == two.cells
        twin.keep()  # empties all others
        assert (len(one), len(two), len(twin)) == (0, 0, len(tokens))
        twin.close()
        assert twin.closed
    context.memory.clear(data=False)


def cut_and_shift(context: _core.Context, sequence: _core.Sequence) -> None:
    """Removals and moves are checked: refused ones raise, and leave everything as it was."""
    memory: _core.Memory = context.memory
    can: _core.Capability = memory.capability()
    assert can.level == "full" or can.reason
    before = (sequence.tokens, sequence.positions)
    try:
        sequence.trim(len(before[0]) - 1)
        sequence.rm(1, 3)
        sequence.add(3, None, -2)
        sequence.div(0, None, 2)
    except CannotTrim:
        assert can.level != "full"
        assert (sequence.tokens, sequence.positions) == before
    except CannotShift:
        assert not (can.can_shift and memory.can_shift)


def move_state(context: _core.Context, sequence: _core.Sequence) -> None:
    """State is bytes: of a sequence, of a range, of the whole context, or in the device's own memory."""
    tokens = sequence.tokens
    state = sequence.save()
    assert state.nbytes == sequence.state_size()
    buffer = bytearray(sequence.state_size())
    assert sequence.save_into(buffer) == len(buffer)
    whole = context.save()
    assert context.save_into(bytearray(context.state_size())) == whole.nbytes <= context.state_limit
    assert context.state_tokens(whole) == {sequence.id: len(tokens)}
    assert (sequence.state_tokens(state), sequence.context) == (len(tokens), context)
    kept: _core.DeviceState = sequence.save_on_device()
    partial = sequence.save(partial=True)
    sequence.decode(tokens[-1:])
    try:
        sequence.rewind(partial, tokens)
    except BadArgument:  # one kind of layer only, so there is no part: all of it leads back
        sequence.restore(state, tokens)
    sequence.restore_on_device(kept)
    assert (sequence.tokens, kept.n_tokens) == (tokens, len(tokens))
    sequence.restore(buffer, tokens)
    with _core.Sequence(context) as other:
        try:
            half = len(tokens) // 2
            blocks = sequence.save(0, half), sequence.save(half)
        except CannotTrim:  # recurrent state exists at the end only
            return
        other.append(blocks[0], tokens[:half])
        other.append(blocks[1], tokens[half:])
        assert other.tokens == tokens
    context.restore(whole, {sequence.id: tokens})
    try:
        sequence.restore(state[:-1], tokens)
    except BadState:
        assert sequence.tokens == tokens


GRAMMAR = 'root ::= "a"* | [^a]*'
"""GBNF; here: only one letter, or anything without it."""


def samplers(model: _core.Model) -> list[_core.Sampler]:
    """Each one that there is. They are plain values: a chain takes copies of its parts."""
    s = _core.Sampler
    shape = [s.top_k(40), s.top_p(0.95), s.min_p(0.05), s.typical(0.95), s.top_n_sigma(3.0), s.xtc(0.1)]
    shape += [s.temp(0.8), s.temp_ext(0.8, 0.2), s.logit_bias(model, {0: -1.0})]
    shape += [s.penalties(model, last_n=64, repeat=1.1), s.dry(model, multiplier=0.5), s.grammar(model, GRAMMAR)]
    shape += [s.grammar_lazy_patterns(model, GRAMMAR, patterns=["never seen"])]
    choose = [s.greedy(), s.dist(42), s.mirostat(model), s.mirostat_v2(), s.adaptive_p(0.5)]
    try:
        return [*shape, s.infill(model), *choose]
    except BadArgument:  # the vocabulary knows no fill-in-the-middle
        return [*shape, *choose]


def generate(model: _core.Model, sequence: _core.Sequence, n: int) -> bytes:
    """Sample from the last logits, in place; the sampler remembers what it chose."""
    assert all(part.name for part in samplers(model))
    ids, logprobs = _core.top_logprobs(sequence, 3)
    assert logprobs[0] >= logprobs[1] >= logprobs[2]
    parts = [_core.Sampler.top_k(40), _core.Sampler.temp(0.8), _core.Sampler.dist(42)]
    text = b""
    with _core.Sampler.chain(parts) as sampler:
        assert (sampler.names, sampler.seed) == (["top_k", "temp", "dist"], 42)
        kept: _core.Candidates = sampler.apply(sequence.logits())
        assert ids[0] in kept.tokens
        assert kept.logits.shape == kept.probabilities.shape
        assert kept.selected is not None
        sampler.accept(sequence.tokens)
        for _ in range(n):
            token = sampler.sample(sequence)
            if model.is_eog(token):
                break
            text += model.piece(token)
            sequence.decode([token])
        twin = sampler.clone()
        sampler.reset()
        assert not twin.closed
    return text


def stop_a_step(context: _core.Context, sequence: _core.Sequence) -> None:
    """Any thread may set the flag; the ledger then holds what is in memory."""
    stopper = threading.Thread(target=context.abort)
    stopper.start()
    stopper.join()
    try:
        sequence.decode([1, 1])
    except Aborted:
        context.clear_abort()
    sequence.decode([1])


def embed(model: _core.Model, texts: list[list[int]]) -> list[npt.NDArray[np.float32]]:
    """Pooled: a row for each text. With pooling 'none': a row for each token, of the last token also by sequence."""
    with make_context(model, embeddings=True, pooling="mean") as pooled:
        rows = pooled.embed(texts)
    with make_context(model, embeddings=True, pooling="none") as context, _core.Sequence(context) as sequence:
        sequence.decode(texts[0])
        last = sequence.embeddings()
        of_tokens = context.embed(texts[:1])[0]
        assert of_tokens.shape == (len(texts[0]), model.n_embd_out)
        assert np.allclose(of_tokens[-1], last, atol=1e-2)
        assert np.allclose(of_tokens.mean(axis=0), rows[0], atol=1e-2)
    return rows


def rank(path: str, pairs: list[list[int]]) -> list[tuple[str | None, float]]:
    """Scores of a model with a classifier, and what its first output is called."""
    with load(path) as model, make_context(model, embeddings=True, pooling="rank") as context:
        assert model.n_cls_out > 0
        return [(model.cls_label(0), float(scores[0])) for scores in context.embed(pairs)]


def adapt(model: _core.Model, path: str, tokens: list[int]) -> None:
    """LoRA adapters and control vectors change what an empty context computes from now on."""
    with make_context(model) as context, _core.Sequence(context) as sequence, _core.Adapter.load(model, path) as lora:
        assert lora.metadata()["general.type"] == "adapter"
        assert (lora.path, lora.invocation_tokens) == (path, [])
        sequence.decode(tokens)
        plain = sequence.logits()
        sequence.clear()
        context.set_adapters([(lora, 0.5)])
        assert [scale for _, scale in context.adapters] == [0.5]
        context.set_control_vector(np.full((model.n_layer, model.n_embd), 0.1, np.float32), 1, model.n_layer - 1)
        sequence.decode(tokens)
        assert not np.array_equal(sequence.logits(), plain)
        sequence.clear()
        context.set_adapters([])
        context.clear_control_vector()
        sequence.decode(tokens)
        assert np.array_equal(sequence.logits(), plain)


def see(model: _core.Model, path: str) -> None:
    """A projector cuts a prompt with media into chunks; each is encoded, then read into a sequence."""
    image = np.zeros((32, 32, 3), np.uint8)
    with (
        make_context(model) as context,
        _core.Sequence(context) as sequence,
        _core.Multimodal.load(model, path) as projector,
    ):
        assert projector.supports_vision
        assert projector.supports_audio == (projector.audio_sample_rate > 0)
        chunks: list[_core.Chunk] = projector.tokenize(f"This {projector.marker} is dark.", [image])
        for chunk in chunks:
            if chunk.kind == "text":
                sequence.decode(chunk.tokens)
            else:
                rows = projector.encode(chunk)
                assert rows.shape == (chunk.n_tokens, projector.n_embd)
                assert chunk.id
                projector.evaluate(sequence, chunk, rows)
        assert sequence.pos_max == sum(chunk.n_positions for chunk in chunks) - 1


def close_in_any_order(model: _core.Model) -> None:
    """A context keeps its model alive, a sequence its context; what is closed says so."""
    context = make_context(model)
    sequence = _core.Sequence(context)
    model.close()
    sequence.decode([1, 2, 3])
    context.close()
    assert (model.closed, context.closed, sequence.closed) == (True, True, False)
    try:
        sequence.decode([4])
    except ClosedError:
        sequence.close()


def main(generator: str, ranker: str, lora: str = "", projector: str = "") -> None:
    commit = about_the_build()["llama_cpp_commit"]
    model = load(generator)
    facts = read_model(model)
    tokens = tokens_of(model, "Once upon a time there was a llama")
    with make_context(model) as context:
        several_sequences(context, tokens)
        with _core.Sequence(context) as sequence:
            step_and_logits(sequence, tokens)
            text = generate(model, sequence, 8)
            stop_a_step(context, sequence)
            move_state(context, sequence)
        with _core.Sequence(context, 0) as sequence:
            sequence.decode(tokens)
            cut_and_shift(context, sequence)
    vectors = embed(model, [tokens, tokens[:3]])
    scores = rank(ranker, [[2, 5, 6, 3], [2, 7, 3]])
    if lora and projector:
        adapt(model, lora, tokens)
        see(model, projector)
    close_in_any_order(model)
    print(f"llama.cpp {commit[:8]}, {facts['parameters']:,} parameters")
    print(f"it wrote {text!r}; vectors of {vectors[0].size}; scores {scores}")


if __name__ == "__main__":
    main(*sys.argv[1:])
