"""Projectors: what they make of text, images and sounds, and that nothing wrong beside them is fatal."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from native.ask import bits
from native.media import IMAGE, KINDS, SOUND
from tiny.projector import AUDIO_TOKENS, IMAGE_TOKENS, N_TEXT

from ipyllama import _core
from ipyllama.errors import BadArgument, ClosedError


@pytest.fixture
def folder(projectors: Path) -> Path:
    return projectors


@pytest.fixture
def model(folder: Path) -> _core.Model:
    return _core.Model.load(str(folder / "llama.gguf"))


@pytest.fixture
def both(model: _core.Model, folder: Path) -> _core.Multimodal:
    return _core.Multimodal.load(model, str(folder / "gemma3-ultravox.gguf"))


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
