"""Stop in the views, as JupyterLab says it, whatever the version of ipykernel: `make ipykernels` tries several.

Stop of a live answer is that of the notebook: test_interrupt.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from kernel.session import Kernel, Result

FRONT = "get_ipython().magics_manager.registry['LlamaMagics'].front"
SETUP = """
import time, ipyllama
from itertools import islice
from ipyllama.widgets.view import WidgetView
(llm,) = ipyllama.loaded()
get_ipython().magics_manager.registry["LlamaMagics"].front.greet()
chat = get_ipython().magics_manager.registry['LlamaMagics'].session.chat(llm, None, "")
endless = dict(max_tokens=4000, temperature=0, logit_bias={llm.vocab.eos: float("-inf")})
def writing():
    time.sleep(0.5)  # until the map shows this answer, and not the one before
    return running() and llm.kv().count("generated") > 3
def running(): return any(getattr(view, "_job", None) is not None for view in WidgetView._all)
"""
ASK_AND_STOP = """
chat.reset()
job = chat.start("Count.", logprobs=3, **endless)
list(islice(job, 10)), job.cancel(), job.wait()
other = next(each.id for each in job.reply.logprobs[0].top if each.id != job.reply.tokens[0])
job.reply.token_view()
"""
WAIT = """
print("begun")
end = time.time() + 60
while not ({}) and time.time() < end:
    time.sleep(0.05)
print(time.time() < end)
"""
BUSY = pytest.mark.parametrize("busy", [False, True], ids=["between_cells", "while_a_cell_runs"])


@pytest.fixture(scope="module")
def notebook(kernel: Kernel, smollm2: Path) -> Kernel:
    """The module's kernel, SmolLM2 answering; cells have ids."""
    kernel.run(f'%llama load "{smollm2}" --threads 1\n{SETUP}', cell="load")
    return kernel


def slot(shown: Result) -> str:
    return shown.bundles[-1]["text/html"].partition('data-ipyllama="')[2].partition('"')[0]


def while_a_cell_runs(kernel: Kernel, until: str) -> Callable[[], None]:
    """A cell that runs until this is so; what is returned asserts that it came while the cell ran."""
    started = kernel.start(WAIT.format(until))
    shown = kernel.wait_for_print(started, "begun")

    def came() -> None:
        assert kernel.finish(started, shown).printed.split() == ["begun", "True"]

    return came


def stop(kernel: Kernel, place: str, turns: int, *, busy: bool) -> None:
    """Stop the answer that is written in a view; it becomes a turn, interrupted."""
    kernel.wait_until("writing()")
    came = while_a_cell_runs(kernel, f"len(chat.all_turns) == {turns}") if busy else lambda: None
    kernel.say(place, kind="stop")
    came()
    kernel.wait_until(f"len(chat.all_turns) == {turns} and not running()")
    assert kernel.value("chat.head.finish_reason, len(chat.head.tokens) < 4000") == ("interrupted", True)


def test_the_version_is_the_one_that_is_meant(notebook: Kernel) -> None:
    found = notebook.value("__import__('ipykernel').__version__")
    assert found == os.environ.get("IPYLLAMA_IPYKERNEL", found)


def test_a_front_end_is_heard_while_a_cell_runs(notebook: Kernel) -> None:
    came = while_a_cell_runs(notebook, f"{FRONT}.can_show")
    notebook.say("answers", kind="hello")
    came()


@BUSY
def test_in_the_panel(notebook: Kernel, busy: bool) -> None:
    place = slot(notebook.run("chat.reset()\nchat.panel(**endless)", cell="panel"))
    for said in ({}, {"slot": "nobody", "content": {}}, {"slot": place}, {"slot": place, "content": "ask"}):
        notebook.client.control_channel.send(notebook.client.session.msg("ipyllama_say", said))
    notebook.say(place, kind="ask", text="Write down all the numbers that you know.", after=None)
    stop(notebook, place, 1, busy=busy)


@BUSY
def test_a_branch_at_a_token(notebook: Kernel, busy: bool) -> None:
    place = slot(notebook.run(ASK_AND_STOP, cell="tokens"))
    notebook.say(place, kind="branch", answer=0, at=0, token=notebook.value("other"))
    stop(notebook, place, 2, busy=busy)


def test_a_branch_that_a_cell_waits_behind(notebook: Kernel) -> None:
    """The cell could not end before the branch, and the branch not before the cell."""
    place = slot(notebook.run(ASK_AND_STOP, cell="tokens"))
    notebook.say(place, kind="branch", answer=0, at=0, token=notebook.value("other"))
    notebook.wait_until("writing()")
    waiting = notebook.start("%%llama -n 3 --raw --plain\nHello")
    shown = notebook.wait_for(waiting, "waiting: 1 answer ahead")
    notebook.say(place, kind="stop")
    assert notebook.finish(waiting, shown).ok
    notebook.wait_until("len(chat.all_turns) == 2 and not running()")


def test_nobody_is_heard_after_unload(notebook: Kernel) -> None:
    assert notebook.value("'ipyllama_say' in get_ipython().kernel.control_handlers")
    notebook.run("%unload_ext ipyllama")
    assert not notebook.value("'ipyllama_say' in get_ipython().kernel.control_handlers")
