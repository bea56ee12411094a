"""`{{name}}` in a prompt."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipyllama.magics.body import insert_parts, insert_variables

NAMESPACE: dict[str, Any] = {
    "name": "Ann",
    "n": 3,
    "rows": ["first", "last"],
    "ages": {"Ann": 41, "a.b]": 1},
    "user": SimpleNamespace(name="Bo", tags=[{"k": "v"}]),
    "größe": 5,
    "braces": "{{name}}",
}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("Hi {{name}}!", "Hi Ann!"),
        ("{{ name }}{{\tn\t}}", "Ann3"),
        ("{{user.name}}", "Bo"),
        ("{{rows[0]}} {{rows[-1]}}", "first last"),
        ("{{ages['Ann']}} {{ages[\"Ann\"]}} {{ages['a.b]']}}", "41 41 1"),
        ("{{user.tags[0]['k']}}", "v"),
        ("{{größe}}", "5"),
        (r"\{{name}} and {{name}}", "{{name}} and Ann"),
        (r"\{{unknown}}", "{{unknown}}"),
        ("{{{name}}}", "{Ann}"),
        ("{{braces}}", "{{name}}"),  # what was inserted is not searched again
    ],
)
def test_variables_are_inserted(body: str, text: str) -> None:
    assert insert_variables(body, NAMESPACE) == (text, ())


@pytest.mark.parametrize(
    "body",
    [
        "{name} {0} {}",
        '{"a": {"b": 1}}',
        "$x$ $HOME ${name}",
        r"\frac{1}{2} \{n\}",
        "{% for x in name %}{{ name | upper }}{{ f(name) }}{% endfor %}",
        "{{}} {{ }} {{1}} {{name",
        "{{\nname\n}}",
        "{{name[n]}} {{name[1:2]}} {{name + n}} {{__import__('os')}}",
        "if (a) {{ return 1; }}",
        "🦙 {🦙} {{🦙}}",
        "\\n \r\n \x00",
    ],
)
def test_everything_else_passes_byte_for_byte(body: str) -> None:
    assert insert_variables(body, NAMESPACE)[0] == body


def test_what_is_not_a_variable_stays_and_is_told_once() -> None:
    text, notes = insert_variables("{{nmae}} {{nmae}} {{zzz.y}}", NAMESPACE)
    assert text == "{{nmae}} {{nmae}} {{zzz.y}}"
    assert notes == (
        "{{nmae}} is not a variable here: sent as written (did you mean 'name'?)",
        "{{zzz.y}} is not a variable here: sent as written",
    )


def test_a_path_that_leads_nowhere_stays_and_says_why() -> None:
    text, notes = insert_variables("{{rows[9]}} {{user.age}} {{ages['Bo']}}", NAMESPACE)
    assert text == "{{rows[9]}} {{user.age}} {{ages['Bo']}}"
    assert notes[0] == "{{rows[9]}} cannot be inserted (IndexError: list index out of range): sent as written"
    assert "AttributeError" in notes[1]
    assert "KeyError: 'Bo'" in notes[2]


def test_an_object_whose_text_fails_does_not_stop_the_cell() -> None:
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("no\ntext")

    assert insert_variables("{{x}}", {"x": Broken()}) == (
        "{{x}}",
        ("{{x}} cannot be inserted (RuntimeError: no text): sent as written",),
    )


@given(st.text(st.characters() | st.sampled_from("{}\\$%'\"[].n ")))
def test_text_without_a_name_in_double_braces_is_unchanged(body: str) -> None:
    if re.search(r"\{\{\s*\w", body) is None:
        assert insert_variables(body, NAMESPACE) == (body, ())


@given(st.text(), st.text(), st.text())
def test_inserted_text_is_exact_whatever_it_holds(before: str, value: str, after: str) -> None:
    if "{" not in before + after and not before.endswith("\\"):
        assert insert_variables(f"{before}{{{{v}}}}{after}", {"v": value}) == (before + value + after, ())


@pytest.mark.parametrize("place", ["{{name.upper()}}", "{{name!r}}", "{{ n + 1 }}", "{{name | upper}}"])
def test_an_expression_is_not_evaluated_and_that_is_told(place: str) -> None:
    note = f"{place} was sent as written: only names, .attributes and [indices] are inserted"
    assert insert_variables(f"a {place} b", NAMESPACE) == (f"a {place} b", (note,))


@pytest.mark.parametrize("place", ["{{x + 1}}", r"\{{name!r}}", "{{1 + 1}}", r"\frac{{a+b}}{2}"])
def test_double_braces_that_mean_no_variable_pass_without_a_note(place: str) -> None:
    assert insert_variables(place, NAMESPACE) == (place, ())


def test_parts_end_with_what_was_inserted() -> None:
    parts, notes = insert_parts("Read {{a}}, \\{{a}} and {{b}}{{nope}}.", {"a": "x", "b": "y"})
    assert parts == ["Read x", ", {{a}} and y", "{{nope}}."]
    assert len(notes) == 1
    assert insert_parts("none", {}) == (["none"], ())
