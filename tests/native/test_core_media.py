"""Images and sounds read into a sequence, against llama.cpp's own helper in a program of its own."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from native.ask import bits
from native.build_oracle import build
from native.core import make_context
from native.media import IMAGE, SOUND
from numpy.typing import NDArray
from tiny.projector import AUDIO_TOKENS, IMAGE_TOKENS, N_TEXT

from ipyllama import _core
from ipyllama.errors import Aborted, BadArgument, ClosedError, DecodeError

Ask = Callable[..., tuple[NDArray[np.float32], int]]
MARKER = "<__media__>"
CASES = {  # model, projector, media
    "image": ("llama", "gemma3", [IMAGE]),
    "sound": ("llama", "ultravox", [SOUND]),
    "both": ("llama", "gemma3-ultravox", [IMAGE, SOUND]),
    "two dimensions": ("qwen2vl", "merger", [IMAGE, IMAGE[::2]]),
}


@pytest.fixture
def folder(projectors: Path) -> Path:
    return projectors


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """`oracle(model, projector, n_batch, text, media)`: logits after the last token, and the next position."""
    program = build("media", tmp_path_factory.mktemp("media"))
    scratch = tmp_path_factory.mktemp("scratch")

    def ask(model: Path, projector: Path, n_batch: int, text: str, media: list[np.ndarray]) -> tuple:
        arguments = []
        for number, array in enumerate(media):
            file = scratch / str(number)
            file.write_bytes(array.tobytes())
            size = ["audio", array.size] if array.ndim == 1 else ["image", array.shape[1], array.shape[0]]
            arguments += [*map(str, size), file]
        command = [program, model, projector, str(n_batch), scratch / "logits", text, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return np.fromfile(scratch / "logits", np.float32), int(done.stdout)

    return ask


class Reader:
    """A model, a projector for it, and a sequence to read into."""

    def __init__(self, folder: Path, model: str, projector: str, **options: object) -> None:
        self.model = _core.Model.load(str(folder / f"{model}.gguf"))
        self.projector = _core.Multimodal.load(self.model, str(folder / f"{projector}.gguf"))
        self.context = make_context(self.model, **options)
        self.sequence = _core.Sequence(self.context)

    def read(self, text: str, media: list[np.ndarray]) -> list[_core.Chunk]:
        chunks = self.projector.tokenize(text, media)
        for chunk in chunks:
            if chunk.kind == "text":
                self.sequence.decode(chunk.tokens)
            else:
                self.projector.evaluate(self.sequence, chunk, self.projector.encode(chunk))
        return chunks

    def media(self, *arrays: np.ndarray) -> list[tuple[_core.Chunk, NDArray[np.float32]]]:
        chunks = self.projector.tokenize(MARKER * len(arrays), arrays, add_special=False)
        return [(chunk, self.projector.encode(chunk)) for chunk in chunks if chunk.kind != "text"]


@pytest.mark.parametrize("n_batch", [256, 48])  # 48: a chunk of a sound, or of an image of 60 tokens, takes two steps
@pytest.mark.parametrize("case", CASES)
def test_the_same_logits_as_by_upstreams_helper(folder: Path, oracle: Ask, case: str, n_batch: int) -> None:
    model, projector, media = CASES[case]
    reader = Reader(folder, model, projector, n_batch=n_batch)
    text = f"Look, {MARKER} and " * len(media) + "then?"
    chunks = reader.read(text, media)
    logits, next_position = oracle(folder / f"{model}.gguf", folder / f"{projector}.gguf", n_batch, text, media)
    assert np.array_equal(bits(reader.sequence.logits()), bits(logits))
    assert reader.sequence.pos_max + 1 == next_position == sum(chunk.n_positions for chunk in chunks)
    assert len(reader.sequence) == sum(chunk.n_tokens for chunk in chunks)
    expected = [token for chunk in chunks for token in (chunk.tokens or [-1] * chunk.n_tokens)]
    assert reader.sequence.tokens == expected
    tone = np.sin(np.arange(len(SOUND), dtype=np.float32) / 20)
    others = [255 - array if array.ndim == 3 else tone for array in media]
    differ, _ = oracle(folder / f"{model}.gguf", folder / f"{projector}.gguf", n_batch, text, others)
    assert np.abs(differ - logits).max() > 0.1  # the media count


def test_logits_after_a_chunk_at_the_end(folder: Path) -> None:
    """A prompt may end with a sound. Its last row alone, as a step of its own, gives about the same."""
    reader = Reader(folder, "llama", "ultravox")
    (chunk, rows), _ = reader.media(SOUND)
    reader.projector.evaluate(reader.sequence, chunk, rows)
    assert reader.sequence.has_logits
    once = reader.sequence.logits()
    reader.sequence.decode([5])
    assert not np.array_equal(reader.sequence.logits(), once)
    other = Reader(folder, "llama", "ultravox", n_batch=74)  # the last row alone
    other.projector.evaluate(other.sequence, other.media(SOUND)[0][0], rows)
    np.testing.assert_allclose(other.sequence.logits(), once, rtol=0, atol=0.05)


def test_attention_is_causal_again(folder: Path) -> None:
    reader = Reader(folder, "llama", "gemma3")
    tokens = list(range(3, 60))
    reader.sequence.decode(tokens)
    before = reader.sequence.logits()
    reader.read(MARKER, [IMAGE])
    reader.sequence.clear()
    reader.sequence.decode(tokens)
    assert np.array_equal(bits(reader.sequence.logits()), bits(before))


def test_a_text_goes_on_after_an_image_in_two_dimensions(folder: Path) -> None:
    """60 tokens at one position; the text goes on ten further, also where the text after it was cut off."""
    reader = Reader(folder, "qwen2vl", "merger", n_seq_max=2)
    sequence = reader.sequence
    start, (chunk, rows) = [3, 4, 5], *reader.media(IMAGE)
    sequence.decode(start)
    reader.projector.evaluate(sequence, chunk, rows)
    assert sequence.positions == [0, 1, 2] + [3] * 60
    sequence.decode([6, 7])
    assert sequence.positions[-2:] == [13, 14]
    logits = sequence.logits()
    with pytest.raises(BadArgument, match="same position"):
        sequence.trim(30)
    sequence.trim(63)
    sequence.decode([6, 7])
    assert np.array_equal(bits(sequence.logits()), bits(logits))
    fork = sequence.fork()
    fork.decode([8])
    assert fork.positions[-1] == 15
    sequence.trim(3)
    assert sequence.pos_max == 2


def test_an_image_whose_tokens_see_each_other_needs_one_step(folder: Path) -> None:
    for options in ({"n_batch": IMAGE_TOKENS - 1}, {"n_batch": 256, "n_ubatch": IMAGE_TOKENS - 1}):
        reader = Reader(folder, "llama", "gemma3", **options)
        with pytest.raises(BadArgument, match="16 tokens of this image see each other"):
            reader.projector.evaluate(reader.sequence, *reader.media(IMAGE)[0])
        assert len(reader.sequence) == 0
    reader = Reader(folder, "llama", "gemma3", n_batch=IMAGE_TOKENS)
    reader.projector.evaluate(reader.sequence, *reader.media(IMAGE)[0])
    assert len(reader.sequence) == IMAGE_TOKENS


def test_aborted_anywhere_nothing_is_left(folder: Path) -> None:
    reader = Reader(folder, "llama", "ultravox", n_batch=8)  # ten steps
    sequence, (chunk, rows) = reader.sequence, reader.media(SOUND)[0]
    prompt = [3, 4, 5]
    sequence.decode(prompt)
    sequence.decode([6])
    plain = sequence.logits()
    aborted = 0
    for delay in (0.0, *(0.0001 * 2**n for n in range(7))):
        sequence.trim(3)
        timer = threading.Timer(delay, reader.context.abort)
        timer.start()
        try:
            reader.projector.evaluate(sequence, chunk, rows)
        except Aborted:
            aborted += 1
            assert sequence.tokens == prompt
        timer.join()
        reader.context.clear_abort()
        sequence.trim(3)
        sequence.decode([6])
        assert np.array_equal(bits(sequence.logits()), bits(plain))
    assert aborted > 0


def test_the_abort_flag_refuses_and_keeps_the_logits(folder: Path) -> None:
    reader = Reader(folder, "llama", "gemma3")
    reader.sequence.decode([3, 4])
    reader.context.abort()
    with pytest.raises(Aborted):
        reader.projector.evaluate(reader.sequence, *reader.media(IMAGE)[0])
    assert reader.sequence.has_logits
    assert reader.sequence.tokens == [3, 4]


def test_no_room(folder: Path) -> None:
    reader = Reader(folder, "llama", "ultravox", n_ctx=256, n_seq_max=2)
    chunk, rows = reader.media(SOUND)[0]
    reader.sequence.decode([5] * 200)
    with pytest.raises(BadArgument, match="context of 256 tokens is full"):
        reader.projector.evaluate(reader.sequence, chunk, rows)
    other = _core.Sequence(reader.context)  # the cells are shared between sequences
    with pytest.raises(DecodeError, match="no room"):
        reader.projector.evaluate(other, chunk, rows)
    assert (len(reader.sequence), len(other)) == (200, 0)


def test_wrong_arguments(folder: Path) -> None:
    reader = Reader(folder, "llama", "gemma3-ultravox")
    chunk, rows = reader.media(IMAGE)[0]
    evaluate = reader.projector.evaluate
    for wrong in (rows[1:], rows[:, 1:], np.zeros((IMAGE_TOKENS, N_TEXT + 1), np.float32)):
        with pytest.raises(BadArgument, match=r"shape \(16, 64\)"):
            evaluate(reader.sequence, chunk, wrong)
    for value in (np.nan, np.inf):
        with pytest.raises(BadArgument, match="not numbers"):
            evaluate(reader.sequence, chunk, np.full_like(rows, value))
    for wrong in (rows[0], "rows", None):
        with pytest.raises(TypeError):
            evaluate(reader.sequence, chunk, wrong)
    with pytest.raises(BadArgument, match="this chunk is text"):
        evaluate(reader.sequence, reader.projector.tokenize("text", [])[0], rows)
    stranger = Reader(folder, "llama", "gemma3")
    with pytest.raises(BadArgument, match="another projector"):
        evaluate(reader.sequence, stranger.media(IMAGE)[0][0], rows)
    with pytest.raises(BadArgument, match="another model"):
        evaluate(stranger.sequence, chunk, rows)
    assert len(reader.sequence) == len(stranger.sequence) == 0


def test_use_after_close(folder: Path) -> None:
    for close in ("sequence", "context", "projector"):
        reader = Reader(folder, "llama", "ultravox")
        chunk, rows = reader.media(SOUND)[0]
        getattr(reader, close).close()
        with pytest.raises(ClosedError):
            reader.projector.evaluate(reader.sequence, chunk, rows)
    reader = Reader(folder, "llama", "ultravox")
    chunk, rows = reader.media(SOUND)[0]
    reader.model.close()  # kept by the others
    reader.projector.evaluate(reader.sequence, chunk, rows)
    assert len(reader.sequence) == AUDIO_TOKENS
