"""`python -m benchmarks.peers`: all in one run, same model file, token ids and threads; `--save` writes RESULTS.md."""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.harness import Bench
from benchmarks.peers import install
from benchmarks.peers.runners import LEFT_OUT, Peer, everyone
from benchmarks.peers.work import BRANCHES, PREFIX, REPLY, TAIL, make_work
from benchmarks.table import RESULTS, aligned, caution, figure, markdown, save
from ipyllama.llm import load
from ipyllama.loading import physical_cores

ROUNDS: Final = 5
Lines = list[tuple[str, ...]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--model", default="smollm2", help="name or path of the model (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=physical_cores(), help="for all (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="run everything once")
    parser.add_argument("--save", action="store_true", help=f"write the tables to {RESULTS.name} too")
    arguments = parser.parse_args()
    python, bench = install.installed(), Bench(arguments.model, arguments.quick)
    with load(arguments.model, cache=None, n_threads=arguments.threads) as llm:
        work = make_work(llm, hashlib.sha256(llm.path.read_bytes()).hexdigest())
    peers = everyone(python, work)
    with tempfile.TemporaryDirectory(prefix="ipyllama-peers-") as folder:
        tables = [times(bench, peers, Path(folder)), sizes(peers, Path(folder))]
    said = [*LEFT_OUT, caution(bench)]
    sys.stdout.write("\n\n".join([*map(aligned, tables), *said]) + "\n")
    if arguments.save:
        save(RESULTS, [*map(markdown, tables), *said], bench, " ".join(["python -m benchmarks.peers", *sys.argv[1:]]))
    return 0


def times(bench: Bench, peers: list[Peer], folder: Path) -> Lines:
    """Time to the first token. Every restart begins with a copy of the folder that the first answer left."""
    computed = {peer: peer.run("prepare", made(folder / peer.name))["seconds"] for peer in peers}

    def restart(peer: Peer, mode: str) -> dict[str, Any]:
        copy = folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder / peer.name, copy)
        found = peer.run(mode, copy)
        limit = 2 + (mode == "other") * TAIL + 256
        if found.get("computed", 0) > limit:
            raise RuntimeError(f"{peer.name} computed {found['computed']} tokens: that is no hit")
        return found

    runs = {
        f"{mode} {peer.name}": (lambda peer=peer, mode=mode: restart(peer, mode))
        for mode in ("again", "other")
        for peer in peers
    }
    found = bench.interleave(runs, ROUNDS)

    def middle(mode: str, peer: Peer, key: str = "seconds") -> float:
        return 1000 * median(each[key] for each in found[f"{mode} {peer.name}"])

    lines: Lines = [
        (
            "first token",
            f"computing {PREFIX + TAIL:,} tokens",
            "after a restart",
            "to ours",
            "another question",
            "to ours",
        )
    ]
    for peer in peers:
        again, other = middle("again", peer), middle("other", peer)
        lines.append(
            (
                peer.name,
                figure(1000 * computed[peer], "ms"),
                figure(again, "ms"),
                f"{again / middle('again', peers[0]):.1f} x",
                figure(other, "ms"),
                f"{other / middle('other', peers[0]):.1f} x",
            )
        )
    return lines


def sizes(peers: list[Peer], folder: Path) -> Lines:
    """Bytes on disk after ten answers."""
    lines: Lines = [
        (f"on disk, {BRANCHES} x {TAIL} tokens about the same {PREFIX:,}", "size", "to one state and tails")
    ]
    ideal = 0.0
    for peer in peers:
        place = made(folder / f"branches-{peer.name}")
        found = peer.run("branches", place)
        ideal = ideal or found["bytes_per_token"] * (PREFIX + BRANCHES * (TAIL + REPLY))
        nbytes = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
        lines.append((peer.name, figure(nbytes / 1e6, "MB"), f"{nbytes / ideal:.2f} x"))
        shutil.rmtree(place)
    return lines


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


if __name__ == "__main__":
    sys.exit(main())
