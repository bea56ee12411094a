"""`%llama` tree, goto, rm, rename, undo, history, copy, export and resume: what they do, say and refuse."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from shutil import copyfile

import pytest
from kernel.session import Kernel

SESSION = "get_ipython().magics_manager.registry['LlamaMagics'].session"


@pytest.fixture
def talk(bigram: Kernel) -> Kernel:
    """Two turns of which the first has a name, and a fork."""
    bigram.run("%%llama -n 3 --name start\na", "one")
    bigram.run("%%llama -n 3\nb", "two")
    bigram.run("%%llama -n 3 --after start --name other\nc", "three")
    return bigram


def path(kernel: Kernel) -> list[str]:
    return list(kernel.value(f"[turn.message for turn in {SESSION}.conversation().path()]"))


def test_goto_says_where_the_next_cell_continues(talk: Kernel) -> None:
    assert talk.run("%llama goto 2").text == "the next cell continues from turn 2; %llama undo goes back"
    assert path(talk) == ["a", "b"]
    assert talk.run("%llama goto 2").text == "the next cell continues from turn 2 already"
    assert "turn 1 (start)" in talk.run("%llama goto start").text
    talk.run("%llama goto none")
    assert path(talk) == []
    talk.run("%llama undo")
    assert path(talk) == ["a"]


def test_rm_says_what_is_gone(talk: Kernel) -> None:
    assert "turn 1 (start) and 2 turns that continued it forgotten" in talk.run("%llama rm start").text
    assert talk.value(f"{SESSION}.conversation().all_turns") == ()
    talk.run("%llama undo")
    assert path(talk) == ["a", "c"]


def test_rename_moves_a_name(talk: Kernel) -> None:
    assert talk.run("%llama rename 2 other").text == "turn 2 is called other now"
    talk.run("%llama goto other")
    assert path(talk) == ["a", "b"]
    assert talk.run("%llama rename other none").text == "turn 2 is without a name now"


def test_a_name_given_later_outlives_a_re_run(talk: Kernel) -> None:
    talk.run("%llama rename 2 draft")
    talk.run("%%llama -n 3\nbb", "two")
    talk.run("%llama goto draft")
    assert path(talk) == ["a", "bb"]


def test_history_copy_and_export_tell_the_way_to_the_head(talk: Kernel, tmp_path: Path) -> None:
    shown = talk.run("%llama history").text
    assert all(text in shown for text in ("user: a", "user: c"))
    assert "user: b" not in shown
    assert "messages, as OpenAI-style dicts" in talk.run("%llama copy kept").text
    messages = talk.value("kept")
    assert [message["role"] for message in messages] == ["user", "assistant"] * 2
    assert messages[2]["content"] == "c"
    talk.run(f'%llama export "{tmp_path / "talk.json"}"\n%llama export "{tmp_path / "talk.md"}"')
    assert json.loads((tmp_path / "talk.json").read_text()) == messages
    told = (tmp_path / "talk.md").read_text()
    assert all(text in told for text in ("## 1 · start", "> a", "## 3 · other", "> c"))


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("goto 9", "UnknownTurn: no turn is called '9'"),
        ("goto strat", "did you mean 'start'"),
        ("rm nothing", "UnknownTurn"),
        ("rename 1", "BadOption: a turn and its new name are needed"),
        ("rename 1 7", "BadOption: '7' cannot be the name of a turn"),
        ("copy 1x", "BadOption: '1x' cannot be the name of a variable"),
        ("copy class", "BadOption: 'class' cannot be the name of a variable"),
        ("export talk.doc", "BadOption: talk.doc ends in neither .md nor .json"),
        ("export /nowhere/talk.md", "cannot be written"),
        ("tree --chat none-such", "no conversation with tiny-llama-bigram is called 'none-such'"),
        ("resume x", "BadOption: a whole number is needed: got 'x'"),
        ("resume", "conversations are not kept here: IPYLLAMA_PREFIX_DIR has to name a folder"),
    ],
)
def test_what_cannot_be_done_is_one_line(talk: Kernel, line: str, error: str) -> None:
    shown = talk.fail(f"%llama {line}").error
    assert error in shown
    assert len(shown.splitlines()) == 1
    assert path(talk) == ["a", "c"]


def test_a_turn_does_not_continue_itself(talk: Kernel) -> None:
    shown = talk.fail("%%llama -n 3 --after other\nagain", "one").error
    assert "'other' continues what was answered here before" in shown
    assert path(talk) == ["a", "c"]


def test_commands_mean_the_conversation_that_a_cell_asked_in_last(bigram: Kernel) -> None:
    bigram.run("%%llama -n 3 --reset\na", "one")
    bigram.run("%%llama -n 3 --chat aside --reset\nb", "two")
    bigram.run("%%llama -n 3 --raw\nno conversation", "three")
    assert path(bigram) == ["b"]
    assert "the next cell with --chat aside continues from turn 1" in bigram.run("%llama goto 1").text
    bigram.run("%%llama -n 3 --chat aside --after none\nc", "four")
    assert "forgot 2 turns: the next cell with --chat aside begins" in bigram.run("%llama reset").text
    assert "● 1" in bigram.run("%llama tree --chat default").text
    bigram.fail("%%llama -n 3 --chat default --reset --after 7\nd", "five")
    assert "nothing was said yet" in bigram.run("%llama tree").text, "it was forgotten all the same"


def test_one_undo_takes_back_what_one_cell_did(talk: Kernel) -> None:
    talk.run("%%llama -n 3 --samples 3 -t 1 --name draft\nd", "four")
    assert talk.run("%llama tree").text.count("draft") == 3
    assert "draft" not in talk.run("%llama undo").text
    assert path(talk) == ["a", "c"]


def test_ctrl_c_in_a_command_is_one_line(talk: Kernel, tmp_path: Path) -> None:
    """Here in one that waits for somebody to read a pipe."""
    os.mkfifo(tmp_path / "talk.md")
    cell = talk.start(f'print("begun")\n%llama export "{tmp_path / "talk.md"}"')
    so_far = talk.wait_for_print(cell, "begun")
    time.sleep(0.5)
    talk.interrupt()
    result = talk.finish(cell, so_far)
    assert result.error == "Interrupted"
    assert path(talk) == ["a", "c"]


def test_names_with_quotes_can_be_written(talk: Kernel) -> None:
    talk.run(r'%llama rename start "say \"hi\""')
    (offered,) = talk.complete("%llama goto sa")
    assert "hi" in talk.run(offered).text
    assert path(talk) == ["a"]


def test_tab_offers_turns_and_chats(talk: Kernel) -> None:
    talk.run("%%llama -n 2 --chat aside\nz", "four")
    assert talk.complete("%llama tree --chat as") == ["%llama tree --chat aside"]
    talk.run("%%llama -n 2 --chat default --after start\nd", "five")
    assert talk.complete("%%llama --after st") == ["%%llama --after start"]
    assert talk.complete("%llama goto o") == ["%llama goto other"]


def test_other_weights_under_the_same_name_are_told(
    new_kernel: Callable[..., Kernel], tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    """What was said goes on with them; the next time they are the same."""
    model = tmp_path / "mine.gguf"

    def start(arch: str) -> Kernel:
        copyfile(tiny(arch), model)
        kernel = new_kernel(IPYLLAMA_PREFIX_DIR=str(tmp_path / "kept"))
        kernel.run(f'%load_ext ipyllama\n%llama load "{model}" --threads 1')
        return kernel

    def resume(kernel: Kernel) -> str:
        return "\n".join(bundle["text/plain"] for bundle in kernel.run("%llama resume").bundles)

    kernel = start("llama-bigram")
    assert "there is no saved conversation 'default' of this notebook" in kernel.fail("%llama resume").error
    kernel.run("%%llama -n 3\na", "one")
    kernel = start("llama")
    resumed = resume(kernel)
    assert "resumed what was left just now" in resumed
    assert "mine has other weights than then" in resumed
    kernel.run("%%llama -n 3\nb", "two")
    assert path(kernel) == ["a", "b"]
    kernel = start("llama")
    assert "other weights" not in resume(kernel)
    assert path(kernel) == ["a", "b"]
