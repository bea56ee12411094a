"""Rows as one table: aligned text for the terminal, Markdown for RESULTS.md."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Final

from benchmarks.harness import Bench, Row, Target
from ipyllama import build_info

RESULTS: Final = Path(__file__).with_name("RESULTS.md")
HEADER = ("what", "ours", "reference", "ratio", "target", "")


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest cell; the first line is the header."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    padded = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)
    first, *others = padded
    return "\n".join([first, "-" * max(map(len, [first, *others])), *others])


def markdown(lines: Sequence[Sequence[str]]) -> str:
    first, *others = lines
    return "\n".join(f"| {' | '.join(line)} |" for line in [first, ["---"] * len(first), *others])


def as_lines(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    return [HEADER, *(cells(row) for row in rows)]


def cells(row: Row) -> tuple[str, ...]:
    reference = "" if row.reference is None else figure(row.reference, row.unit)
    verdict = {True: "ok", False: "MISSED", None: "—"}[row.ok]
    return (
        row.name,
        figure(row.ours, row.unit),
        f"{reference} {row.against}".strip(),
        "" if row.ratio is None else f"{row.ratio:.3g}" if row.ratio < 0.1 else f"{row.ratio:.3f}",
        "" if row.target is None else limit(row.target, row.unit),
        verdict,
    )


def figure(value: float, unit: str) -> str:
    """Three figures are what such measurements carry."""
    return f"{value:,.{2 if abs(value) < 1 else 1 if abs(value) < 100 else 0}f} {unit}"


def limit(target: Target, unit: str) -> str:
    sign = ">=" if target.at_least else "<"
    return f"ratio {sign} {target.limit:g}" if target.of == "ratio" else f"{sign} {target.limit:g} {unit}"


def caution(bench: Bench) -> str:
    """A sentence about a machine that was not quiet; empty where it was."""
    if not bench.disturbed:
        return ""
    return (
        f"Other work kept the machine busy before {bench.disturbed} of {bench.runs} runs: "
        "absolute figures are too low, and ratios are rough."
    )


def save(path: Path, parts: Sequence[str], bench: Bench, command: str) -> None:
    """Write tables and sentences with what they were measured on, in place of what the same command wrote before."""
    build = build_info()
    title = f"## `{command}`"
    section = [
        title,
        f"{date.today().isoformat()}, model {bench.model}: medians of runs that take turns.",
        *parts,
        "\n".join(
            f"- {label}: {value}"
            for label, value in {
                "CPU": f"{cpu_name()}, {' '.join(build.instruction_sets)}",
                "system": f"{platform.platform()}, Python {platform.python_version()}",
                "llama.cpp": f"{build.llama_cpp_commit[:12]}, {build.options}, {build.compiler}",
            }.items()
        ),
    ]
    others = [f"## {part}" for part in path.read_text(encoding="utf-8").split("\n## ")[1:]] if path.exists() else []
    kept = [part.strip() for part in others if part.splitlines()[0] != title]
    path.write_text("\n\n".join(["# Results", *kept, *filter(None, section)]) + "\n", encoding="utf-8")


def cpu_name() -> str:
    devices = build_info().devices
    threads = os.cpu_count()
    return f"{devices[0][1] if devices else platform.processor()}, {threads} threads"
