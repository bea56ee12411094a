"""Answers from documents, as cells ask for them. The documents come from a retriever of the notebook's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from kernel.session import Kernel
from shelf import SHELF


@pytest.fixture
def shelf(use: Callable[[str], Kernel]) -> Kernel:
    kernel = use("llama")
    kernel.run(SHELF)
    return kernel


def test_an_answer_carries_its_chunks(shelf: Kernel) -> None:
    result = shelf.run("%%llama --rag {{shelf}} -k 2 -n 8 --out answer\nHow many rooms has the mill?", "a")
    assert shelf.value("[hit.chunk.source for hit in answer.hits]") == ["castle.md", "mill.md"]
    assert shelf.value("(answer.exact, answer.fused, answer.question)") == (
        True,
        False,
        "How many rooms has the mill?",
    )
    below = result.bundles[-1]
    assert "castle.md › Rooms" in below["text/plain"]
    assert "<details" in below["text/html"]
    assert "<img" not in below["text/html"]
    assert "<script" not in below["text/html"]


def test_documents_in_another_order_are_fused_and_checked(shelf: Kernel) -> None:
    shelf.run("%%llama --rag {{shelf}} -n 4 --reuse fused --recompute 2 --out first\nWhat of the mill?", "a")
    shelf.run('Shelf.texts = {"a-" + name: text for name, text in Shelf.texts.items()}', "b")
    shelf.run('Shelf.order = ["a-harbour.md", "a-mill.md"]', "c")
    again = shelf.run(
        "%%llama --rag {{shelf}} -n 4 --reuse fused --recompute 2 --check --out again\nAnd of the harbour?", "d"
    )
    assert shelf.value("first.fused")
    assert shelf.value("again.fused")
    assert not shelf.value("again.exact")
    usage = shelf.usage("again")
    assert usage["restored"] + usage["reused"] > usage["computed"]
    assert any("fused (approximate)" in bundle["text/plain"] for bundle in again.bundles)
    assert "against exact: mean KL" in again.bundles[-1]["text/plain"]
    assert len(shelf.value("again.divergence.kl")) == 4


def test_search_shows_chunks(shelf: Kernel) -> None:
    shown = shelf.run("%llama search {{shelf}} -k 1 rooms of the mill").bundles[-1]
    assert "1 chunk for “rooms of the mill”" in shown["text/plain"]
    assert "score 1" in shown["text/html"]


def test_why_tells_of_a_better_order(shelf: Kernel) -> None:
    shelf.run('Shelf.texts = {name: "Then: " + text for name, text in Shelf.texts.items()}')  # never read before
    shelf.run('shelf.order = ["mill.md"]')
    shelf.run("%%llama --rag {{shelf}} -n 2\nWhat of the mill?", "a")
    shelf.run('shelf.order = ["castle.md", "mill.md"]')
    shelf.run("%%llama --rag {{shelf}} -n 2 --out answer\nWhat of both?", "b")
    assert "in the order [2] [1]" in shelf.value("answer.order")
    shown = shelf.run("%llama why")
    assert any("in the order [2] [1]" in bundle["text/plain"] for bundle in shown.bundles)


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("%%llama --rag {{nobody}}\nWhy?", "not a variable"),
        ("%%llama --rag {{NOTHING}}\nWhy?", "a retriever has search"),
        ("%%llama --rag {{shelf}} --chat x\nWhy?", "--chat"),
        ("%%llama --check\nWhy?", "--rag"),
        ("%llama search {{shelf}}", "a question is needed"),
        ("%llama index new --drop docs", "--drop deletes the whole index"),
        ("%llama index new {{shelv}}/*.md", "did you mean 'shelf'?"),
        ("%%llama --rag shelf\nWhy?", "The variable is written {{shelf}}."),
        ("%%llama --rag {{shelf}} --mode text\nWhy?", "takes no mode"),
        ("%llama search {{shelf}} --mode text why", "takes no mode"),
    ],
)
def test_mistakes_are_told_in_a_line(shelf: Kernel, cell: str, said: str) -> None:
    shelf.run("NOTHING = 7")
    result = shelf.finish(shelf.start(cell))
    assert not result.ok
    assert said in result.error
    assert len(result.error.splitlines()) == 1


def test_what_cannot_be_moved_is_refused(use: Callable[[str], Kernel]) -> None:
    kernel = use("mamba")
    kernel.run(SHELF)
    result = kernel.finish(kernel.start("%%llama --rag {{shelf}} --reuse fused\nWhy?"))
    assert "CannotFuse" in result.error
    assert "recurrent" in result.error
    kernel.run("%%llama --rag {{shelf}} -n 2\nWhy?")


def test_a_question_may_end_in_its_mark(shelf: Kernel) -> None:
    shown = shelf.run("pass\nif True:\n    %llama search {{shelf}} -k 1 what are the rooms?\n").bundles[-1]
    assert "1 chunk for “what are the rooms?”" in shown["text/plain"]
    shelf.run('text = """\n%llama search what?\n"""')
    assert shelf.value("text") == "\n%llama search what?\n"
    for line in ("%llama search?", "%llama search ?", "%llama help search"):
        assert "NAME QUESTION" in shelf.run(line).printed
    assert "%llama cache ls" in shelf.run("%llama cache ls?").printed
    shelf.run("%llama?")
    shelf.run("%reload_ext ipyllama")
    find = "[each.__name__ for each in get_ipython().input_transformer_manager.token_transformers].count('Asked')"
    assert shelf.value(find) == 1


def test_an_index_that_cannot_be_opened_can_be_dropped(kernel: Kernel) -> None:
    kernel.run(
        "from ipyllama.rag import Index\nnamed = Index.create('odd', {'a': 'text'}, embed=lambda t: [[1.0]] * len(t))"
    )
    kernel.run("%llama index odd --drop")
    kernel.run("named = Index.create('odd', {'a': 'text'}, embed=lambda t: [[1.0]] * len(t))")
    kernel.run("(named.folder / 'index.json').write_text('damaged')")
    assert "cannot be read" in kernel.finish(kernel.start("%llama index odd")).error
    kernel.run("%llama index odd --drop")
    assert kernel.value("'odd' in Index.names()") is False
    assert "no index 'odd'" in kernel.finish(kernel.start("%llama index odd --drop")).error


def test_a_table_without_texts_makes_no_index(
    new_kernel: Callable[..., Kernel], tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    kernel = new_kernel(IPYLLAMA_PREFIX_DIR=str(tmp_path / "kept"))
    kernel.run("%load_ext ipyllama\nimport pandas\nfrom ipyllama.rag import Index")
    kernel.run("table = pandas.DataFrame({'notes': ['rain', 'sun']})")
    line = f'%llama index weather {{{{table}}}} --embed "{tiny("bert")}"'
    assert "a table needs a column 'text'" in kernel.fail(line).error
    assert "weather" not in kernel.value("Index.names()")
    kernel.run("table = table.rename(columns={'notes': 'text'})")
    kernel.run(line)
    kernel.run("table = table.rename(columns={'text': 'notes'})")
    kernel.fail(line)
    assert "weather" in kernel.value("Index.names()")


def test_the_first_index_of_a_kernel_says_that_it_takes_a_while(
    new_kernel: Callable[..., Kernel], tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    def start() -> Kernel:
        kernel = new_kernel(IPYLLAMA_PREFIX_DIR=str(tmp_path / "kept"))
        kernel.run(f'%load_ext ipyllama\n%llama load "{tiny("llama")}" --threads 1')
        return kernel

    (tmp_path / "a.txt").write_text("Cats purr.")
    line = f'%llama index pets "{tmp_path}/a.txt" --embed "{tiny("bert")}"'
    for cell in (line, "%llama search pets -k 1 cats", "%%llama --rag pets -n 2 -k 1\nWhat do cats do?"):
        kernel = start()
        texts = [bundle["text/plain"] for bundle in kernel.run(cell, "a").bundles]
        assert texts[0].startswith("loading LanceDB"), cell
        assert not any("LanceDB" in text for text in texts[1:])
        assert len(texts) > 1
    again = kernel.run("%llama search pets -k 1 cats")
    assert [bundle["text/plain"].splitlines()[0] for bundle in again.bundles] == ["1 chunk for “cats”"]
    kernel.fail("%llama search other -k 1 cats")
    assert "a" in kernel.run("!echo a").printed
    assert "fork" not in kernel.run("!echo a").printed  # LanceDB warns of forks
    kernel = start()
    assert kernel.fail("%%llama --rag other -n 2\nWhat?").bundles == []


def test_tab_completes(kernel: Kernel) -> None:
    assert "%%llama --rag" in kernel.complete("%%llama --ra")
    assert "%%llama --rag x --mode vector" in kernel.complete("%%llama --rag x --mode v")
    assert "%llama index" in kernel.complete("%llama ind")
    assert "%%llama --reuse fused" in kernel.complete("%%llama --reuse f")


INDEX = f"""
import sys, tempfile, time
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from ragwords import Words
from ipyllama.rag import Index

class Slow(Words):
    def __call__(self, texts):
        time.sleep(0.05)
        print("batch")
        return super().__call__(texts)

Slow.__qualname__ = "Words"
documents = [(f"d{{i}}", f"document {{i}} " + " ".join(f"w{{i}}x{{j}}" for j in range(300))) for i in range(60)]
place = tempfile.mkdtemp()
index = Index.create("big", [], location=place, embed=Slow(), chunk_tokens=64, overlap=0)
whole = Index.create("whole", documents, location=place, embed=Words(), chunk_tokens=64, overlap=0)
"""


def test_stop_keeps_what_was_indexed(kernel: Kernel) -> None:
    kernel.run(INDEX)
    cell = kernel.start("added = index.add(documents)")
    so_far = kernel.wait_for_print(cell, "batch\nbatch\nbatch")
    kernel.interrupt()
    stopped = kernel.finish(cell, so_far)
    assert "KeyboardInterrupt" in stopped.error
    assert 0 < kernel.value("len(index)") < kernel.value("len(whole)")
    kernel.run("added = index.add(documents)")
    assert kernel.value("0 < added.embedded < len(whole)")
    assert kernel.value("index.sources() == whole.sources() and len(index) == len(whole)")
