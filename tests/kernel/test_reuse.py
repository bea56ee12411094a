"""KV stays in the kernel: each cell computes its own words. Everything here is counted, nothing is timed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from kernel.session import Kernel

ARCHS = ("llama", "gemma3", "mamba", "lfm2", "jamba")
"""Full attention, a window, recurrent, two hybrids: all keep what an appended turn continues from."""
NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "01_quickstart.ipynb"


def ask(kernel: Kernel, name: str, text: str, *, cell: str | None = None, options: str = "-n 20") -> dict[str, Any]:
    """Run a cell `name` and give back its text, counts and ledger."""
    kernel.run(f"%%llama --out {name} {options}\n{text}", cell or name)
    answer = f"dict(text={name}.text, ledger={name}.ledger.tokens, prompt={name}.usage.prompt, notes={name}.notes)"
    return kernel.value(answer) | kernel.usage(name)


@pytest.mark.parametrize("arch", ARCHS)
def test_each_cell_computes_its_own_words(use: Callable[[str], Kernel], arch: str) -> None:
    kernel = use(arch)
    earlier = ask(kernel, "first", "How many legs has a cat?")
    assert (earlier["reused"], earlier["restored"], earlier["computed"]) == (0, 0, earlier["prompt"])
    for name in ("second", "third"):
        later = ask(kernel, name, f"And a {name} one?")
        assert later["ledger"][: len(earlier["ledger"])] == earlier["ledger"]
        # the last token of an answer was sampled and not yet evaluated
        new = later["prompt"] - len(earlier["ledger"]) + 1
        assert (later["reused"], later["restored"], later["computed"]) == (len(earlier["ledger"]) - 1, 0, new)
        assert later["notes"] == ()
        earlier = later


def test_each_cell_of_the_first_notebook(smol: Kernel) -> None:
    cells = [c for c in nbformat.read(NOTEBOOK, as_version=4).cells if c.cell_type == "code"]
    questions = [cell for cell in cells if cell.source.startswith("%%llama")][:3]
    assert len(questions) == 3
    length = 0
    for number, cell in enumerate(questions):
        smol.run(cell.source.replace("%%llama", "%%llama -n 40", 1), cell.id)
        name = cell.source.split("--out ")[1].split()[0]
        usage = smol.usage(name)
        prompt = sum(usage.values()) - usage["generated"]
        if number:
            assert (usage["reused"], usage["restored"]) == (length - 1, 0)
            assert usage["computed"] == prompt - usage["reused"]
        length = smol.value(f"len({name}.ledger)")


@pytest.mark.parametrize("arch", ARCHS)
def test_running_a_cell_again_answers_again_from_the_same_point(use: Callable[[str], Kernel], arch: str) -> None:
    kernel = use(arch)
    ask(kernel, "first", "How many legs has a cat?")
    once = ask(kernel, "second", "And a dog?")
    again = ask(kernel, "second", "And a dog?")
    assert again["text"] == once["text"]
    assert again["ledger"] == once["ledger"]
    assert again["computed"] == 1  # the last token of the prompt, for fresh logits
    assert again["reused"] + again["restored"] == again["prompt"] - 1
    assert kernel.value("second.parent is first")
    # a new cell goes on behind it
    third = ask(kernel, "third", "And a bird?")
    assert kernel.value("third.parent is second")
    assert third["ledger"][: len(again["ledger"])] == again["ledger"]


def test_an_edited_cell_answers_from_the_same_point(use: Callable[[str], Kernel]) -> None:
    kernel = use("llama")
    first = ask(kernel, "first", "How many legs has a cat?")
    ask(kernel, "second", "And a dog?")
    edited = ask(kernel, "edited", "And a spider?", cell="second")
    assert kernel.value("edited.parent is first, [t.message for t in edited.path]") == (
        True,
        ["How many legs has a cat?", "And a spider?"],
    )
    assert edited["reused"] == len(first["ledger"])
    third = ask(kernel, "third", "And a bird?")
    assert kernel.value("third.parent is edited")
    assert third["reused"] == len(edited["ledger"]) - 1


def test_turns_that_built_on_a_changed_answer_are_named(use: Callable[[str], Kernel]) -> None:
    kernel = use("llama")
    ask(kernel, "first", "How many legs has a cat?")
    ask(kernel, "second", "And a dog?")
    edited = ask(kernel, "edited", "How many legs has an ant?", cell="first")
    assert len(edited["notes"]) == 1
    assert '"And a dog?"' in edited["notes"][0]
    # running it again brings it up to date: it goes on from the new answer of the cell before it
    ask(kernel, "second", "And a dog?")
    assert kernel.value("second.parent.message") == "How many legs has an ant?"


def test_cells_without_an_id_append(use: Callable[[str], Kernel]) -> None:
    """A terminal, nbclient and papermill give no cell ids."""
    kernel = use("llama")
    for name in ("one", "two"):
        kernel.run(f"%%llama -n 5 --out {name}\nThe same words.")
    assert kernel.value("two.parent is one")


def test_conversations_wait_in_memory(use: Callable[[str], Kernel]) -> None:
    """Another conversation pushes the first out of the context, and it comes back with one copy."""
    kernel = use("llama")
    first = ask(kernel, "first", "How many legs has a cat? " * 5)
    ask(kernel, "other", "Something else entirely. " * 5, options="-n 5 --chat other")
    second = ask(kernel, "second", "And a dog?")
    assert (second["reused"], second["restored"]) == (0, len(first["ledger"]) - 1)
    assert second["computed"] == second["prompt"] - second["restored"]


def test_the_answer_does_not_depend_on_what_was_reused(
    use: Callable[[str], Kernel], tiny: Callable[[str], Path]
) -> None:
    """A conversation outlives its model: loaded again, it computes everything and answers the same."""
    kernel = use("llama")
    for name in ("first", "second", "third"):
        grown = ask(kernel, name, f"Tell me the {name} thing.")
    kernel.run(f'%llama unload\n%llama load "{tiny("llama")}" --threads 1')
    cold = ask(kernel, "third", "Tell me the third thing.")
    assert grown["computed"] < cold["computed"] == cold["prompt"]
    assert cold["ledger"] == grown["ledger"]


@pytest.mark.parametrize("more", ["", "--samples 2"])
def test_another_question_about_a_variable_computes_the_question(smol: Kernel, more: str) -> None:
    smol.run("document = 'The red fox met a dog near the trees and told it of the river. ' * 20")
    smol.run("%%llama -n 2 --out first --after none\n{{document}}\n\nWho met whom?", "one")
    answer = "found[0]" if more else "found"
    smol.run(f"%%llama -n 2 --out found --after none {more}\n{{{{document}}}}\n\nWhere was that?", "three")
    usage = smol.usage(answer)
    assert usage["reused"] > 300
    assert usage["computed"] < 20
