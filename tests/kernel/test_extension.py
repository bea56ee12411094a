"""Loading is reversible, and the front end's help and Tab work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from kernel.session import Kernel

SNAPSHOT = """
import threading

def snapshot():
    ip = get_ipython()
    return {
        "magics": {kind: sorted(magics) for kind, magics in ip.magics_manager.magics.items()},
        "registry": sorted(ip.magics_manager.registry),
        "configurables": [type(c).__name__ for c in ip.configurables],
        "matchers": list(map(repr, ip.Completer.custom_matchers)),
        "events": {name: list(map(repr, callbacks)) for name, callbacks in ip.events.callbacks.items()},
        "transformers": list(map(repr, ip.input_transformers_post + ip.input_transformers_cleanup)),
        "exceptions": repr(ip.custom_exceptions),
        "formatters": {kind: len(f.type_printers) for kind, f in ip.display_formatter.formatters.items()},
        "variables": sorted(name for name in ip.user_ns if not name.startswith("_")),
        "threads": sorted(t.name for t in threading.enumerate()),
    }
"""


def test_load_and_unload_leave_nothing(new_kernel: Callable[[], Kernel], tiny: Callable[[str], Path]) -> None:
    kernel = new_kernel()
    # IPython loads its own magics when they are first used
    kernel.run("getattr(get_ipython().magics_manager, 'load_all_lazy_magics', int)()")
    kernel.run(SNAPSHOT)
    before = kernel.value("snapshot()")
    for _ in range(2):
        kernel.run("%load_ext ipyllama")
        kernel.run(f'%llama load "{tiny("llama-bigram")}"')
        kernel.run("%%llama -n 3\nHi")
        kernel.run("%config Llama.max_tokens = 7")
        assert kernel.value("snapshot()") != before
        kernel.run("%unload_ext ipyllama")
        assert kernel.value("snapshot()") == before
    kernel.run("import ipyllama")
    assert kernel.value("ipyllama.loaded()") == []


def test_reload_replaces_the_first(bigram: Kernel) -> None:
    bigram.run(SNAPSHOT)
    before = bigram.value("{**snapshot(), 'threads': None, 'matchers': len(snapshot()['matchers'])}")
    bigram.run("%reload_ext ipyllama")
    bigram.run("import ipyllama.magics\nipyllama.magics.register(get_ipython())")  # no harm either
    after = bigram.value("{**snapshot(), 'threads': None, 'matchers': len(snapshot()['matchers'])}")
    assert after == before | {"variables": sorted({*before["variables"], "ipyllama"})}
    assert bigram.value("ipyllama.loaded()") == []


def test_unload_frees_the_memory_whoever_still_holds_the_model(smol: Kernel, smollm2: Path) -> None:
    smol.run("import ipyllama\nheld = ipyllama.loaded()[0]\nchat = held.chat()")
    smol.run("%%llama -n 3\nHi")
    loaded = smol.process.memory_info().rss
    smol.run("%llama unload")
    assert loaded - smol.process.memory_info().rss > 0.8 * smollm2.stat().st_size
    assert smol.value("held.closed, ipyllama.loaded()") == (True, [])
    assert smol.fail("chat.ask('Hi')").content["ename"] == "ClosedError"


def test_what_an_index_has_loaded_is_seen_and_unloaded(bigram: Kernel, tiny: Callable[[str], Path]) -> None:
    bigram.run(f"""
import tempfile
from ipyllama.rag import Index
index = Index.create("pets", {{"a": "cats purr", "b": "dogs bark"}}, embed={str(tiny("bert"))!r},
                     location=tempfile.mkdtemp())
""")
    found = bigram.value("[hit.chunk.source for hit in index.search('cats')]")
    assert bigram.run("%llama status").text.splitlines()[-1].split() == ["also", "loaded", "tiny-bert"]
    (row,) = [line for line in bigram.run("%llama models").text.splitlines() if "tiny-bert" in line]
    assert row.endswith(", loaded")
    assert "%llama unload tiny-bert" in bigram.complete("%llama unload tiny-be")
    said = bigram.run("%llama unload tiny-bert").text
    assert said == "tiny-bert is unloaded and its memory is free; an index that embeds with it loads it again"
    assert bigram.value("[llm.name for llm in __import__('ipyllama').loaded()]") == ["tiny-llama-bigram"]
    assert "also loaded" not in bigram.run("%llama status").text
    assert "'tiny-bert' is not loaded" in bigram.fail("%llama unload tiny-bert").error
    assert bigram.value("[hit.chunk.source for hit in index.search('cats')]") == found  # it comes back
    bigram.run("%llama unload tiny-bert")
    bigram.run("%%llama -n 3\nHi")


def test_status_names_what_is_loaded_where_nothing_answers(bigram: Kernel, tiny: Callable[[str], Path]) -> None:
    bigram.run(f"import ipyllama\nbert = ipyllama.load({str(tiny('bert'))!r})\n%llama unload")
    shown = bigram.run("%llama status").text
    assert shown.startswith("no model answers: %llama load smollm2")
    assert shown.endswith("also loaded: tiny-bert")
    bigram.run("%llama unload tiny-bert")
    assert bigram.value("bert.closed")
    assert bigram.run("%llama status").text.startswith("no model is loaded")


def test_a_second_load_shares_the_model(bigram: Kernel, tiny: Callable[[str], Path]) -> None:
    bigram.run("import ipyllama")
    before = bigram.value("list(map(id, ipyllama.loaded()))")
    again = bigram.run(f'%llama load "{tiny("llama-bigram")}"')
    assert "already loaded" in again.text
    assert bigram.value("list(map(id, ipyllama.loaded()))") == before


@pytest.mark.parametrize(
    ("code", "completed"),
    [
        ("%llama lo", ["%llama load"]),
        ("%llama un", ["%llama unload"]),
        ("%%llama --te", ["%%llama --temperature"]),
        ("%%llama -n 5 --no", ["%%llama -n 5 --no-think", "%%llama -n 5 --no-stream"]),
        ("%llama load smo", ["%llama load smollm2"]),
        ("%%llama --model=smo", ["%%llama --model=smollm2"]),
        ("%%llama --chat wo", ["%%llama --chat work"]),
        ("x = 1\n%llama lo", ["x = 1\n%llama load"]),
        ("%%llama\nTell me: %llama lo", []),
    ],
)
def test_tab(bigram: Kernel, code: str, completed: list[str]) -> None:
    bigram.run("%%llama -n 3 --chat work\nHi")
    assert bigram.complete(code)[: len(completed)] == completed
    if not completed:
        assert not any(line.endswith(" load") for line in bigram.complete(code))


def test_tab_completes_paths(bigram: Kernel, tiny: Callable[[str], Path]) -> None:
    path = tiny("llama-bigram")
    assert bigram.complete(f"%llama load {str(path)[:-6]}") == [f"%llama load {path}"]


def test_tab_offers_what_is_loaded(bigram: Kernel) -> None:
    assert bigram.complete("%llama use tiny-") == ["%llama use tiny-llama-bigram"]


@pytest.mark.parametrize("name", ["%llama", "%%llama"])
def test_help(bigram: Kernel, name: str) -> None:
    (page,) = bigram.run(f"{name}?").content["payload"]
    assert page["source"] == "page"
    text = page["data"]["text/plain"]
    assert "Examples" in text
    assert "smollm2" in text
    asked = "%llama help" if name == "%llama" else "%%llama --help\n..."
    assert bigram.run(asked).printed.strip() in text
    assert "Examples" in bigram.inspect(name)


@pytest.mark.parametrize("command", ["models", "status"])
def test_tables_are_text_and_html(bigram: Kernel, command: str) -> None:
    bundle = bigram.run(f"%llama {command}").bundles[0]
    assert set(bundle) == {"text/plain", "text/html"}
    assert bundle["text/html"].count("<tr>") > 1


def test_info_loads_nothing(bigram: Kernel, tiny: Callable[[str], Path]) -> None:
    bundle = bigram.run(f'%llama info "{tiny("jamba")}" --n-ctx 1000').bundles[0]
    assert "KV of 1,000 tokens" in bundle["text/plain"]
    assert "tiny-jamba" in bundle["text/html"]
    assert "tiny-jamba" not in bigram.run("%llama status").text


def test_models_come_and_go(bigram: Kernel, use: Callable[[str], Kernel]) -> None:
    use("llama")
    assert "tiny-llama" in bigram.run("%llama status").text
    bigram.run("%llama use tiny-llama-bigram")
    bigram.run("%%llama -n 3 --out answer\nHi")
    assert bigram.value("answer.text, answer.model") == ("abc", "tiny-llama-bigram")
    bigram.run("%%llama -n 3 --out other --model tiny-llama\nHi")  # for this cell alone
    bigram.run("%%llama -n 3 --out answer\nHi")
    assert bigram.value("other.model, answer.model") == ("tiny-llama", "tiny-llama-bigram")
    bigram.run("%llama unload")
    bigram.run("%%llama -n 3 --out answer\nHi")
    assert bigram.value("answer.model") == "tiny-llama"
