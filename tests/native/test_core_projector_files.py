"""Projector files that are not what they should be, and projectors that go before or after what uses them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
from native.core import in_use_at_the_end, run_apart
from tiny.projector import build_projector

from ipyllama import _core
from ipyllama.errors import BadModelFile


@pytest.fixture
def folder(projectors: Path) -> Path:
    return projectors


@pytest.fixture
def model(folder: Path) -> _core.Model:
    return _core.Model.load(str(folder / "llama.gguf"))


@pytest.fixture
def draw() -> Callable[[int], int]:
    """`draw(n)`: numbers from 0 to n - 1, the same in every run."""
    import random

    return random.Random(13).randrange


def test_a_projector_for_another_model(model: _core.Model, folder: Path, tmp_path: Path) -> None:
    narrow = build_projector(tmp_path / "narrow.gguf", "gemma3", n_text=32)
    with pytest.raises(BadModelFile, match=r"narrow\.gguf.*n_embd = 64.*n_embd = 32"):
        _core.Multimodal.load(model, str(narrow))
    for path in (folder / "llama.gguf", tmp_path, tmp_path / "missing"):
        with pytest.raises(BadModelFile, match=path.name):
            _core.Multimodal.load(model, str(path))


def test_a_cut_file_says_where(model: _core.Model, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "cut.gguf").write_bytes((folder / "gemma3.gguf").read_bytes()[:-1])
    with pytest.raises(BadModelFile, match=r"ends before its tensor mm\.input_projection\.weight does"):
        _core.Multimodal.load(model, str(tmp_path / "cut.gguf"))


def test_stacked_frames_that_llama_cpp_miscounts(model: _core.Model, tmp_path: Path) -> None:
    change = {"clip.audio.projector.stack_factor": 8}
    with pytest.raises(BadModelFile, match="stack_factor is 8"):
        _core.Multimodal.load(model, str(build_projector(tmp_path / "8.gguf", "ultravox", change=change)))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.head_count", 0),
        ("block_count", 2**31),
        ("embedding_length", 0),
        ("image_size", 2**31 - 1),
        ("patch_size", 0),
        ("projector.scale_factor", 0),
    ],
)
def test_numbers_that_llama_cpp_dies_of(model: _core.Model, tmp_path: Path, key: str, value: int) -> None:
    path = build_projector(tmp_path / "odd.gguf", "gemma3", change={f"clip.vision.{key}": value})
    with pytest.raises(BadModelFile, match=rf"clip\.vision\.{key} is {value}"):
        _core.Multimodal.load(model, str(path))


@pytest.mark.parametrize("size", [60, 68, 2112])  # of the last one upstream would make 278,784 patches, for hours
def test_more_or_fewer_patches_than_positions(model: _core.Model, tmp_path: Path, size: int) -> None:
    path = build_projector(tmp_path / "odd.gguf", "gemma3", change={"clip.vision.image_size": size})
    with pytest.raises(BadModelFile, match="256 rows"):
        _core.Multimodal.load(model, str(path))


def test_a_check_that_fails_in_llama_cpp_is_an_error(model: _core.Model, tmp_path: Path) -> None:
    path = build_projector(tmp_path / "odd.gguf", "gemma3", change={"clip.vision.embedding_length": 33})
    with pytest.raises(BadModelFile, match="GGML_ASSERT"):
        _core.Multimodal.load(model, str(path))


CHECK = """
import sys
from pathlib import Path
import numpy as np
from ipyllama import _core
from ipyllama.errors import LlamaError

model = _core.Model.load(sys.argv[1])
image, sound = np.zeros((48, 80, 3), np.uint8), np.zeros(16000, np.float32)
seen = {"loaded": 0, "refused": 0}
for path in sorted(Path(sys.argv[2]).iterdir()):
    try:
        projector = _core.Multimodal.load(model, str(path))
    except LlamaError:
        seen["refused"] += 1
        continue
    seen["loaded"] += 1
    try:  # what did load must also bear being used
        media = [image] * projector.supports_vision + [sound] * projector.supports_audio
        for chunk in projector.tokenize(projector.marker * len(media), media):
            if chunk.kind != "text":
                projector.encode(chunk)
    except LlamaError:
        pass
print(seen["loaded"], seen["refused"])
"""


def check(model: Path, folder: Path, variants: list[bytes]) -> tuple[int, int]:
    """How many of the variants load, and how many are refused."""
    folder.mkdir()
    for number, data in enumerate(variants):
        (folder / f"{number:04}.gguf").write_bytes(data)
    loaded, refused = run_apart(CHECK, model, folder).split()
    return int(loaded), int(refused)


def test_truncated_anywhere_is_refused(folder: Path, tmp_path: Path) -> None:
    path = folder / "gemma3-ultravox.gguf"
    data, header = path.read_bytes(), gguf.GGUFReader(path).data_offset
    sizes = sorted({0, 4, 23, 24, *range(30, header, header // 60), *range(header, len(data) - 1, len(data) // 30)})
    variants = [data[:size] for size in sizes] + [data[:-1]]
    assert check(folder / "llama.gguf", tmp_path / "files", variants) == (0, len(variants))


@pytest.mark.parametrize("kind", ["gemma3", "ultravox", "merger"])
def test_damage_in_the_header(folder: Path, tmp_path: Path, draw: Callable[[int], int], kind: str) -> None:
    path = folder / f"{kind}.gguf"
    data, header = path.read_bytes(), gguf.GGUFReader(path).data_offset
    variants = []
    for _ in range(100 if kind == "ultravox" else 300):
        damaged = bytearray(data)
        at = draw(header)
        damaged[at] = (0, 1, 2, 3, 127, 128, 255, damaged[at] ^ 1 << draw(8))[draw(8)]
        variants.append(bytes(damaged))
    loaded, refused = check(folder / "qwen2vl.gguf", tmp_path / "files", variants)
    assert loaded + refused == len(variants)
    assert min(loaded, refused) > 0  # both ways are taken


# --- who may go first


def test_every_order_of_deletion_and_of_closing(folder: Path) -> None:
    code = """
    import gc, itertools, sys
    import numpy as np
    from ipyllama import _core
    from ipyllama.errors import BadArgument, ClosedError

    image = np.zeros((48, 80, 3), np.uint8)

    def make():
        model = _core.Model.load(sys.argv[1])
        options = _core.ContextOptions()
        options.n_ctx, options.n_batch = 128, 64
        context = _core.Context(model, options)
        projector = _core.Multimodal.load(model, sys.argv[2])
        chunks = projector.tokenize("a" + projector.marker, [image])
        return {"model": model, "context": context, "projector": projector, "chunks": chunks}

    def use(alive):
        try:
            if "projector" in alive:
                alive["projector"].tokenize("a", [])
                if "chunks" in alive:
                    alive["projector"].encode(alive["chunks"][1])
        except ClosedError:
            pass
        if "chunks" in alive:
            assert [chunk.n_tokens for chunk in alive["chunks"]][1] == 16
            assert alive["chunks"][0].tokens[0] == 1 and alive["chunks"][1].id

    orders = 0
    for order in itertools.permutations(make()):
        for close in (False, True):
            alive = make()
            for name in order:
                if close and hasattr(alive[name], "close"):
                    alive[name].close()
                    alive[name].close()
                else:
                    del alive[name]
                use(alive)
            orders += 1
    gc.collect()
    print(orders)
    """
    assert run_apart(code, folder / "llama.gguf", folder / "gemma3.gguf").split() == ["48"]


@in_use_at_the_end
def test_the_interpreter_may_end_while_it_encodes(folder: Path) -> None:
    code = """
    import sys, threading
    import numpy as np
    from ipyllama import _core
    model = _core.Model.load(sys.argv[1])
    projector = _core.Multimodal.load(model, sys.argv[2])
    chunk = projector.tokenize(projector.marker, [np.zeros(16000, np.float32)])[1]

    def work():
        while True:
            projector.encode(chunk)

    threading.Thread(target=work, daemon=True).start()
    print("end")
    """
    assert run_apart(code, folder / "llama.gguf", folder / "ultravox.gguf").split() == ["end"]
