"""An answer arrives while it is written, whole characters only, and ends as a bundle that every front end can show."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from kernel.session import Kernel, sent

FOOTER = "\n\n— "


def answer(text: str) -> str:
    """The text without the footer, which only the last state has, and without the line ends around it."""
    return text.partition(FOOTER)[0].strip("\n")


def test_text_arrives_while_it_is_written(smol: Kernel) -> None:
    result = smol.run("%%llama --raw -t 0 -n 80\n1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17")
    shown = result.of("display_data", "update_display_data")
    assert [m["header"]["msg_type"] for m in shown] == ["display_data", *["update_display_data"] * (len(shown) - 1)]
    assert len({m["content"]["transient"]["display_id"] for m in shown}) == 1
    # in the client's hands, one after the other, before the cell was done
    arrived = [m["arrived"] for m in shown if m["arrived"] < sent(result.reply)]
    assert len(arrived) >= 4
    texts = [answer(bundle["text/plain"]) for bundle in result.bundles]
    assert all(after.startswith(before) for before, after in pairwise(texts))
    assert len(set(texts)) >= 4
    assert not result.printed


def test_updates_are_throttled(bigram: Kernel) -> None:
    """Thousands of tokens a second come as twenty updates a second."""
    result = bigram.run("%%llama --raw -n 3000\nabc")
    shown = result.of("display_data", "update_display_data")
    seconds = (sent(shown[-1]) - sent(shown[0])).total_seconds()
    assert len(shown) <= 20 * seconds + 2  # the first and the last come when they come
    assert answer(result.text).count("abcdefghijklmnopqrstuvwxyz") > 100


def test_the_end_has_text_markdown_and_html(bigram: Kernel) -> None:
    result = bigram.run("%%llama --raw -n 200\nabc")
    assert all(set(bundle) == {"text/plain", "text/markdown"} for bundle in result.bundles[:-1])
    last = result.bundles[-1]
    assert set(last) == {"text/plain", "text/markdown", "text/html"}
    for form in last.values():
        assert "defghijklmnopqrstuvwxyz abcdef" in form
        assert "4 prompt tokens: " in form
        assert " reused, 0 restored, " in form
        assert " computed · first token " in form
    assert "<script" not in last["text/html"]


def test_no_stream_shows_the_answer_once(bigram: Kernel) -> None:
    result = bigram.run("%%llama --raw -n 200 --no-stream\nabc")
    assert [m["header"]["msg_type"] for m in result.of("display_data", "update_display_data")] == ["display_data"]
    assert set(result.bundles[0]) == {"text/plain", "text/markdown", "text/html"}


def test_characters_of_many_bytes_never_show_broken(use: Callable[[str], Kernel]) -> None:
    """Each token of this model is one byte, so that nearly every step ends inside a character."""
    kernel = use("llama-bytes")
    for length in range(1, 10):  # also where -n cuts inside a character
        result = kernel.run(f"%%llama --raw -n {length} --out answer\n:")
        assert "\N{REPLACEMENT CHARACTER}" not in "".join(form for b in result.bundles for form in b.values())
        whole = "é漢🙂".encode()[:length].decode("utf-8", "ignore")
        assert kernel.value("answer.text") == whole
        assert answer(result.text) == whole or not whole
    result = kernel.run("%%llama --raw -n 2000 --out answer\n:")
    assert len(result.bundles) > 3
    for bundle in result.bundles:
        assert set(answer(bundle["text/plain"])) <= set("é漢🙂")
    assert kernel.value("len(answer.tokens)") == 2000


def test_the_kernel_answers_while_all_threads_compute(smol: Kernel) -> None:
    smol.run("%llama unload\n%llama load smollm2")  # as many threads as there are cores
    running = smol.start("%%llama --raw -t 0 -n 60\nOnce upon a time there was")
    shown = smol.wait_for_words(running)
    for _ in range(3):
        assert smol.ping()
        answered = sent(smol.control())
    result = smol.finish(running, shown)
    assert answered < sent(result.of("update_display_data")[-1])
