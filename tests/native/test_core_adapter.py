"""LoRA adapters and control vectors, against models whose weights were merged by NumPy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gguf
import numpy as np
import pytest
from native.ask import bits
from native.core import make_context, make_sequence, run_apart
from numpy.typing import NDArray
from tiny import build
from tiny.lora import Lora, random_lora

from ipyllama import _core
from ipyllama.errors import BadArgument, BadModelFile, ClosedError

PROMPT = list(range(3, 60))
ONE, OTHER = random_lora(seed=1), random_lora(seed=2, rank=7, alpha=3.0)
CLOSE = 0.02  # f16 weights round the activations: a last bit there is 5e-3 in the logits, which reach to 10
APART = 1.0  # what an adapter changes them by, at least

Logits = NDArray[np.float32]
Opened = tuple[_core.Model, _core.Context, _core.Sequence]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """base.gguf, and the adapters one.gguf and other.gguf for it."""
    folder = tmp_path_factory.mktemp("adapters")
    write_merged(folder / "base.gguf")
    ONE.write(folder / "one.gguf", invocation_tokens=[5, 6])
    OTHER.write(folder / "other.gguf")
    return folder


@pytest.fixture
def opened(folder: Path) -> Opened:
    model = _core.Model.load(str(folder / "base.gguf"))
    context = make_context(model, n_seq_max=2)
    return model, context, _core.Sequence(context, 0)


@pytest.fixture
def draw() -> Callable[[int], int]:
    """`draw(n)`: numbers from 0 to n - 1, the same in every run."""
    import random

    return random.Random(11).randrange


def write_merged(path: Path, *scaled: tuple[Lora, float], bias: Logits | None = None) -> Path:
    """The tiny llama with these adapters merged; everything that they could change is f32, changed or not."""
    added = {name: np.zeros_like(delta) for lora in (ONE, OTHER) for name, delta in lora.delta(0).items()}
    for lora, scale in scaled:
        for name, delta in lora.delta(scale).items():
            added[name] = added[name] + delta
    if bias is not None:
        added["blk.1.ffn_down.bias"] = bias
    build("llama", path, added=added)
    return path


def logits(sequence: _core.Sequence, tokens: Iterable[int] = PROMPT) -> Logits:
    sequence.clear()
    sequence.decode(list(tokens))
    return sequence.logits()


def load(opened: Opened, folder: Path, name: str = "one") -> _core.Adapter:
    return _core.Adapter.load(opened[0], str(folder / f"{name}.gguf"))


@pytest.mark.parametrize("scale", [1.0, 0.7, -1.5])
def test_an_adapter_computes_as_its_merged_weights(opened: Opened, folder: Path, tmp_path: Path, scale: float) -> None:
    _, context, sequence = opened
    base = logits(sequence)
    sequence.clear()
    context.set_adapters([(load(opened, folder), scale)])
    found = logits(sequence)
    merged = logits(make_sequence(write_merged(tmp_path / "merged.gguf", (ONE, scale))))
    np.testing.assert_allclose(found, merged, rtol=0, atol=CLOSE)
    assert np.abs(found - base).max() > APART


def test_a_stack_is_the_sum(opened: Opened, folder: Path, tmp_path: Path) -> None:
    _, context, sequence = opened
    context.set_adapters([(load(opened, folder), 0.5), (load(opened, folder, "other"), 1.25)])
    found = logits(sequence)
    merged = logits(make_sequence(write_merged(tmp_path / "merged.gguf", (ONE, 0.5), (OTHER, 1.25))))
    np.testing.assert_allclose(found, merged, rtol=0, atol=CLOSE)
    for alone in ((ONE, 0.5), (OTHER, 1.25)):
        assert np.abs(found - logits(make_sequence(write_merged(tmp_path / "alone.gguf", alone)))).max() > APART


def test_taken_off_nothing_is_left(opened: Opened, folder: Path) -> None:
    _, context, sequence = opened
    base, adapter = logits(sequence), load(opened, folder)
    for adapters in ([(adapter, 1.0)], [], [(adapter, 0.0)], [(adapter, -2.0)], []):
        sequence.clear()
        context.set_adapters(adapters)
        assert np.array_equal(bits(logits(sequence)), bits(base)) == (not any(scale for _, scale in adapters))


def test_what_is_set_is_told(opened: Opened, folder: Path) -> None:
    _, context, _ = opened
    assert context.adapters == []
    one, other = load(opened, folder), load(opened, folder, "other")
    context.set_adapters([(other, 0.5), (one, 2.0)])
    assert [(adapter.path, scale) for adapter, scale in context.adapters] == [(other.path, 0.5), (one.path, 2.0)]
    one.close()
    context.adapters[1][0].metadata()  # the context has kept it
    context.set_adapters([])
    assert context.adapters == []


def test_metadata(opened: Opened, folder: Path) -> None:
    adapter = load(opened, folder)
    assert adapter.metadata()["general.name"] == "tiny-random-lora"
    assert float(adapter.metadata()["adapter.lora.alpha"]) == ONE.alpha
    assert adapter.path == str(folder / "one.gguf")
    assert adapter.invocation_tokens == [5, 6]
    assert load(opened, folder, "other").invocation_tokens == []


def test_each_context_has_its_own(opened: Opened, folder: Path) -> None:
    model, context, sequence = opened
    adapter, second = load(opened, folder), make_context(model)
    plain = logits(sequence)
    second.set_adapters([(adapter, 1.0)])
    changed = logits(_core.Sequence(second, 0))
    assert np.array_equal(bits(logits(sequence)), bits(plain))
    sequence.clear()
    context.set_adapters([(adapter, 1.0)])
    assert np.array_equal(bits(logits(sequence)), bits(changed))


def test_memory_that_was_computed_otherwise(opened: Opened, folder: Path) -> None:
    _, context, sequence = opened
    adapter = load(opened, folder)
    context.set_adapters([(adapter, 1.0)])
    sequence.decode(PROMPT)
    for change in ([], [(adapter, 0.5)], [(adapter, 1.0), (load(opened, folder, "other"), 1.0)]):
        with pytest.raises(BadArgument, match=r"sequence 0 holds tokens.*clear it first, or pass keep_memory=True"):
            context.set_adapters(change)
    assert [scale for _, scale in context.adapters] == [1.0]
    context.set_adapters([(adapter, 1.0)])  # no change
    context.set_adapters([], keep_memory=True)
    assert sequence.tokens == PROMPT
    sequence.decode([100])
    mixed = sequence.logits()
    assert np.abs(mixed - logits(sequence, [*PROMPT, 100])).max() > APART  # the prompt was not computed again


def test_wrong_arguments(opened: Opened, folder: Path, tiny) -> None:
    model, context, _ = opened
    adapter = load(opened, folder)
    for scale in (float("nan"), float("inf"), 1e300):
        with pytest.raises(BadArgument, match="scale"):
            context.set_adapters([(adapter, scale)])
    with pytest.raises(BadArgument, match="twice"):
        context.set_adapters([(adapter, 1.0), (adapter, 2.0)])
    with pytest.raises(BadArgument, match="another model"):
        make_context(_core.Model.load(str(folder / "base.gguf"))).set_adapters([(adapter, 1.0)])
    for wrong in ([None], [(None, 1.0)], [(adapter,)], [("one.gguf", 1.0)], adapter, 7):
        with pytest.raises((TypeError, BadArgument)):
            context.set_adapters(wrong)
    assert context.adapters == []
    with pytest.raises(BadArgument, match="NUL"):
        _core.Adapter.load(model, "a\0b")


def test_use_after_close(opened: Opened, folder: Path) -> None:
    model, context, sequence = opened
    adapter = load(opened, folder)
    with adapter as same:
        assert same is adapter
        context.set_adapters([(adapter, 1.0)])
    assert adapter.closed
    adapter.close()
    for use in (
        adapter.metadata,
        adapter.__enter__,
        lambda: adapter.path,
        lambda: adapter.invocation_tokens,
        lambda: context.set_adapters([(adapter, 1.0)]),
    ):
        with pytest.raises(ClosedError):
            use()
    changed = logits(sequence)
    sequence.clear()
    context.set_adapters([])
    assert np.abs(changed - logits(sequence)).max() > APART  # it worked on after close()
    context.close()
    model.close()
    for use in (
        lambda: context.set_adapters([]),
        lambda: context.adapters,
        context.clear_control_vector,
        lambda: _core.Adapter.load(model, str(folder / "one.gguf")),
    ):
        with pytest.raises(ClosedError):
            use()


def test_set_while_a_step_runs_waits_for_it(folder: Path) -> None:
    model = _core.Model.load(str(folder / "base.gguf"))
    context = make_context(model, n_ctx=8192, n_batch=4096)
    sequence, adapter = _core.Sequence(context, 0), _core.Adapter.load(model, str(folder / "one.gguf"))
    context.set_adapters([(adapter, 1.0)])
    adapter.close()
    with ThreadPoolExecutor(1) as pool:
        step = pool.submit(sequence.decode, [5] * 4096)  # half a second
        time.sleep(0.05)
        assert not step.done()
        context.set_adapters([], keep_memory=True)  # frees the adapter
        assert len(sequence) == 4096
        step.result()


def test_a_control_vector_is_a_bias_on_the_layer(opened: Opened, tmp_path: Path) -> None:
    _, context, sequence = opened
    base, rows = logits(sequence), np.random.default_rng(0).standard_normal((2, 64), dtype=np.float32)
    sequence.clear()
    context.set_control_vector(rows, 1, 1)
    found = logits(sequence)
    np.testing.assert_allclose(
        found, logits(make_sequence(write_merged(tmp_path / "m.gguf", bias=rows[1]))), rtol=0, atol=CLOSE
    )
    assert np.abs(found - base).max() > APART
    with pytest.raises(BadArgument, match="keep_memory"):
        context.clear_control_vector()
    sequence.clear()
    context.clear_control_vector()
    assert np.array_equal(bits(logits(sequence)), bits(base))


def test_wrong_control_vectors(opened: Opened) -> None:
    _, context, sequence = opened
    rows = np.zeros((2, 64), np.float32)
    for shape in ((1, 64), (2, 63), (3, 64), (0, 64), (64, 2)):
        with pytest.raises(BadArgument, match=r"shape \(2, 64\)"):
            context.set_control_vector(np.zeros(shape, np.float32), 1, 1)
    for first, last in ((0, 1), (1, 2), (2, 1), (-1, 1), (1, 2**31 - 1)):
        with pytest.raises(BadArgument, match="first_layer"):
            context.set_control_vector(rows, first, last)
    for wrong in (rows[0], rows[None], "x", None):
        with pytest.raises(TypeError):
            context.set_control_vector(wrong, 1, 1)
    with pytest.raises(BadArgument, match="not numbers"):
        context.set_control_vector(np.full_like(rows, np.nan), 1, 1)
    sequence.decode(PROMPT)


# --- files that are not what they should be


def test_an_adapter_for_another_model(opened: Opened, tmp_path: Path) -> None:
    with pytest.raises(BadModelFile, match="architecture gemma3, this one is llama"):
        _core.Adapter.load(opened[0], str(ONE.write(tmp_path / "gemma3.gguf", arch="gemma3")))
    wide = np.zeros((4, 128), np.float32)
    pairs = {"blk.0.attn_q.weight": (wide, np.zeros((128, 4), np.float32))}
    with pytest.raises(BadModelFile, match="incorrect shape"):
        _core.Adapter.load(opened[0], str(Lora(pairs, 1.0).write(tmp_path / "wide.gguf")))
    more = {"blk.7.attn_q.weight": next(iter(ONE.pairs.values()))}
    with pytest.raises(BadModelFile, match=r"blk\.7.*does not exist in base model"):
        _core.Adapter.load(opened[0], str(Lora(more, 1.0).write(tmp_path / "deep.gguf")))


def test_shapes_and_types_that_llama_cpp_dies_of(opened: Opened, tmp_path: Path) -> None:
    name, (a, b) = next(iter(ONE.pairs.items()))
    odd = {
        "dimensions": (np.stack([a] * 2), np.stack([b] * 2)),
        "ranks 4 and 3": (a, b[:, :3]),
        "type i32": (a.view(np.int32), b),
        "type f64": (a.astype(np.float64), b),
        "no LoRA tensors": None,
        "alpha": (a, b),
    }
    for number, (what, pair) in enumerate(odd.items()):
        lora = Lora({name: pair} if pair else {}, np.nan if what == "alpha" else 1.0)
        with pytest.raises(BadModelFile, match=what):
            _core.Adapter.load(opened[0], str(lora.write(tmp_path / f"{number}.gguf")))


def test_other_files(opened: Opened, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("no model at all" * 100)
    for path in (tmp_path / "empty", tmp_path / "text", tmp_path, tmp_path / "missing"):
        with pytest.raises(BadModelFile, match=path.name):
            _core.Adapter.load(opened[0], str(path))
    with pytest.raises(BadModelFile, match="no LoRA adapter"):
        _core.Adapter.load(opened[0], str(folder / "base.gguf"))


CHECK = """
import sys
from pathlib import Path
from ipyllama import _core
from ipyllama.errors import LlamaError

model = _core.Model.load(sys.argv[1])
options = _core.ContextOptions()
options.n_ctx, options.n_batch = 128, 64
seen = {"loaded": 0, "refused": 0}
for path in sorted(Path(sys.argv[2]).iterdir()):
    try:
        adapter = _core.Adapter.load(model, str(path))
    except LlamaError:
        seen["refused"] += 1
        continue
    seen["loaded"] += 1
    context = _core.Context(model, options)
    context.set_adapters([(adapter, 1.0)])
    adapter.metadata(), adapter.invocation_tokens
    sequence = _core.Sequence(context, 0)
    sequence.decode([1, 5, 300])
    sequence.decode([7])
print(seen["loaded"], seen["refused"])
"""


def check(base: Path, folder: Path, variants: list[bytes]) -> tuple[int, int]:
    """How many of the variants load and compute, and how many are refused."""
    folder.mkdir()
    for number, data in enumerate(variants):
        (folder / f"{number:04}.gguf").write_bytes(data)
    loaded, refused = run_apart(CHECK, base, folder).split()
    return int(loaded), int(refused)


def test_truncated_anywhere_is_refused(folder: Path, tmp_path: Path) -> None:
    data, header = (folder / "one.gguf").read_bytes(), gguf.GGUFReader(folder / "one.gguf").data_offset
    sizes = sorted({0, 4, 23, 24, *range(30, header, header // 60), *range(header, len(data) - 1, len(data) // 30)})
    variants = [data[:size] for size in sizes]
    assert check(folder / "base.gguf", tmp_path / "files", variants) == (0, len(variants))


def test_damage_in_the_header(folder: Path, tmp_path: Path, draw: Callable[[int], int]) -> None:
    data, header = (folder / "one.gguf").read_bytes(), gguf.GGUFReader(folder / "one.gguf").data_offset
    variants = []
    for _ in range(400):
        damaged = bytearray(data)
        at = draw(header)
        damaged[at] = (0, 1, 2, 3, 127, 128, 255, damaged[at] ^ 1 << draw(8))[draw(8)]
        variants.append(bytes(damaged))
    loaded, refused = check(folder / "base.gguf", tmp_path / "files", variants)
    assert loaded + refused == len(variants)
    assert min(loaded, refused) > 0  # both ways are taken


# --- who may go first


def test_every_order_of_deletion_and_of_closing(folder: Path) -> None:
    code = """
    import gc, itertools, sys
    from ipyllama import _core
    from ipyllama.errors import ClosedError

    def make():
        model = _core.Model.load(sys.argv[1])
        options = _core.ContextOptions()
        options.n_ctx, options.n_batch = 128, 64
        context = _core.Context(model, options)
        adapter = _core.Adapter.load(model, sys.argv[2])
        spare = _core.Adapter.load(model, sys.argv[2])
        context.set_adapters([(adapter, 1.0)])
        return {"model": model, "context": context, "sequence": _core.Sequence(context, 0), "adapter": adapter,
                "spare": spare}

    def use(alive):
        for name, ask in {"sequence": lambda it: it.decode([7]), "adapter": lambda it: it.metadata(),
                          "context": lambda it: it.set_adapters(it.adapters[:1]), "model": lambda it: it.size}.items():
            try:
                if name in alive:
                    ask(alive[name])
            except ClosedError:
                pass

    orders = 0
    for order in itertools.permutations(make()):
        for close in (False, True):
            alive = make()
            use(alive)
            for name in order:
                if close and name != "sequence":
                    alive[name].close()
                    alive[name].close()
                else:
                    del alive[name]
                use(alive)
            orders += 1
    gc.collect()
    print(orders)
    """
    assert run_apart(code, folder / "base.gguf", folder / "one.gguf").split() == ["240"]


def test_the_interpreter_may_end_with_everything_open(folder: Path) -> None:
    code = """
    import sys, threading
    from ipyllama import _core
    model = _core.Model.load(sys.argv[1])
    options = _core.ContextOptions()
    options.n_ctx = options.n_batch = 4096
    context = _core.Context(model, options)
    adapter = _core.Adapter.load(model, sys.argv[2])
    context.set_adapters([(adapter, 1.0)])
    sequence = _core.Sequence(context, 0)
    threading.Thread(target=sequence.decode, args=([5] * 4096,), daemon=True).start()
    print("end")
    """
    assert run_apart(code, folder / "base.gguf", folder / "one.gguf").split() == ["end"]


def test_many_threads_load_and_drop_adapters(folder: Path) -> None:
    code = """
    import sys
    from concurrent.futures import ThreadPoolExecutor
    from ipyllama import _core
    model = _core.Model.load(sys.argv[1])
    options = _core.ContextOptions()
    options.n_ctx, options.n_batch = 128, 64

    def work(_):
        for _ in range(20):
            context = _core.Context(model, options)
            with _core.Adapter.load(model, sys.argv[2]) as adapter:
                context.set_adapters([(adapter, 1.0)])
            _core.Sequence(context, 0).decode([1, 2, 3])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    print("done")
    """
    assert run_apart(code, folder / "base.gguf", folder / "one.gguf").split() == ["done"]
