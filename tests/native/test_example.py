"""examples/native_layer.py runs on every kind of model and uses every public name of the extension; docs/native.md
runs, too."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from native.core import run_apart
from tiny.lora import random_lora
from tiny.projector import build_projector

import ipyllama

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "native_layer.py"
STUB = Path(ipyllama.__file__).with_name("_core.pyi")


def names_of(stub: ast.Module) -> Iterator[str]:
    """Functions, classes, and in those methods, properties and members: "Model.load"; special methods left out."""
    for node in stub.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.ClassDef):
            yield node.name
            for member in node.body:
                if isinstance(member, ast.FunctionDef) and not member.name.startswith("__"):
                    yield f"{node.name}.{member.name}"
                elif isinstance(member, ast.Assign):
                    yield from (f"{node.name}.{target.id}" for target in member.targets if isinstance(target, ast.Name))


def test_every_public_name_is_used() -> None:
    names = set(names_of(ast.parse(STUB.read_text())))
    assert {"build_info", "Model", "Model.load", "Context.embed", "Sequence.rm", "Outputs.ALL"} <= names
    used = {node.attr for node in ast.walk(ast.parse(EXAMPLE.read_text())) if isinstance(node, ast.Attribute)}
    ours = {"set_crash_file", "set_crash_facts"}  # for ipyllama.crash alone
    assert sorted(name for name in names - ours if name.split(".")[-1] not in used) == []


@pytest.mark.parametrize("arch", ["llama", "gemma3", "mamba", "lfm2"])
def test_it_runs(tiny, arch: str) -> None:
    command = [sys.executable, str(EXAMPLE), str(tiny(arch)), str(tiny("bert-rank"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "scores [('relevance', " in done.stdout


def test_it_runs_with_an_adapter_and_images(tiny, tmp_path: Path) -> None:
    lora, projector = tmp_path / "lora.gguf", tmp_path / "mmproj.gguf"
    random_lora().write(lora)
    build_projector(projector, "gemma3")
    command = [sys.executable, str(EXAMPLE), *map(str, (tiny("llama"), tiny("bert-rank"), lora, projector))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_code_in_the_documentation_runs(smollm2: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "native.md").read_text(), re.S)
    assert run_apart(code.replace("model.gguf", str(smollm2))).startswith("b'")
