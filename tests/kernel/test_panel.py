"""`%llama chat` in a real kernel: static forms, one conversation with cells, and messages while a cell runs."""

from __future__ import annotations

import time
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


def test_a_view_is_heard_while_a_cell_runs(chatting: Kernel) -> None:
    """As JupyterLab says it: on a comm of its own, on a subshell where the kernel has those."""
    shown = chatting.run("%llama chat", cell="a")
    slot = shown.bundles[-1]["text/html"].partition('data-ipyllama="')[2].partition('"')[0]
    assert slot == "a-0"
    session, client = chatting.client.session, chatting.client
    subshell = None
    if "kernel subshells" in chatting.control()["content"].get("supported_features", ()):
        client.control_channel.send(message := session.msg("create_subshell_request"))
        subshell = chatting._reply(client.get_control_msg, message["header"]["msg_id"])["content"]["subshell_id"]

    def send(kind: str, **content: object) -> None:
        message = session.msg(kind, {"comm_id": "say-1", **content})
        message["header"]["subshell_id"] = subshell
        client.shell_channel.send(message)

    chatting.run(f"import time\nturns = lambda: {SESSION}.conversation('default').turns")
    running = chatting.start("end = time.time() + 100\nwhile not turns() and time.time() < end:\n    time.sleep(0.05)")
    send("comm_open", target_name="ipyllama.say", data={})
    for data in ({}, {"slot": "b-0", "content": {}}, {"slot": slot}, {"slot": slot, "content": "ask"}):  # nobody's
        send("comm_msg", data=data)
    send("comm_msg", data={"slot": slot, "content": {"kind": "ask", "text": "Hello", "after": None}})
    chatting.finish(running)
    if subshell is not None:
        assert chatting.value("time.time() < end")  # the answer came while the cell waited for it
    wait_for(chatting, "[turn.message for turn in turns()] == ['Hello']")
    chatting.run("%unload_ext ipyllama")
    assert "ipyllama.say" not in chatting.value("sorted(__import__('comm').get_comm_manager().targets)")


def wait_for(kernel: Kernel, condition: str) -> None:
    end = time.monotonic() + 30
    while not kernel.value(condition):
        assert time.monotonic() < end, f"it never came: {condition}"
