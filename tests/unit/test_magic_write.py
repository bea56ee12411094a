"""Cells written from turns ask what the turns asked: written, then read as `%%llama` reads them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipyllama.chat import Turn
from ipyllama.chat.turn import Place
from ipyllama.ledger import Ledger
from ipyllama.magics.body import insert_variables
from ipyllama.magics.options import parse_cell_line
from ipyllama.magics.parser import split_line
from ipyllama.magics.write import quoted, write_cells
from ipyllama.options import GenerateOptions
from ipyllama.reply import Reply


def turn(message: str, parent: Turn | None = None, **place: Any) -> Turn:
    return Turn.of(Reply("said"), Place(message=message, parent=parent, **place), Ledger())


def read(cells: list[str]) -> list[tuple[Any, str, dict[str, Any]]]:
    """The options, the message and the variables of each cell, as a notebook that runs them has them."""
    namespace: dict[str, Any] = {}
    found = []
    for cell in cells:
        if not cell.startswith("%%llama"):
            exec(cell, namespace)
            continue
        line, _, body = cell.partition("\n")
        found.append((parse_cell_line(line.removeprefix("%%llama")), insert_variables(body, namespace)[0], namespace))
    return found


def test_plain_turns() -> None:
    first = turn("What is rain?")
    assert write_cells([first, turn("And snow?", first)]) == [
        "%%llama --after none\nWhat is rain?",
        "%%llama\nAnd snow?",
    ]
    assert write_cells([first], "my review") == ['%%llama --chat "my review" --after none\nWhat is rain?']
    assert write_cells([]) == []


@given(st.text(min_size=1))
def test_a_message_comes_back(message: str) -> None:
    ((_, body, _),) = read(write_cells([turn(message)]))
    assert body == message


@pytest.mark.parametrize("message", ["{{x}}", "\\{{x}}", "{{x}} {{ x['a'] }}", "%%llama", "a\n%%llama --reset\nb"])
def test_braces_are_not_replaced(message: str) -> None:
    cells = write_cells([turn(message)])
    assert insert_variables(cells[0].partition("\n")[2], {"x": "wrong"})[0] == message


@given(st.text(min_size=1).filter(str.strip))
def test_a_system_prompt_comes_back(system: str) -> None:
    ((args, _, names),) = read(write_cells([turn("Hi", system=system)]))
    assert insert_variables(args.system, names)[0] == system


def test_a_system_prompt_is_written_where_it_changes() -> None:
    one = turn("a", system="Be brief.")
    two = turn("b", one, system="Be brief.")
    three = turn("c", two, system="Rhyme.")
    first, second, third = write_cells([one, two, three])
    assert '--system "Be brief."' in first
    assert "--system" not in second
    assert "--system Rhyme." in third


def test_options_come_back() -> None:
    options = GenerateOptions(
        temperature=0.8, top_k=3, max_tokens=7, seed=5, stop=("\n\n", "a b"), grammar='root ::= "a"\n', reuse="token",
        logit_bias=((42, -1.5), (" Paris", 3.0)), repeat_penalty=1.25, logprobs=5,
    )  # fmt: skip
    ((args, _, names),) = read(write_cells([turn("Hi", options=options, think=False)]))
    given_ = dict(args.overrides)
    given_["grammar"] = insert_variables(given_["grammar"], names)[0]
    assert GenerateOptions().replace_from(given_ | {"logprobs": 5}) == options
    assert args.think is False


@given(st.text(min_size=1).filter(lambda text: not (text.endswith("\\") and ("'" in text))))
def test_a_word_is_one_word(word: str) -> None:
    assert split_line(f"--x {quoted(word)} --y") == ["--x", word, "--y"]
