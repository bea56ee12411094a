"""Projectors: what they make of text, images and sounds, and that nothing wrong in them or beside them is fatal."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import gguf
import numpy as np
import pytest
from native.ask import bits
from native.core import run_apart
from tiny import build
from tiny.projector import AUDIO_TOKENS, IMAGE_TOKENS, N_TEXT, build_projector

from ipyllama import _core
from ipyllama.errors import BadArgument, BadModelFile, ClosedError

RNG = np.random.default_rng(5)
IMAGE = RNG.integers(0, 256, (48, 80, 3), dtype=np.uint8)
SOUND = (RNG.standard_normal(40 * 16000) * 0.1).astype(np.float32)  # 40 s: two chunks
KINDS = (("gemma3",), ("ultravox",), ("gemma3", "ultravox"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """llama.gguf and projectors for it, each of KINDS, joined by a dash; qwen2vl.gguf and merger.gguf for it."""
    folder = tmp_path_factory.mktemp("projectors")
    for arch in ("llama", "qwen2vl"):
        build(arch, folder / f"{arch}.gguf")
    for kinds in KINDS:
        build_projector(folder / f"{'-'.join(kinds)}.gguf", *kinds)
    build_projector(folder / "merger.gguf", "qwen2vl")
    return folder


@pytest.fixture
def model(folder: Path) -> _core.Model:
    return _core.Model.load(str(folder / "llama.gguf"))


@pytest.fixture
def both(model: _core.Model, folder: Path) -> _core.Multimodal:
    return _core.Multimodal.load(model, str(folder / "gemma3-ultravox.gguf"))


@pytest.fixture
def draw() -> Callable[[int], int]:
    """`draw(n)`: numbers from 0 to n - 1, the same in every run."""
    import random

    return random.Random(13).randrange


def test_what_a_projector_takes(model: _core.Model, folder: Path) -> None:
    for kinds in KINDS:
        projector = _core.Multimodal.load(model, str(folder / f"{'-'.join(kinds)}.gguf"))
        assert projector.supports_vision == ("gemma3" in kinds)
        assert projector.supports_audio == ("ultravox" in kinds)
        assert projector.audio_sample_rate == (16000 if "ultravox" in kinds else 0)
        assert projector.n_embd == N_TEXT
        assert projector.marker == "<__media__>"


def test_chunks_of_text_and_media(model: _core.Model, both: _core.Multimodal) -> None:
    chunks = both.tokenize(f"One {both.marker} two {both.marker}three", [IMAGE, SOUND])
    assert [chunk.kind for chunk in chunks] == ["text", "image", "text", "audio", "audio", "text"]
    sizes = [chunk.n_tokens for chunk in chunks if chunk.kind != "text"]
    assert sizes == [IMAGE_TOKENS, AUDIO_TOKENS, AUDIO_TOKENS]
    assert all(chunk.n_positions == chunk.n_tokens for chunk in chunks)
    texts = ["One <start_of_image>", "<end_of_image> two ", "three"]  # gemma3 marks images so
    expected = [model.tokenize(text, add_special=False, parse_special=True) for text in texts]
    expected[0].insert(0, model.bos)
    assert [chunk.tokens for chunk in chunks if chunk.kind == "text"] == expected
    assert all(chunk.n_tokens == len(chunk.tokens) for chunk in chunks if chunk.kind == "text")
    assert all(chunk.tokens == [] for chunk in chunks if chunk.kind != "text")
    assert repr(chunks[1]) == "<Chunk image, 16 tokens>"


@pytest.mark.parametrize("add_special", [False, True])
def test_text_alone_is_tokenised_as_by_the_model(model: _core.Model, both: _core.Multimodal, add_special: bool) -> None:
    for text in ("Hello, wörld \0 <|im_start|>user", "a" * 20_000):
        for parse_special in (False, True):
            (chunk,) = both.tokenize(text, [], add_special, parse_special)
            assert chunk.tokens == model.tokenize(text, add_special=add_special, parse_special=parse_special)
    assert both.tokenize("", [], add_special=False) == []


def test_ids_are_the_content(both: _core.Multimodal) -> None:
    pair = f"{both.marker}{both.marker}"

    def ids(*media: np.ndarray) -> list[str]:
        return [chunk.id for chunk in both.tokenize(pair, media) if chunk.kind != "text"]

    image, first, second = ids(IMAGE, SOUND)
    height, width, _ = IMAGE.shape
    assert image == hashlib.sha256(f"image {width} x {height}\n".encode() + IMAGE.tobytes()).hexdigest() + ":0"
    sound = hashlib.sha256(f"audio {len(SOUND)} x 1\n".encode() + SOUND.tobytes()).hexdigest()
    assert (first, second) == (f"{sound}:0", f"{sound}:1")
    other = IMAGE.copy()
    other[-1, -1, -1] ^= 1
    assert len({image, *ids(other, IMAGE), *ids(IMAGE.transpose(1, 0, 2), IMAGE)}) == 3
    assert {chunk.id for chunk in both.tokenize("text", [])} == {None}


@pytest.mark.parametrize("size", [0, 1, 54, 55, 56, 63, 64, 65, 119, 120, 128, 1000])
def test_sha256_at_every_kind_of_length(both: _core.Multimodal, size: int) -> None:
    """The hashed bytes are a header and the samples: `size` moves where the last block ends."""
    samples = np.arange(size + 2, dtype=np.float32)
    header = f"audio {len(samples)} x 1\n".encode()
    (chunk,) = [c for c in both.tokenize(both.marker, [samples], add_special=False) if c.kind == "audio"]
    assert chunk.id == hashlib.sha256(header + samples.tobytes()).hexdigest() + ":0"


def test_encoding_is_deterministic(both: _core.Multimodal) -> None:
    media = [chunk for chunk in both.tokenize(both.marker * 2, [IMAGE, SOUND]) if chunk.kind != "text"]
    once = [both.encode(chunk) for chunk in media]
    for chunk, rows in zip(media, once, strict=True):
        assert rows.dtype == np.float32
        assert rows.shape == (chunk.n_tokens, N_TEXT)
        assert np.isfinite(rows).all()
        assert rows.std() > 0.1
        again = both.encode(chunk)
        assert np.array_equal(bits(again), bits(rows))
        rows[:] = 0  # an owner: nobody else sees this
    assert all(np.abs(both.encode(chunk)).max() > 0 for chunk in media)
    other = both.tokenize(both.marker, [255 - IMAGE])[1]
    assert not np.array_equal(both.encode(other), again)


def test_arrays_of_other_layouts(both: _core.Multimodal) -> None:
    plain = both.tokenize(both.marker * 2, [IMAGE, SOUND])
    wide, twice = np.zeros((48, 80, 4), np.uint8), np.repeat(SOUND, 2)
    wide[:, :, :3] = IMAGE
    read_only = np.asfortranarray(IMAGE)
    read_only.flags.writeable = False
    for image in (wide[:, :, :3], read_only, IMAGE[::-1][::-1]):
        same = both.tokenize(both.marker * 2, [image, twice[::2]])
        assert [chunk.id for chunk in same] == [chunk.id for chunk in plain]


def test_images_of_any_size(both: _core.Multimodal) -> None:
    for height, width in ((1, 1), (1, 3000), (3000, 1), (64, 64), (63, 65), (1000, 1500)):
        chunk = both.tokenize(both.marker, [np.full((height, width, 3), 7, np.uint8)])[1]
        assert both.encode(chunk).shape == (IMAGE_TOKENS, N_TEXT)


def test_wrong_media(both: _core.Multimodal) -> None:
    for wrong in (
        IMAGE.astype(np.float32),
        IMAGE.astype(np.int8),
        IMAGE[:, :, :2],
        IMAGE[:, :, 0],
        IMAGE[None],
        SOUND.astype(np.float64),
        SOUND.astype(np.int16),
        SOUND[None],
        b"bytes",
        "path.png",
        None,
        7,
    ):
        with pytest.raises(BadArgument, match=r"medium 0 is neither an image, a uint8 array"):
            both.tokenize(both.marker, [wrong])
    for wrong in (IMAGE[:0], IMAGE[:, :0], SOUND[:0], SOUND[:1]):
        with pytest.raises(BadArgument, match=r"no pixels|no samples"):
            both.tokenize(both.marker, [wrong])
    for value in (np.nan, np.inf):
        with pytest.raises(BadArgument, match="not numbers"):
            both.tokenize(both.marker, [np.full(9, value, np.float32)])
    with pytest.raises(TypeError):
        both.tokenize(both.marker, None)
    with pytest.raises(TypeError):
        both.tokenize(7, [])


def test_giant_media(both: _core.Multimodal) -> None:
    """Nothing of that size is ever touched: the arrays are one number, repeated."""
    pixel, sample = np.zeros((1, 1, 3), np.uint8), np.zeros(1, np.float32)
    for shape in ((1 << 15, 1, 3), (1, 1 << 15, 3)):
        with pytest.raises(BadArgument, match="too large"):
            both.tokenize(both.marker, [np.broadcast_to(pixel, shape)])
    with pytest.raises(BadArgument, match="too long"):
        both.tokenize(both.marker, [np.broadcast_to(sample, (1 << 27) + 1)])


def test_markers_and_media_must_match(model: _core.Model, both: _core.Multimodal, folder: Path) -> None:
    for text, media, message in (
        ("none", [IMAGE], "0 markers .* 1 image"),
        (both.marker, [], "1 markers .* 0 image"),
        (both.marker * 3, [IMAGE, SOUND], "3 markers .* 2 image"),
        ("<__media_" + both.marker + "_>", [IMAGE] * 2, "1 markers"),
    ):
        with pytest.raises(BadArgument, match=message):
            both.tokenize(text, media)
    eyes, ears = (_core.Multimodal.load(model, str(folder / f"{kind}.gguf")) for kind in ("gemma3", "ultravox"))
    with pytest.raises(BadArgument, match="takes no sounds"):
        eyes.tokenize(eyes.marker, [SOUND])
    with pytest.raises(BadArgument, match="takes no images"):
        ears.tokenize(ears.marker, [IMAGE])


def test_wrong_chunks(model: _core.Model, both: _core.Multimodal, folder: Path) -> None:
    text, image = both.tokenize(f"text{both.marker}", [IMAGE])[:2]
    with pytest.raises(BadArgument, match="text"):
        both.encode(text)
    with pytest.raises(BadArgument, match="another projector"):
        _core.Multimodal.load(model, str(folder / "gemma3.gguf")).encode(image)
    with pytest.raises(TypeError):
        both.encode(None)
    with pytest.raises(TypeError):
        _core.Chunk()


def test_wrong_options(model: _core.Model, folder: Path) -> None:
    path = str(folder / "gemma3.gguf")
    for options in (
        {"n_threads": 0},
        {"n_threads": -1},
        {"n_threads": 100_000},
        {"image_min_tokens": -1},
        {"image_max_tokens": 1 << 20},
        {"image_min_tokens": 9, "image_max_tokens": 8},
    ):
        with pytest.raises(BadArgument, match=next(iter(options))):
            _core.Multimodal.load(model, path, **options)
    with pytest.raises(BadArgument, match="NUL"):
        _core.Multimodal.load(model, "a\0b")


def test_bounds_on_the_tokens_of_an_image(folder: Path) -> None:
    model = _core.Model.load(str(folder / "qwen2vl.gguf"))
    counts = []
    for bounds in ({}, {"image_max_tokens": 20}, {"image_min_tokens": 100}):
        projector = _core.Multimodal.load(model, str(folder / "merger.gguf"), **bounds)
        chunk = projector.tokenize(projector.marker, [IMAGE])[1]
        assert projector.encode(chunk).shape == (chunk.n_tokens, N_TEXT)
        counts.append((chunk.n_tokens, chunk.n_positions))
    assert counts[0] == (60, 10)  # 48 x 80 pixels, a token for 8 x 8 of them; the longer side counts
    assert counts[1][0] <= 20
    assert counts[2][0] >= 100


def test_use_after_close(model: _core.Model, folder: Path) -> None:
    with _core.Multimodal.load(model, str(folder / "gemma3.gguf")) as projector:
        chunks = projector.tokenize(projector.marker, [IMAGE])
    assert projector.closed
    projector.close()
    for use in (
        projector.__enter__,
        lambda: projector.marker,
        lambda: projector.supports_vision,
        lambda: projector.supports_audio,
        lambda: projector.audio_sample_rate,
        lambda: projector.n_embd,
        lambda: projector.tokenize("text", []),
        lambda: projector.encode(chunks[1]),
    ):
        with pytest.raises(ClosedError):
            use()
    assert chunks[1].n_tokens == IMAGE_TOKENS
    model.close()
    with pytest.raises(ClosedError):
        _core.Multimodal.load(model, str(folder / "gemma3.gguf"))


def test_one_projector_from_many_threads(both: _core.Multimodal) -> None:
    def work(seed: int) -> bytes:
        image = np.random.default_rng(seed % 2).integers(0, 256, (30, 30, 3), dtype=np.uint8)
        return both.encode(both.tokenize(both.marker, [image])[1]).tobytes()

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(work, range(24)))
    assert found[::2] == [work(0)] * 12
    assert found[1::2] == [work(1)] * 12


def test_closed_while_it_encodes(model: _core.Model, folder: Path) -> None:
    projector = _core.Multimodal.load(model, str(folder / "ultravox.gguf"))
    chunk = projector.tokenize(projector.marker, [SOUND])[1]
    with ThreadPoolExecutor(1) as pool:
        rows = pool.submit(projector.encode, chunk)
        while not rows.running() and not rows.done():
            pass
        projector.close()
        model.close()
        with suppress(ClosedError):  # if close() came first
            assert rows.result().shape == (AUDIO_TOKENS, N_TEXT)


# --- files that are not what they should be


def test_a_projector_for_another_model(model: _core.Model, folder: Path, tmp_path: Path) -> None:
    narrow = build_projector(tmp_path / "narrow.gguf", "gemma3", n_text=32)
    with pytest.raises(BadModelFile, match=r"narrow\.gguf.*n_embd = 64.*n_embd = 32"):
        _core.Multimodal.load(model, str(narrow))
    for path in (folder / "llama.gguf", tmp_path, tmp_path / "missing"):
        with pytest.raises(BadModelFile, match=path.name):
            _core.Multimodal.load(model, str(path))


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
