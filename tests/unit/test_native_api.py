"""docs/native-api.md: the header, our names and the page agree."""

from __future__ import annotations

import re
import sys
from functools import reduce
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from ipyllama import _core

SCRIPT = Path(__file__).parents[2] / "docs" / "native_api.py"
spec = spec_from_file_location("native_api", SCRIPT)
assert spec is not None
assert spec.loader is not None
native_api = module_from_spec(spec)
sys.modules["native_api"] = native_api  # its dataclass looks itself up
spec.loader.exec_module(native_api)

NAMES = native_api.read_names()


@pytest.fixture(scope="module")
def header() -> dict[str, dict[str, bool]]:
    return native_api.read_header()


def test_no_function_of_the_header_is_overlooked(header: dict[str, dict[str, bool]]) -> None:
    """Counted in another way than they are read: every export that is not in a comment."""
    assert tuple(header) == native_api.SECTIONS
    text = (native_api.provided() / "include" / "llama.h").read_text()
    code = re.sub(r"//[^\n]*", lambda match: match[0] if re.fullmatch(r"// [\w /]+", match[0]) else "", text)
    for title, functions in header.items():
        start = code.index(f"    // {title}\n")
        later = [code.index(f"    // {other}\n") for other in (*header, "Vocab", "Model split")]
        end = min(place for place in later if place > start)
        assert code.count("LLAMA_API", start, end) == len(functions), title


def test_each_function_has_a_name_of_ours_or_a_reason(header: dict[str, dict[str, bool]]) -> None:
    current = {name for functions in header.values() for name, deprecated in functions.items() if not deprecated}
    assert set(NAMES) == current
    assert all(entry.ours or len(entry.note) > 10 for entry in NAMES.values())


@pytest.mark.parametrize("ours", sorted({own for entry in NAMES.values() for own in entry.ours}))
def test_our_names_exist(ours: str) -> None:
    reduce(getattr, ours.split("."), _core)


def test_the_page_is_what_would_be_written(header: dict[str, dict[str, bool]]) -> None:
    assert native_api.PAGE.read_text() == native_api.render(header, NAMES, native_api.commit())


def test_a_function_that_upstream_adds_or_drops_is_noticed() -> None:
    new = "    //\n    // Memory\n    //\n\n    LLAMA_API bool llama_memory_new(\n        int x);\n"
    old = '    LLAMA_API DEPRECATED(void llama_old(int), "x");\n    DEPRECATED(LLAMA_API int llama_older(void), "y");\n'
    found = native_api.read_header(new + old)
    assert found == {"Memory": {"llama_memory_new": False, "llama_old": True, "llama_older": True}}
    with pytest.raises(KeyError):
        native_api.render(found, NAMES, "0")
