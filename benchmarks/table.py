"""Rows as one table: aligned text for the terminal, Markdown for RESULTS.md."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from benchmarks.harness import Bench, Row, Target
from ipyllama import build_info

HEADER = ("what", "ours", "reference", "ratio", "target", "")


def text_table(rows: Sequence[Row]) -> str:
    """Columns padded to their widest cell."""
    lines = [HEADER, *(cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    padded = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)
    first, *others = padded
    return "\n".join([first, "-" * max(map(len, [first, *others])), *others])


def markdown_table(rows: Sequence[Row]) -> str:
    lines = [HEADER, ("---",) * len(HEADER), *(cells(row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


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


def save(path: Path, rows: Sequence[Row], bench: Bench, command: str) -> None:
    """Write the table with what it was measured on."""
    build = build_info()
    parts = [
        "# Results",
        f"`{command}` on {date.today().isoformat()}, model {bench.model}: medians of runs that take turns.",
        markdown_table(rows),
        caution(bench),
        "\n".join(
            f"- {label}: {value}"
            for label, value in {
                "CPU": f"{cpu_name()}, {' '.join(build.instruction_sets)}",
                "system": f"{platform.platform()}, Python {platform.python_version()}",
                "llama.cpp": f"{build.llama_cpp_commit[:12]}, {build.options}, {build.compiler}",
            }.items()
        ),
    ]
    path.write_text("\n\n".join(filter(None, parts)) + "\n", encoding="utf-8")


def cpu_name() -> str:
    devices = build_info().devices
    threads = os.cpu_count()
    return f"{devices[0][1] if devices else platform.processor()}, {threads} threads"
