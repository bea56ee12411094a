"""What a cell says on its first line does what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kernel.session import Kernel

UNTOUCHED = r"""
{"name": "Ann", "ages": [1, 2]} and {x} and {} and }{
$a$ costs $5, $$\int_0^1 \frac{a}{b}\,dx$$ \alpha \n \\ \t %s %%timeit !ls ?help
<|im_end|> & <b>bold</b> 'one' "two" `three` # four
def f(x): return {"x": x, **{'y': 1}}
	tab, café, 漢字, 👩‍🚀 🙂
%llama load not-a-command
""".strip()


def test_variables_are_inserted(bigram: Kernel) -> None:
    bigram.run("name, user, rows = 'Zoë {{rows}}', {'age': 7}, ['first', 'last']")
    bigram.run(r"""%%llama -n 3 --out answer
{{name}} {{ user['age'] }} {{rows[-1]}} {{name.upper}} \{{name}} {name} {{nowhere}}""")
    message = bigram.value("answer.message")
    assert message.startswith("Zoë {{rows}} 7 last <built-in method upper")
    assert message.endswith("{{name}} {name} {{nowhere}}")
    (note,) = bigram.value("answer.notes")
    assert "{{nowhere}}" in note


def test_everything_else_is_sent_as_written(bigram: Kernel) -> None:
    bigram.run("x, a = 'never', 'inserted'")
    bigram.run(f"%%llama -n 3 --out answer\n{UNTOUCHED}")
    assert bigram.value("answer.message") == UNTOUCHED
    assert bigram.value("answer.notes") == ()


def test_control_tokens_in_a_prompt_are_read_as_the_template_would(bigram: Kernel) -> None:
    bigram.run("%%llama -n 3 --out answer\nHi")
    marker = bigram.value("__import__('ipyllama').loaded()[-1].tokenize('<|im_start|>', False, True)")
    assert len(marker) == 1
    assert bigram.value("answer.ledger.tokens").count(marker[0]) == 2


@pytest.fixture
def defaults(bigram: Kernel) -> Iterator[Kernel]:
    """A kernel whose `%config Llama` is put back afterwards."""
    yield bigram
    bigram.run("%config Llama.max_tokens = 512\n%config Llama.system = ''\n%config Llama.stream = True")


def test_defaults_are_traits(defaults: Kernel) -> None:
    kernel = defaults
    kernel.run("%config Llama.max_tokens = 7\n%config Llama.system = 'Be brief.'\n%config Llama.stream = False")
    shown = kernel.run("%%llama --out answer\nHi")
    assert kernel.value("answer.text, answer.system") == ("abcdefg", "Be brief.")
    assert len(shown.bundles) == 1
    kernel.run("%%llama --out answer -n 4\nHi")
    assert kernel.value("answer.text") == "abcd"
    assert "max_tokens must be at least 1: got 0" in kernel.run("%config Llama.max_tokens = 0").printed
    kernel.run("%%llama --out answer\nHi")
    assert kernel.value("len(answer.tokens)") == 7
    assert "max_tokens" in kernel.run("%config Llama").printed


def test_quiet_shows_nothing(bigram: Kernel) -> None:
    result = bigram.run("%%llama --quiet -n 5 --out answer\nHi")
    assert {m["header"]["msg_type"] for m in result.messages} == {"status", "execute_input"}
    assert bigram.value("answer.text") == "abcde"


@pytest.mark.parametrize(
    ("options", "text", "reason"),
    [
        ("-n 5", "abcde", "length"),
        ("-n 30", "abcdefghijklmnopqrstuvwxyz abc", "length"),
        ("-n 30 --stop d", "abc", "stop"),
        ("-n 30 --stop zzz --stop 'h' --stop \"fgh\"", "abcde", "stop"),
        (r"-n 30 --stop \n", "abcdefghijklmnopqrstuvwxyz abc", "length"),
    ],
)
def test_where_it_ends(bigram: Kernel, options: str, text: str, reason: str) -> None:
    bigram.run(f"%%llama {options} --out answer\nHi")
    assert bigram.value("answer.text, answer.finish_reason") == (text, reason)


def test_raw_continues_the_text_itself(bigram: Kernel) -> None:
    bigram.run("%%llama -n 3 --out before\nHi")
    bigram.run("%%llama --raw -n 5 --out answer\nabc")
    assert bigram.value("answer.text, type(answer).__name__, answer.usage.prompt") == ("defgh", "Reply", 4)
    bigram.run("%%llama -n 3 --out after\nHi")
    assert bigram.value("after.parent is before")  # no part of the conversation


def test_conversations_by_name(bigram: Kernel) -> None:
    bigram.run("%%llama -n 3 --out one\nHi")
    bigram.run("%%llama -n 3 --out work --chat work --system 'Be brief.'\nHi")
    bigram.run("%%llama -n 3 --out two\nHi")
    bigram.run("%%llama -n 3 --out more --chat work\nHi")
    parents = bigram.value("two.parent is one, work.parent is None, more.parent is work")
    assert parents == (True, True, True)
    assert bigram.value("two.system, work.system, more.system") == (None, "Be brief.", "Be brief.")
    assert bigram.value("more.messages[0]") == {"role": "system", "content": "Be brief."}
    assert "work" in bigram.run("%llama status").text


def test_reset_begins_anew(bigram: Kernel) -> None:
    bigram.run("%%llama -n 3 --out one\nHi")
    bigram.run("%%llama -n 3 --reset --out two\nHi again")
    bigram.run("%%llama -n 3 --out three\nHi")
    assert bigram.value("two.parent is None, three.parent is two") == (True, True)
    assert "2 turns" in bigram.run("%llama reset").text
    bigram.run("%%llama -n 3 --out four\nHi")
    assert bigram.value("four.parent") is None


def test_a_system_prompt_lasts_as_long_as_its_conversation(bigram: Kernel) -> None:
    bigram.run("%%llama -n 3 --out one --system 'Be brief.'\nHi")
    bigram.run("%%llama -n 3 --out two\nHi")
    bigram.run("%%llama -n 3 --out three --reset\nHi")
    assert bigram.value("one.system, two.system, three.system") == ("Be brief.", "Be brief.", None)


def test_a_new_system_prompt_in_a_conversation_is_said(bigram: Kernel) -> None:
    bigram.run("%%llama -n 3 --out one\nHi")
    result = bigram.run("%%llama -n 3 --out two --system 'Be brief.'\nHi")
    assert bigram.value("two.system, two.parent is one") == ("Be brief.", True)
    assert "the system prompt changed" in result.text


def test_the_seed_makes_the_answer(use: Callable[[str], Kernel]) -> None:
    kernel = use("llama")
    ask = "%%llama --raw -n 20 --out {} {}\nabc"
    kernel.run(ask.format("one", ""))
    kernel.run(ask.format("same", ""))
    kernel.run(ask.format("other", "--seed 7"))
    kernel.run(ask.format("random1", "--seed random"))
    kernel.run(ask.format("random2", "--seed random"))
    assert kernel.value("one.tokens == same.tokens, one.seed == same.seed") == (True, True)
    assert kernel.value("len({one.tokens, other.tokens, random1.tokens, random2.tokens})") == 4
    kernel.run(ask.format("again", "--seed {}".format(kernel.value("random1.seed"))))
    assert kernel.value("again.tokens == random1.tokens")


OPTIONS = ["temperature=0.0", "top_k=3", "top_p=0.3", "min_p=0.5", "repeat_penalty=1.5", "frequency_penalty=3"]
OPTIONS += ["presence_penalty=3", "dry_multiplier=8", "typical_p=0.3", "xtc_probability=1", "mirostat=2"]


@pytest.mark.parametrize("option", OPTIONS)
def test_sampling_options_reach_the_sampler(use: Callable[[str], Kernel], option: str) -> None:
    """A magic does what the plain Python call does, and both differ from the default."""
    kernel = use("llama")
    name, value = option.split("=")
    kernel.run(f"%%llama --raw -n 40 --out answer --{name.replace('_', '-')} {value}\nabc")
    kernel.run("%%llama --raw -n 40 --out default\nabc")
    kernel.run("llm = next(llm for llm in __import__('ipyllama').loaded() if llm.name == 'tiny-llama')")
    assert kernel.value(f"answer.tokens == llm.complete('abc', max_tokens=40, {option}).tokens")
    assert kernel.value("answer.tokens != default.tokens")


def test_a_grammar_comes_from_a_file_or_a_variable(use: Callable[[str], Kernel], tmp_path: Path) -> None:
    kernel = use("llama")
    file = tmp_path / "three digits.gbnf"
    file.write_text('root ::= [0-9]{3} "é"', encoding="utf-8")
    kernel.run(f'%%llama --raw --grammar "{file}" --out answer\nabc')
    assert kernel.value("answer.text[:3].isdecimal(), answer.text[3:]") == (True, "é")
    kernel.run('yes_or_no = \'root ::= "yes" | "no"\'')
    kernel.run("%%llama --raw --grammar {{yes_or_no}} --out answer\nabc")
    assert kernel.value("answer.text in ('yes', 'no')")
    bad = kernel.fail("%%llama --raw --grammar {{yes_or_none}}\nabc")
    assert "BadGrammar: line 1, column 1 of the grammar at '{{yes_or_none}}'" in bad.error
    missing = kernel.fail("%%llama --raw --grammar nowhere.gbnf\nabc")
    assert "BadOption: --grammar: nowhere.gbnf cannot be read (No such file or directory)" in missing.error


def test_biases(bigram: Kernel) -> None:
    """After b comes c, unless it is forbidden; a token may be told by its text."""
    bigram.run("%%llama --raw -t 0 -n 2 --out answer\nab")
    assert bigram.value("answer.text") == "cd"
    bigram.run("%%llama --raw -t 0 -n 2 --logit-bias c=-inf --logit-bias x=50 --out answer\nab")
    assert bigram.value("answer.text[0]") == "x"
    refused = bigram.fail("%%llama --raw --logit-bias cde=1\nab")
    assert "logit_bias: 'cde' is 3 tokens of this model, it must be one" in refused.error


def test_out_is_the_whole_reply(smol: Kernel) -> None:
    result = smol.run("%%llama -n 12 -t 0 --out answer\nWhat is the capital of France?")
    assert smol.value("answer.text").strip() in result.text
    assert smol.value("str(answer) == answer.text, answer.model == 'SmolLM2-135M-Instruct.Q4_1'")[0]
    assert smol.value("len(answer.tokens) == answer.usage.generated <= 12")
    assert smol.value("answer.timings.first_token > 0 and answer.timings.prefill > 0")
    assert smol.value("answer.messages[-1]['role']") == "assistant"
    shown = smol.run("answer").of("execute_result")[0]["content"]["data"]
    assert shown == result.bundles[-1]


def test_other_load_options_take_the_place_of_the_earlier_model(kernel: Kernel, tiny: Callable[[str], Path]) -> None:
    path = tiny("llama-bigram")
    kernel.run("%reload_ext ipyllama")
    kernel.run(f'%llama load "{path}" --n-ctx 256')
    kernel.run(f'%llama load "{path}" --n-ctx 512')
    assert kernel.value("[llm.n_ctx for llm in __import__('ipyllama').loaded()]") == [512]
    assert "context of 512" in kernel.run(f'%llama load "{path}"').text
    kernel.run("%llama unload")
    assert kernel.value("__import__('ipyllama').loaded()") == []


def test_a_variable_in_the_system_prompt(bigram: Kernel) -> None:
    bigram.run("who = 'a cat'")
    bigram.run('%%llama --chat variable --system "You are {{who}}." -n 3 --out reply\nHi')
    assert bigram.value("reply.system") == "You are a cat."


def test_a_loop_in_one_cell_keeps_the_whole_conversation(bigram: Kernel) -> None:
    loop = (
        "for word in ('a', 'b', 'c'):\n    get_ipython().run_cell_magic('llama', '--chat loop -n 3 --out last', word)"
    )
    for _ in range(2):  # run again, the cell begins at the same point
        bigram.run(loop, cell="loop")
        assert bigram.value("[turn.message for turn in last.path]") == ["a", "b", "c"]


def test_two_files_of_one_name_have_their_own_conversations(
    kernel: Kernel, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    for folder, arch in (("one", "llama-bigram"), ("two", "llama")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.gguf").symlink_to(tiny(arch))
    kernel.run("%reload_ext ipyllama")
    for folder in ("one", "two"):
        kernel.run(f'%llama load "{tmp_path / folder / "same.gguf"}"')
        kernel.run("%%llama -n 3 --out answer\nHi")
        assert kernel.value("len(answer.path)") == 1


def test_a_refused_default_does_not_break_the_extension(kernel: Kernel) -> None:
    kernel.run("%reload_ext ipyllama")
    kernel.run("%config Llama.max_tokens = 0")
    kernel.run("%reload_ext ipyllama")
    assert "Llama.max_tokens" in kernel.run("%config Llama").printed
