"""What people do to cells, in a real kernel: copy, split, delete, move, run all, restart, resume, kill."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kernel.session import Kernel

NewKernel = Callable[..., Kernel]


class Page:
    """A notebook in a kernel: `run(cell, text)` asks in that cell."""

    def __init__(self, new_kernel: NewKernel, model: Path, folder: Path) -> None:
        self._new, self._model, self._folder = new_kernel, model, folder
        self.restart()

    def restart(self) -> None:
        self.kernel = self._new(IPYLLAMA_PREFIX_DIR=str(self._folder))
        load = f'%load_ext ipyllama\n%llama load "{self._model}" --threads 1'
        self.kernel.run(f"get_ipython().config.Llama.replay = False\n{load}")

    def run(self, cell: str | None, text: str, options: str = "") -> str:
        """The footer below the answer, as text."""
        return self.kernel.run(f"%%llama -n 6 {options}\n{text}", cell).text

    def turns(self) -> list[tuple[str | None, str]]:
        """Cell and question of every turn, in their order."""
        return self._value("[(t.cell, t.message) for t in chat.all_turns]")

    def path(self) -> list[str]:
        """Questions up to the head."""
        return self._value("[t.message for t in chat.path()]")

    def stale(self) -> list[str]:
        return self._value("[t.message for t in chat.stale]")

    def usage(self) -> tuple[int, int]:
        """Prompt tokens and computed tokens of the newest answer."""
        return self._value("(chat.head.usage.prompt, chat.head.usage.computed)")

    def _value(self, expression: str) -> Any:
        session = "get_ipython().magics_manager.registry['LlamaMagics'].session"
        return self.kernel.value(f"(lambda chat: {expression})({session}.conversation())")


@pytest.fixture
def page(new_kernel: NewKernel, tiny: Callable[[str], Path], tmp_path: Path) -> Page:
    page = Page(new_kernel, tiny("llama"), tmp_path)
    for cell, text in (("a", "one"), ("b", "two"), ("c", "three")):
        page.run(cell, text)
    return page


def test_a_copied_cell_is_a_new_turn_after_the_head(page: Page) -> None:
    page.run("copy-of-a", "one")
    assert page.path() == ["one", "two", "three", "one"]
    assert page.stale() == []


def test_a_split_cell_answers_its_half_and_the_other_half_continues(page: Page) -> None:
    footer = page.run("b", "tw")
    assert 'these built on the earlier answer, run them again to bring them up to date: "three"' in footer
    page.run("b2", "o")
    assert page.path() == ["one", "tw", "o"]
    assert page.turns() == [("a", "one"), ("b", "tw"), ("c", "three"), ("b2", "o")]
    assert page.stale() == ["three"]


def test_a_deleted_cell_leaves_its_turn_until_it_is_removed(page: Page) -> None:
    page.run("d", "four")
    assert page.path() == ["one", "two", "three", "four"]
    page.kernel.run("%llama rm 2")
    assert page.path() == ["one"]
    page.kernel.run("%llama undo")
    assert page.path() == ["one", "two", "three", "four"]


def test_moved_cells_answer_from_the_same_points(page: Page) -> None:
    """Where a cell stands on the page says nothing; what it continued does."""
    for cell, text in (("c", "three"), ("a", "one"), ("b", "two")):
        page.run(cell, text)
    assert page.path() == ["one", "two"]
    assert page.stale() == []
    assert page.turns() == [("a", "one"), ("b", "two"), ("c", "three")]


def test_run_all_after_an_edit_brings_everything_up_to_date(page: Page) -> None:
    page.run("a", "uno")
    assert page.stale() == ["two", "three"]
    tree = page.kernel.run("%llama tree").text
    assert tree.count("stale") == 2
    for cell, text in (("b", "two"), ("c", "three")):
        page.run(cell, text)
    assert page.path() == ["uno", "two", "three"]
    assert page.stale() == []


def test_run_all_above_leaves_the_rest_and_the_head_is_what_ran_last(page: Page) -> None:
    for cell, text in (("a", "one"), ("b", "two")):
        page.run(cell, text)
    page.run("new", "and then")
    assert page.path() == ["one", "two", "and then"]
    assert page.stale() == []


def test_restart_and_run_all_computes_no_prompt_again(page: Page) -> None:
    page.kernel.run("%llama cache flush")
    page.restart()
    for cell, text in (("a", "one"), ("b", "two"), ("c", "three")):
        page.run(cell, text)
        assert page.usage()[1] <= 1
    assert page.path() == ["one", "two", "three"]


def test_resume_continues_and_costs_a_restore(page: Page) -> None:
    page.run("c", "three", "--name end")
    page.kernel.run("%llama cache flush")
    page.restart()
    shown = page.kernel.run("%llama resume").text
    assert "three" in shown
    page.run("d", "four")
    assert page.path() == ["one", "two", "three", "four"]
    prompt, computed = page.usage()
    assert computed < prompt // 3
    page.run("b", "zwei")
    assert page.stale() == ["three", "four"]
    assert "end" in page.kernel.run("%llama tree").text


def test_names_of_conversations_that_no_file_can_have_are_kept_apart(page: Page) -> None:
    names = {"a/b": "uno", "a_b": "dos", "../default": "tres", " ": "cuatro"}
    for name, text in names.items():
        page.run(text, text, f'--chat "{name}"')
    page.restart()
    for name, text in names.items():
        page.kernel.run(f'%llama resume --chat "{name}"')
        assert page.path() == [text]
    page.kernel.run("%llama resume --chat default")
    assert page.path() == ["one", "two", "three"]


def test_killed_while_it_answers_a_conversation_resumes_where_it_was(page: Page) -> None:
    page.kernel.wait_for_words(page.kernel.start("%%llama -n 900\nfour", "d"))
    os.kill(page.kernel.process.pid, signal.SIGKILL)
    page.kernel.process.wait(60)
    page.restart()
    page.kernel.run("%llama resume")
    assert page.path() == ["one", "two", "three"]
    page.run("d", "four")
    assert page.path() == ["one", "two", "three", "four"]


def test_without_ids_each_execution_is_a_turn_and_a_name_says_which(page: Page) -> None:
    page.run(None, "x")
    page.run(None, "x")
    assert page.path() == ["one", "two", "three", "x", "x"]
    page.run(None, "y", "--name here")
    page.run(None, "z", "--name here")
    assert page.path() == ["one", "two", "three", "x", "x", "z"]


def test_two_kernels_on_a_notebook_disturb_nobody(page: Page, tiny: Callable[[str], Path], new_kernel) -> None:
    other = Page(new_kernel, tiny("llama"), page._folder)
    other.kernel.run("%llama resume")
    assert other.path() == ["one", "two", "three"]
    other.run("a", "uno")
    page.run("d", "four")
    assert other.path() == ["uno"]
    assert page.path() == ["one", "two", "three", "four"]
    assert page.stale() == []
