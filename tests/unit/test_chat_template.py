"""Chat templates. The expected texts were recorded from Hugging Face's `apply_chat_template` (transformers 5.24)."""

from __future__ import annotations

from datetime import datetime

import pytest
from unit.chat_samples import CHATML, DATE, DEFAULT_SYSTEM, HEADERS, INST, PLAIN, THINK, template

from ipyllama.chat import ChatTemplate
from ipyllama.errors import TemplateError

USER = {"role": "user", "content": " Hi <b>&'é {{x}}\n"}
TURNS = [USER, {"role": "assistant", "content": "<think>\nhm\n</think>\n\n Yo "}, {"role": "user", "content": "Bye"}]
SYSTEM = {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize(
    ("source", "messages", "expected"),
    [
        (
            CHATML,
            [SYSTEM, USER],
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi <b>&'é {{x}}\n<|im_end|>\n"
            "<|im_start|>assistant\n",
        ),
        (
            DEFAULT_SYSTEM,
            [USER],
            "<|im_start|>system\nYou are kind.<|im_end|>\n<|im_start|>user\n Hi <b>&'é {{x}}\n<|im_end|>\n"
            "<|im_start|>assistant\n",
        ),
        (
            DEFAULT_SYSTEM,
            [{"role": "system", "content": ""}],
            "<|im_start|>system\n<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            HEADERS,
            TURNS,
            "<s><|start|>user<|end|>\n\nHi <b>&'é {{x}}<|eot|><|start|>assistant<|end|>\n\n<think>\nhm\n</think>\n\n Yo"
            "<|eot|><|start|>user<|end|>\n\nBye<|eot|><|start|>assistant<|end|>\n\n",
        ),
        (
            INST,
            TURNS,
            "<s>[INST]  Hi <b>&'é {{x}}\n [/INST] <think>\nhm\n</think>\n\n Yo </s>[INST] Bye [/INST]",
        ),
        (
            THINK,
            TURNS,
            "<|im_start|>user\n Hi <b>&'é {{x}}\n<|im_end|>\n<|im_start|>assistant\n Yo <|im_end|>\n"
            "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n",
        ),
        (PLAIN, [SYSTEM, USER], "System: Be brief.\nUser:  Hi <b>&'é {{x}}\n\nAssistant:"),
        (
            DATE,
            [{"role": "user", "content": "Hi"}],
            "<|im_start|>system\nToday is 09 Mar 2026.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\n",
        ),
    ],
)
def test_renders_as_the_reference(source: str, messages: list[dict[str, str]], expected: str) -> None:
    assert template(source).render(messages) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ {'b': \"<&'é>\", 'a': [1, none, true]} | tojson }}", '{"b": "<&\'é>", "a": [1, null, true]}'),
        (
            "{{ {'b': 1, 'a': 'é'} | tojson(indent=1, ensure_ascii=true, sort_keys=true) }}",
            '{\n "a": "\\u00e9",\n "b": 1\n}',
        ),
        ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
        ("{% set x = 1 %}{% generation %}{% set x = 2 %}a{{ x }}{% endgeneration %}{{ x }}", "a21"),
        (
            "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}"
            "{% if i == 2 %}{% break %}{% endif %}{% endfor %}",
            "02",
        ),
        ("{% set n = namespace(x=1, self=2) %}{% set n.x = n.x + 1 %}{{ n.x }}{{ n.self }}", "22"),
        ("a\n  {% if true %}\nb\n  {% endif %}\nc\n", "a\nb\nc"),
        ("{{ nothing }}|{{ nothing is defined }}|{{ tools is none }}|{{ documents is none }}", "|False|True|True"),
        ("{{ 'ab' * 3 }}{{ 2 ** 10 }}{{ -3 * 4 }}", "ababab1024-12"),
    ],
)
def test_speaks_the_dialect_of_the_reference(source: str, expected: str) -> None:
    assert template(source).render([]) == expected


def test_gets_tools_documents_and_switches() -> None:
    source = (
        "{{ tools[0].function.name }} {{ documents[0].title }} {{ enable_thinking }} {{ unk_token }}{{ bos_token }}"
    )
    shown = ChatTemplate(source, "<s>", "</s>", unk_token="<unk>").render(
        [], tools=[{"function": {"name": "f"}}], documents=[{"title": "d"}], enable_thinking=False
    )
    assert shown == "f d False <unk><s>"


def test_a_switch_reaches_the_template() -> None:
    assert template(THINK).render([USER], enable_thinking=False).endswith("assistant\n<think>\n\n</think>\n\n")
    assert template(CHATML).render([USER], add_generation_prompt=False).endswith("<|im_end|>\n")


def test_a_key_without_value_counts_as_absent() -> None:
    source = "{{ 'tool_calls' in messages[0] }}{{ 'content' in messages[0] }}"
    assert template(source).render([{"role": "assistant", "content": "", "tool_calls": None}]) == "FalseTrue"


def test_the_clock_is_read_at_every_rendering() -> None:
    days = iter([datetime(2026, 1, 1), datetime(2026, 1, 2)])
    clock = ChatTemplate("{{ strftime_now('%d') }}", now=lambda: next(days))
    assert [clock.render([]), clock.render([])] == ["01", "02"]


def test_a_refusal_is_one_line_with_what_the_template_said() -> None:
    with pytest.raises(TemplateError, match="refuses these messages: roles must alternate user/assistant") as caught:
        template(INST).render([USER, USER])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{% if %}", "does not compile"),
        ("{{ messages[0].content + 1 }}", "fails on these messages: can only concatenate str"),
        ("{{ nothing.more }}", "'nothing' is undefined"),
        ("{% include '/etc/passwd' %}", "fails on"),
        ("{% import 'os' as os %}{{ os }}", "fails on"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "fails on"),
        ("{{ messages | tojson(indent=messages) }}", "fails on"),
    ],
)
def test_a_broken_template_is_one_line(source: str, said: str) -> None:
    with pytest.raises(TemplateError, match=said) as caught:
        template(source).render([USER])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__.keys() }}",
        "{{ strftime_now.__self__.source }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ '{0.__class__.__name__}'.format(messages) }}",
        "{% set n = namespace(__call__=1) %}",
        "{% set n = namespace() %}{% set n.__call__ = strftime_now %}{{ n('%Y') }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{% for i in range(10000000) %}{% endfor %}",
        "{{ ('a' * 200000) | length }}",
        "{{ (200000 * [0]) | length }}",
        "{{ 0 ** 200000 }}",
        "{% for i in range(9999) %}{% for j in range(9999) %}{{ 'abcdefgh' * 999 }}{% endfor %}{% endfor %}",
    ],
)
def test_a_hostile_template_is_stopped(source: str) -> None:
    with pytest.raises(TemplateError):
        template(source).render([USER])
    assert USER["role"] == "user"


def test_objects_do_not_reach_the_template() -> None:
    with pytest.raises(TemplateError, match="not datetime"):
        template("{{ x }}").render([], x=datetime(2026, 1, 1))


def test_the_callers_messages_are_not_shared_with_the_template() -> None:
    parts = [{"type": "text", "text": "hi"}]
    source = "{% set _ = messages[0].content.append(1) %}"
    with pytest.raises(TemplateError):
        template(source).render([{"role": "user", "content": parts}])
    assert parts == [{"type": "text", "text": "hi"}]
