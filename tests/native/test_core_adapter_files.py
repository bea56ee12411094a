"""Adapter files that are not what they should be, and adapters that go before or after what uses them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from native.adapters import ONE
from native.core import in_use_at_the_end, run_apart
from tiny.lora import Lora

from ipyllama import _core
from ipyllama.errors import BadModelFile


@pytest.fixture
def folder(adapters: Path) -> Path:
    return adapters


@pytest.fixture
def model(folder: Path) -> _core.Model:
    return _core.Model.load(str(folder / "base.gguf"))


@pytest.fixture
def draw() -> Callable[[int], int]:
    """`draw(n)`: numbers from 0 to n - 1, the same in every run."""
    import random

    return random.Random(11).randrange


def test_an_adapter_for_another_model(model: _core.Model, tmp_path: Path) -> None:
    with pytest.raises(BadModelFile, match="architecture gemma3, this one is llama"):
        _core.Adapter.load(model, str(ONE.write(tmp_path / "gemma3.gguf", arch="gemma3")))
    wide = np.zeros((4, 128), np.float32)
    pairs = {"blk.0.attn_q.weight": (wide, np.zeros((128, 4), np.float32))}
    with pytest.raises(BadModelFile, match="incorrect shape"):
        _core.Adapter.load(model, str(Lora(pairs, 1.0).write(tmp_path / "wide.gguf")))
    more = {"blk.7.attn_q.weight": next(iter(ONE.pairs.values()))}
    with pytest.raises(BadModelFile, match=r"blk\.7.*does not exist in base model"):
        _core.Adapter.load(model, str(Lora(more, 1.0).write(tmp_path / "deep.gguf")))


def test_shapes_and_types_that_llama_cpp_dies_of(model: _core.Model, tmp_path: Path) -> None:
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
            _core.Adapter.load(model, str(lora.write(tmp_path / f"{number}.gguf")))


def test_other_files(model: _core.Model, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("no model at all" * 100)
    for path in (tmp_path / "empty", tmp_path / "text", tmp_path, tmp_path / "missing"):
        with pytest.raises(BadModelFile, match=path.name):
            _core.Adapter.load(model, str(path))
    with pytest.raises(BadModelFile, match="no LoRA adapter"):
        _core.Adapter.load(model, str(folder / "base.gguf"))


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


@in_use_at_the_end
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
