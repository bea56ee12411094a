"""The live answer from the kernel's side: a front end that said hello gets it; others get what they always got."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from kernel.session import Kernel, told_live

FRONT = "get_ipython().magics_manager.registry['LlamaMagics'].front"
STATE = """
import comm, ipywidgets

def state():
    manager = comm.get_comm_manager()
    return sorted(manager.targets), sorted(manager.comms), len(ipywidgets.widgets.widget._instances)
"""


@pytest.fixture
def notebook(new_kernel: Callable[[], Kernel], tiny: Callable[[str], Path]) -> Kernel:
    """A kernel whose front end gives cells ids."""
    kernel = new_kernel()
    kernel.run(STATE)
    kernel.run(f'%load_ext ipyllama\n%llama load "{tiny("llama-bigram")}" --threads 1', cell="load")
    return kernel


def hello(kernel: Kernel) -> None:
    """What JupyterLab does as soon as the script of the live answers runs in it."""
    kernel.say("answers", kind="hello")
    kernel.wait_until(f"{FRONT}.can_show")


def test_only_who_said_hello_gets_live_answers(notebook: Kernel) -> None:
    cell = "%%llama --raw -n 30 --fresh\nabc"
    before = notebook.run(cell, cell="a")
    assert told_live(before) == []
    hello(notebook)
    after = notebook.run(cell, cell="a")
    assert told_live(after)[:2] == ["begin", "text"]
    assert told_live(after)[-1] == "end"
    slot = '<div class="ipyllama-slot" data-ipyllama="a-0">'
    assert after.bundles[-1]["text/html"].startswith(slot)
    assert set(after.bundles[-1]) == set(before.bundles[-1])
    for option in ("--plain", "--no-stream", "--samples 2"):
        assert told_live(notebook.run(cell.replace("--raw", option), cell="a")) == []
    notebook.run("%config Llama.widgets = False")
    assert told_live(notebook.run(cell, cell="a")) == []
    notebook.run("%config Llama.widgets = True")
    assert told_live(notebook.run(cell)) == [
        "begin",
        *told_live(after)[1:],
    ]  # greeted once: that front end is still there


def test_who_says_hello_while_an_answer_is_written_sees_it_live_from_there(
    new_kernel: Callable[[], Kernel], smollm2: Path
) -> None:
    kernel = new_kernel()
    kernel.run(f'%load_ext ipyllama\n%llama load "{smollm2}" --threads 1', cell="load")
    running = kernel.start("%%llama --raw -t 0 -n 6000\n1, 2, 3, 4, 5, 6, 7, 8, 9, 10,", "a")
    shown = kernel.wait_for_words(running)
    assert told_live(shown) == []
    kernel.say("answers", kind="hello")
    shown = kernel.wait_for_live(running, "text", shown)
    kernel.interrupt()
    shown = kernel.finish(running, shown)
    assert (told_live(shown)[0], told_live(shown)[-1]) == ("begin", "end")
    assert len(shown.of("display_data")) == 1
    slot = '<div class="ipyllama-slot" data-ipyllama="a-0">'
    assert all(bundle["text/html"].startswith(slot) for bundle in shown.bundles[-2:])
    assert "[interrupted]" in shown.bundles[-1]["text/plain"]


def test_a_question_that_cannot_be_asked_leaves_no_answer_waiting(
    new_kernel: Callable[..., Kernel], tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    def start() -> Kernel:
        kernel = new_kernel(IPYLLAMA_PREFIX_DIR=str(tmp_path / "kept"))
        kernel.run(f'%load_ext ipyllama\n%llama load "{tiny("mamba")}" --threads 1', cell="load")
        return kernel

    bert = str(tiny("bert"))
    start().run(f"from ipyllama.rag import Index\nIndex.create('docs', {{'a': 'abc'}}, embed={bert!r})")
    kernel = start()  # where LanceDB is still to be loaded
    hello(kernel)
    result = kernel.finish(kernel.start("%%llama --rag docs --reuse fused\nWhat is a?", "a"))
    assert "CannotFuse" in result.error
    assert [told_live(result)[0], told_live(result)[-1]] == ["begin", "end"]
    result = kernel.finish(kernel.start(f"%%llama --model '{bert}'\nWhat is a?", "b"))  # which is loaded for it
    assert "WrongModel" in result.error
    assert [told_live(result)[0], told_live(result)[-1]] == ["begin", "end"]


def test_a_front_end_that_gives_no_ids_is_not_asked(new_kernel: Callable[[], Kernel]) -> None:
    kernel = new_kernel()
    assert kernel.run("%load_ext ipyllama").of("comm_open") == []


def test_unload_takes_everything_out_of_the_page(notebook: Kernel) -> None:
    hello(notebook)
    notebook.run("%%llama --raw -n 3\nabc", cell="a")
    assert notebook.value("state()[1:]") != ([], 0)
    notebook.run("%unload_ext ipyllama")
    assert notebook.value("state()") == (["jupyter.widget", "jupyter.widget.control"], [], 0)


def test_an_error_leaves_what_was_written(notebook: Kernel) -> None:
    hello(notebook)
    failed = notebook.fail("%%llama --raw --grammar missing.gbnf\nabc", cell="a")
    assert failed.content["ename"] == "BadOption"
    assert failed.bundles == []


def test_several_answers_of_a_cell_have_places_of_their_own(notebook: Kernel) -> None:
    hello(notebook)
    shown = notebook.run("for word in 'ab':\n    get_ipython().run_cell_magic('llama', '-n 3 --raw', word)", cell="a")
    slots = [bundle["text/html"].partition('ipyllama="')[2][:3] for bundle in shown.bundles]
    assert list(dict.fromkeys(slots)) == ["a-0", "a-1"]
