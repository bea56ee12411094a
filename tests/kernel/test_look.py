"""`--show tokens`, `%llama tokens`, `branch` and `sample` in a real kernel."""

from __future__ import annotations

import re

from kernel.session import Kernel


def test_a_cell_shows_its_tokens(smol: Kernel) -> None:
    result = smol.run("%%llama --show tokens -n 8 -o reply\nName a river.", cell="a")
    answer, tokens = result.bundles[-2:]
    assert "prompt tokens" in answer["text/plain"]
    assert 'Tokens of the answer to "Name a river."' in tokens["text/plain"]
    assert re.search(r"\d tokens · perplexity \d", tokens["text/plain"])
    assert "<span title=" in tokens["text/html"]
    assert smol.value("[len(each.top) for each in reply.logprobs]") == [5] * smol.value("len(reply.tokens)")
    assert smol.run("%llama tokens").text == tokens["text/plain"]
    smol.run("%%llama -q --show tokens --logprobs 2 -n 3 -o quiet\nName a river.", cell="b")
    assert smol.value("[len(each.top) for each in quiet.logprobs]") == [2, 2, 2]


def test_quiet_shows_none_and_raw_does(smol: Kernel) -> None:
    assert not smol.run("%%llama -q --show tokens -n 3\nName a river.").bundles
    raw = smol.run("%%llama --raw --show tokens -n 3\nOnce upon a time").bundles[-1]
    assert "Tokens of an answer of" in raw["text/plain"]
    assert smol.run("%llama tokens").text == raw["text/plain"]


def test_without_widgets_only_the_static_form_is_shown(smol: Kernel) -> None:
    def slots(result) -> list[bool]:
        return ["ipyllama-slot" in bundle["text/html"] for bundle in result.bundles if "bits" in bundle["text/plain"]]

    cell = "%%llama --show tokens -n 3 -o reply\nName a river."
    assert slots(smol.run(cell, cell="a")) == [True]
    assert slots(smol.run(cell.replace("-n", "--plain -n"), cell="a")) == [False]
    assert slots(smol.run("reply.token_view()", cell="b")) == [True]
    smol.run("%config Llama.widgets = False")
    assert slots(smol.run(cell, cell="a")) == [False]
    assert slots(smol.run("%llama tokens", cell="b")) == [False]
    assert slots(smol.run("%llama sample x", cell="b")) == [False]
    smol.run("%config Llama.widgets = True")
    assert slots(smol.run("%llama sample x", cell="b")) == [True]


def test_what_was_interrupted_is_shown(bigram: Kernel) -> None:
    running = bigram.start("%%llama --raw --show tokens -n 900\nabc")
    shown = bigram.wait_for_words(running)
    bigram.interrupt()
    result = bigram.finish(running, shown)
    assert not result.ok
    assert "[interrupted]" in result.bundles[-2]["text/plain"]
    assert re.search(r"\d+ tokens? · perplexity", result.text)


def test_a_turn_that_was_not_asked_is_looked_at_all_the_same(smol: Kernel) -> None:
    smol.run("%%llama -n 6 --name river\nName a river.", cell="a")
    assert 'Tokens of the answer to "Name a river."' in smol.run("%llama tokens river").text
    assert smol.fail("%llama tokens rivr").error == "UnknownTurn: no turn is called 'rivr': did you mean 'river'?"


def test_branch_goes_on_from_there(smol: Kernel) -> None:
    smol.run("%%llama -n 12 -t 0 --show tokens --name river -o first\nName a river.", cell="a")
    result = smol.run('%llama branch river 0 " Paris" --name paris')
    assert result.text.startswith(" Paris") or result.text.startswith("Paris")
    assert re.search(r"\d+ prompt tokens: \d+ reused, 0 restored, [12] computed", result.text)
    assert "2 paris" in smol.run("%llama tree").text
    following = smol.run("%%llama -n 4 -o next\nAnd now?", cell="b")
    assert following.ok
    assert smol.value("(next.parent.name, next.parent.tokens[1:] != first.tokens[1:])") == ("paris", True)


def test_branch_says_what_it_needs(smol: Kernel) -> None:
    smol.run("%%llama -n 3\nName a river.", cell="a")
    for line in ("1", "1 x y", "1 0 two words"):
        error = smol.fail(f"%llama branch {line}").error
        assert error == (
            'BadOption: a turn, the number of a token and another one are needed, as in %llama branch 2 0 " Well"'
        )
    assert "the answer has tokens 0 to 2" in smol.fail("%llama branch 1 7 300").error


def test_sample_shows_the_stages(smol: Kernel) -> None:
    result = smol.run('%llama sample "The capital of France is" -t 1 --top-k 9')
    assert 'The next token after "The capital of France is"' in result.text
    assert "top-k 9: 9 left" in result.text
    assert "<table" in result.bundles[-1]["text/html"]
    drawn = smol.run('%llama sample "The capital of France is" --draw 3 -t 0')
    assert "The capital of France is Paris" in drawn.text
    smol.run("%%llama -n 4 -t 0\nName a river.", cell="a")
    assert "assistant" in smol.run("%llama sample").text
    assert "assistant" in smol.run("%llama sample --turn 1 --at 2").text
    assert "leave them out, or the text" in smol.fail("%llama sample x --at 2").error


def test_before_the_first_turn(smol: Kernel) -> None:
    for command in ("tokens", "sample"):
        assert smol.fail(f"%llama {command}").error == (
            "BadOption: there is no turn yet: ask something in a %%llama cell"
        )
