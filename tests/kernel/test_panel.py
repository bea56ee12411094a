"""`%llama chat` in a real kernel: static forms, one conversation with cells, and messages while a cell runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from kernel.session import Kernel

SESSION = "get_ipython().magics_manager.registry['LlamaMagics'].session"


@pytest.fixture
def chatting(new_kernel: Callable[[], Kernel], tiny: Callable[[str], Path]) -> Kernel:
    """A kernel with a conversation of one turn."""
    kernel = new_kernel()
    kernel.run(f'%load_ext ipyllama\n%llama load "{tiny("llama")}" --threads 1', cell="load")
    return kernel


def test_the_panel_shows_what_cells_said(chatting: Kernel) -> None:
    assert chatting.run("%llama chat").text.endswith("(nothing was said yet)")
    chatting.run("%%llama -n 5 --name one\nHello")
    shown = chatting.run("%llama chat").bundles[-1]
    assert set(shown) == {"text/plain", "text/html"}
    assert "> Hello" in shown["text/plain"]
    assert "turn 1 (one)" in shown["text/html"]
    chatting.run("%%llama -n 5 --chat other\nHi")
    assert "> Hi" in chatting.run("%llama chat").text  # the one in use
    assert "> Hello" in chatting.run("%llama chat default").text
    chatting.run("panel = _ = None\n%config Llama.widgets = False")
    assert "> Hello" in chatting.run("%llama chat default", cell="a").text
    assert chatting.run("%llama chat default", cell="a").of("comm_open") == []


def test_cells_and_the_panel_stay_in_one_conversation(chatting: Kernel) -> None:
    """Also where it had not begun when the panel was made, and where a cell begins it anew."""
    chatting.run(
        f"%config Llama.max_tokens = 4\n%config Llama.system = 'Be brief.'\npanel = {SESSION}.panel('new', 'S')"
    )
    assert chatting.value("panel.options.max_tokens") == 512
    chatting.run("%%llama --chat new\nHello")
    assert chatting.value("[turn.message for turn in panel.chat.turns], panel.chat.system") == (["Hello"], "Be brief.")
    chatting.run("%%llama --chat new --reset\nHi")
    assert chatting.value("[turn.message for turn in panel.chat.turns]") == ["Hi"]
    chatting.run("%llama reset --chat new")
    assert chatting.value("[turn.message for turn in panel.chat.turns]") == []
    assert chatting.value(f"{SESSION}.conversation('new') is panel.chat")


def test_cells_are_printed(chatting: Kernel) -> None:
    chatting.run("%%llama -n 5 -t 0\nHello {{nothing}}")
    chatting.run('%%llama -n 6 --system "It\'s me"\nAnd')
    printed = chatting.run("%llama chat --cells").printed
    assert printed == (
        "%%llama --after none --temperature 0.0 --max-tokens 5\nHello \\{{nothing}}\n\n"
        '%%llama --system "It\'s me" --max-tokens 6\nAnd\n'
    )
    assert chatting.fail("%llama chat nowhere --cells").error.startswith("ModelNotFound: no conversation")
    assert "%llama chat [NAME]" in chatting.run("%llama chat --help").printed
    assert chatting.complete("%llama cha") == ["%llama chat"]
    assert "%llama chat default" in chatting.complete("%llama chat def")
