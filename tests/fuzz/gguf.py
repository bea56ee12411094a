"""GGUF files: what our reader accepts must also load and compute, or be refused by a named error."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from random import Random

from tiny import build

import ipyllama
from fuzz import damage
from ipyllama import _core
from ipyllama.errors import BadModelFile, LlamaError
from ipyllama.models.quants import TENSOR_TYPES

KINDS = (("value",), ("value", "type", "tensor type"), ("shape", "dims", "offset"), ("length", "count", "version"))
ARCHS = ("llama", "llama-bigram", "gemma3", "mamba", "lfm2", "jamba", "bert")


def case(random: Random, folder: Path) -> str:
    """Damage a tiny model, or forge a header; read it; if it is accepted, load it and evaluate some tokens."""
    path = folder / "case.gguf"
    path.write_bytes(make(random))
    try:
        info = ipyllama.inspect(path)
    except BadModelFile:
        return "refused"
    str(info), repr(info), str(info.tensor_table), info.memory(512, "q8_0")
    if info.header.kind != "model":
        return "not a model"
    try:
        use(path)
    except LlamaError:
        return "read, then refused by llama.cpp"
    return "loaded and used"


def make(random: Random) -> bytes:
    if random.random() < 0.1:
        return damage.forge(random)
    sound, found, header = base(random.choice(ARCHS))
    data = bytearray(sound)
    kinds = random.choice(
        (("value",), ("value", "type", "tensor type"), ("shape", "dims", "offset"), ("length", "count", "version"))
    )
    match random.choice(("numbers", "numbers", "numbers", "retype", "flip", "cut", "move")):
        case "numbers":
            damage.overwrite(random, data, [spot for spot in found if spot.kind in kinds])
        case "retype":
            damage.retype(random, data, [spot for spot in found if spot.kind == "tensor type"], list(TENSOR_TYPES))
        case "flip":
            damage.flip(random, data, header)
        case "cut":
            del data[random.choice((random.randrange(header), random.randrange(len(data)))) :]
        case "move":
            damage.move(random, data, header)
    return bytes(data)


@cache
def base(arch: str) -> tuple[bytes, list[damage.Spot], int]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "base.gguf"
        build(arch, path)
        data = path.read_bytes()
    return data, *damage.spots(data)


def use(path: Path) -> None:
    model = _core.Model.load(str(path))
    options = _core.ContextOptions()
    options.n_ctx, options.n_batch = 128, 64
    sequence = _core.Sequence(_core.Context(model, options))
    sequence.decode([1, 5, 100])
    _core.Sampler.greedy().sample(sequence)
    model.tokenize("Hello <|im_start|> \u00e9", parse_special=True)
    model.detokenize([1, 5, 100])
    model.metadata(), model.chat_template()
