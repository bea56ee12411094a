"""Damaged model files: a named error or a model that works, never a dead process. Each batch runs in one of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
from native.core import run_apart

from ipyllama import _core
from ipyllama.errors import BadModelFile

CHECK = """
import sys
from pathlib import Path
from ipyllama import _core
from ipyllama.errors import LlamaError

seen = {"loaded": 0, "refused": 0}
for path in sorted(Path(sys.argv[1]).iterdir()):
    try:
        model = _core.Model.load(str(path))
    except LlamaError:
        seen["refused"] += 1
        continue
    seen["loaded"] += 1
    try:  # what did load must also bear being used
        options = _core.ContextOptions()
        options.n_ctx, options.n_batch = 128, 64
        sequence = _core.Sequence(_core.Context(model, options))
        sequence.decode([1, 5, 300])
        _core.Sampler.chain([_core.Sampler.penalties(model, repeat=1.1), _core.Sampler.dist()]).sample(sequence)
        model.tokenize("Hello <|im_start|> \\u00e9", parse_special=True)
        model.detokenize([1, 5, 300])
        model.metadata(), model.chat_template()
    except LlamaError:
        pass
print(seen["loaded"], seen["refused"])
"""


def check(folder: Path, variants: list[bytes]) -> tuple[int, int]:
    """How many of the variants load, and how many are refused."""
    folder.mkdir()
    for number, data in enumerate(variants):
        (folder / f"{number:04}.gguf").write_bytes(data)
    loaded, refused = run_apart(CHECK, folder).split()
    return int(loaded), int(refused)


@pytest.mark.parametrize("arch", ["llama", "jamba"])
def test_truncated_anywhere_is_refused(tiny, tmp_path: Path, arch: str) -> None:
    data = tiny(arch).read_bytes()
    header = gguf.GGUFReader(tiny(arch)).data_offset
    sizes = {0, 1, 4, 8, 16, 23, 24, *range(30, header, header // 60), *range(header, len(data) - 1, len(data) // 20)}
    variants = [data[:size] for size in sorted(sizes)] + [data[:-64]]
    assert check(tmp_path / "files", variants) == (0, len(variants))


@pytest.mark.parametrize("arch", ["llama", "gemma3", "mamba", "jamba"])
def test_damage_in_the_header(tiny, tmp_path: Path, arch: str, draw: Callable[[int], int]) -> None:
    """Bits flipped, and bytes set to values that break counts, types and sizes."""
    data = tiny(arch).read_bytes()
    header = gguf.GGUFReader(tiny(arch)).data_offset
    facts = [at for at in range(header) if not 400 < at < header // 2]  # half of it is the list of tokens
    variants = []
    for number in range(160):
        damaged = bytearray(data)
        at = facts[draw(len(facts))] if number % 4 else draw(header)
        damaged[at] = (0, 1, 127, 128, 255, damaged[at] ^ 1 << draw(8))[draw(6)]
        variants.append(bytes(damaged))
    loaded, refused = check(tmp_path / "files", variants)
    assert loaded + refused == len(variants)
    assert loaded > 0  # both ways are taken
    assert refused > 0


def test_two_tokens_of_the_same_text(tiny, tmp_path: Path) -> None:
    """Upstream ends the process here if nobody stops it."""
    data = tiny("llama").read_bytes()
    assert data.count(b"<0x41>") == 1
    assert check(tmp_path / "files", [data.replace(b"<0x41>", b"<0x42>")]) == (0, 1)


def test_no_layers_at_all(tiny, tmp_path: Path) -> None:
    data = tiny("llama").read_bytes()
    key = data.index(b"llama.block_count") + len(b"llama.block_count") + 4
    variants = [data[:key] + n.to_bytes(4, "little") + data[key + 4 :] for n in (0, 1, 3, 513, 2**31, 2**32 - 1)]
    assert check(tmp_path / "files", variants) == (0, 6)


def test_other_files(tmp_path: Path, draw: Callable[[int], int]) -> None:
    garbage = bytes(draw(256) for _ in range(10_000))
    huge = b"GGUF" + (3).to_bytes(4, "little") + (2**63).to_bytes(8, "little") * 2
    variants = [
        b"",
        b"\0" * 4096,
        garbage,
        b"GGUF" + garbage,
        b"GGUF\x03\0\0\0" + garbage,
        huge + garbage,
        b"PK\x03\x04",
    ]
    assert check(tmp_path / "files", variants) == (0, len(variants))


def test_the_error_says_which_file_and_why(tiny, tmp_path: Path) -> None:
    file = tmp_path / "cut.gguf"
    file.write_bytes(tiny("llama").read_bytes()[:-1000])
    with pytest.raises(BadModelFile, match=r"cut\.gguf.*not within the file bounds"):
        _core.Model.load(str(file))


@pytest.fixture
def draw() -> Callable[[int], int]:
    """`draw(n)`: numbers from 0 to n - 1, the same in every run."""
    import random

    return random.Random(7).randrange
