"""Every file of a store may be anything: nothing that was not saved is ever used, and nothing in it runs."""

from __future__ import annotations

import pickle
import random
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from blocks import BINDING, ROOT, bound, is_true, local_store, make_block, make_chain
from reliability.ask import PROMPTS, Slow, answer

import ipyllama
from ipyllama.errors import BadState, LlamaError
from ipyllama.ledger import Ledger
from ipyllama.prefix import PrefixMemory
from ipyllama.prefix.store.block import VERSION, encode
from ipyllama.prefix.store.blocks import block_name

N_FLIPS = 1000
Damage = Callable[[bytes], bytes]


def flip(path: Path, at: int) -> None:
    """The bit at this place."""
    with path.open("r+b") as file:
        file.seek(at // 8)
        (byte,) = file.read(1)
        file.seek(at // 8)
        file.write(bytes([byte ^ 1 << at % 8]))


def test_a_flipped_bit_anywhere_gives_no_other_state(tmp_path: Path) -> None:
    rng, store = random.Random(5), local_store(tmp_path)
    links = make_chain(range(40))
    blocks = {link.key: make_block(link, 500 * n) for n, link in enumerate(links)}
    for block in blocks.values():
        store.write(block)
    refused = 0
    for _ in range(N_FLIPS):
        link = rng.choice(links)
        path = tmp_path / block_name(link.parent, link.key)
        at = rng.randrange(8 * path.stat().st_size)
        flip(path, at)
        try:
            found = store.read(link.parent, link.key)
        except BadState:
            refused += 1
        else:
            assert found is not None
            assert (found.link, found.origin, found.seconds) == (link, BINDING.origin, 1.0)
            assert found.probe == blocks[link.key].probe
            assert is_true(found)
        flip(path, at)
    assert refused > 0.95 * N_FLIPS  # the rest are zeros between header and state


DAMAGE: dict[str, Damage] = {
    "truncated": lambda content: content[: len(content) // 2],
    "one byte short": lambda content: content[:-1],
    "longer": lambda content: content + b"\0",
    "empty": lambda content: b"",
    "header only": lambda content: content[:32],
    "foreign": lambda content: b"GGUF" + content[4:],
    "as text": lambda content: content.replace(b"\r\n", b"\n"),
    "future version": lambda content: content[:8] + struct.pack("<I", VERSION + 1) + content[12:],
    "another block": lambda content: b"".join(encode(make_block(make_chain(range(4))[0]))),
    "zeros": lambda content: bytes(len(content)),
    "bit in the state": lambda content: content[:-9] + bytes([content[-9] ^ 4]) + content[-8:],
}


def ask(model: str, folder: Path, n: int) -> tuple[list[int], int, list[str], Path]:
    """The answer to the n-th prompt, how many tokens were computed for it, what was damaged, and the file of the
    prompt's second block."""
    with ipyllama.load(model, n_ctx=2048, n_threads=1, cache=PrefixMemory(folder, ram_limit=0)) as llm:
        llm.memory.rates.prefill = Slow(1.0)
        tokens, usage = answer(llm, n)
        llm.memory.flush()
        link = llm.memory.links(Ledger().append_prompt(PROMPTS[n]))[1]
        return tokens, usage.computed, llm.memory.counts.damaged, folder / block_name(link.parent, link.key)


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_store_costs_time_and_no_answer(tiny, tmp_path: Path, damage: str) -> None:
    model, n = str(tiny("llama")), 3
    alone, computed, damaged, file = ask(model, tmp_path, n)
    assert (computed, damaged) == (len(PROMPTS[n]), [])
    file.write_bytes(DAMAGE[damage](file.read_bytes()))
    tokens, computed, damaged, _ = ask(model, tmp_path, n)
    assert (tokens, computed > 1, len(damaged)) == (alone, True, 1)
    assert [path.name for path in (tmp_path / "quarantine").iterdir()] == [file.name]
    assert ask(model, tmp_path, n)[:3] == (alone, 1, [])


class Hostile:
    """Unpickled, it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str, str]]:
        return _leave_mark, (str(self.mark), "x")


def _leave_mark(path: str, text: str) -> None:
    Path(path).write_text(text)


LOOKED_FOR = (
    "output.pkl",
    "output.pkl.gz",
    "metadata.json",
    "func_code.py",
    "index.json",
    "blocks/x.npy",
    "notes/a.json",
)


def test_nothing_in_a_store_is_ever_unpickled(tmp_path: Path) -> None:
    mark, folder = tmp_path / "mark", tmp_path / "store"
    payloads = [pickle.dumps(Hostile(mark), protocol) for protocol in (0, 2, 5)]
    pickle.loads(payloads[0])
    assert mark.exists()  # it would have been seen
    mark.unlink()
    array = tmp_path / "array.npy"
    np.save(array, np.array([Hostile(mark)], object))
    payloads.append(array.read_bytes())
    array.unlink()
    ledger = Ledger().append_prompt(range(21))
    for payload in payloads:
        memory = bound(PrefixMemory(folder))
        for link in memory.links(ledger):
            memory.save(make_block(link))
        memory.flush(60)
        assert memory.store is not None
        memory.store.put_note("note", {"a": 1})
        memory.store.quarantine(ROOT, memory.links(ledger)[4].key)
        memory.export(tmp_path / "bundle", [ledger])
        places = [path for path in folder.rglob("*") if path.is_file()]
        assert len(places) > 5
        for path in (*places, *(folder / name for name in LOOKED_FOR), tmp_path / "bundle"):
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(payload)
        other = bound(PrefixMemory(folder))
        assert [other.load(found) for found in other.find(other.links(ledger))][:1] == [None]
        other.save(make_block(make_chain(range(900, 904))[0]))
        other.flush(60)
        assert other.store is not None
        other.stats(), other.verify(), other.store.notes(), other.check(ledger), other.child(ROOT, 0, (1, 2), 100)
        with pytest.raises(LlamaError):
            other.import_(tmp_path / "bundle")
        other.clear()
        assert not mark.exists()
