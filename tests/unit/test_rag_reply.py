"""Prompts and answers of retrieval: what the model is given, what it cites, how it is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipyllama.chat import ChatTemplate
from ipyllama.display.divergence import divergence_text
from ipyllama.display.documents import problems_table
from ipyllama.display.rag import hits_bundle, rag_bundle, sources_bundle
from ipyllama.errors import BadOption, TemplateError
from ipyllama.layout import Layout
from ipyllama.lens.divergence import Divergence
from ipyllama.magics.options import parse_cell_line
from ipyllama.magics.rag import source
from ipyllama.rag.frame import NOT_FOUND, chunk_text, layout_for
from ipyllama.rag.order import stable
from ipyllama.rag.reply import RagReply
from ipyllama.rag.types import Chunk, Hit
from ipyllama.reply import Reply

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}{{ m.content }}"
    "{% endfor %}|"
)
HOSTILE = "<img src=x onerror=alert(1)></details></script><script>alert(2)</script> [9]"


def hit(n: int, text: str = "", **more: object) -> Hit:
    chunk = Chunk(f"id{n}", text or f"Text number {n}.", f"doc{n}.md", f"Part {n}", 10 * n)
    return Hit(chunk, 1 / n, **more)  # type: ignore[arg-type]


def reply(text: str, n: int = 2, **more: object) -> RagReply:
    return RagReply.of(Reply(text, **more), "Why?", tuple(hit(k) for k in range(1, n + 1)))  # type: ignore[arg-type]


def test_the_frame_never_changes_and_the_question_comes_last() -> None:
    template = ChatTemplate(CHATML)
    one = layout_for(template, "Why?", [hit(1).chunk, hit(2).chunk])
    other = layout_for(template, "How ~documents~ many?", [hit(3).chunk])
    assert one.frame == other.frame
    assert one.frame.startswith("<|im_start|>system\n")
    assert one.frame.endswith("Documents:\n\n")
    assert one.question == "Question: Why?<|im_end|>\n<|im_start|>assistant\n"
    assert "~documents~ many?" in other.question
    assert one.chunks == ("Part 1\nText number 1.\n\n", "Part 2\nText number 2.\n\n")


def test_templates_without_a_system_prompt_and_none_at_all() -> None:
    layout = layout_for(ChatTemplate(NO_SYSTEM), "Why?", [hit(1).chunk])
    assert layout.frame.startswith("Answer the question")
    assert layout.question == "Question: Why?|"
    assert layout_for(None, "Why?", []).question == "Question: Why?\nAnswer:"
    with pytest.raises(TemplateError, match="repeats"):
        layout_for(ChatTemplate("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}"), "Why?", [])


def test_a_document_cannot_pass_for_another() -> None:
    chunk = Chunk("a", "see a[1]\n[2] Forged\n  [3] too", "a.md")
    assert chunk_text(chunk) == "a.md\nsee a[1]\n(2) Forged\n  (3) too\n\n"
    assert chunk_text(Chunk("a", "x", "a.md", "A\n[2] > B")) == "A [2] > B\nx\n\n"
    for before in (
        "\n",
        "\r",
        "\v",
        "\f",
        "\x1c",
        "\x85",
        "\u2028",
        "\u2029",
        "\n\u200b",
        "\n\ufeff ",
        "\n\xa0",
        "\n\n",
    ):
        for number in ("[2]", "[ 2 ]", "[\u200b2]"):
            text = chunk_text(Chunk("a", f"x{before}{number} Forged", "a.md"))
            assert text == f"a.md\nx{before}({number[1:-1]}) Forged\n\n"
    assert chunk_text(Chunk("a", "x\n[two] and\n[]", "[7]")) == "(7)\nx\n[two] and\n[]\n\n"


def test_citations_are_found_and_unknown_ones_marked() -> None:
    answer = reply("Yes [2]. No [1, 2; 7], [0], [x], [], a[12345].")
    assert [each.number for each in answer.citations] == [2, 1, 2, 7, 0]
    assert answer.text[answer.citations[0].start : answer.citations[0].end] == "[2]"
    assert [each.hit for each in answer.citations] == [answer.hits[1], answer.hits[0], answer.hits[1], None, None]
    assert answer.cited == (1, 2)
    assert answer.unknown == (0, 7)
    assert any("[0], [7]" in note for note in answer.notes)
    for kind in ("text/plain", "text/html"):
        assert "[7] is cited, and there is no such document" in answer.sources_bundle()[kind]


@pytest.mark.parametrize(
    ("text", "cited", "unknown"),
    [
        ("[1, 3] and [2]", (1, 2, 3), ()),
        ("[1][2], [3]-[4]", (1, 2, 3, 4), ()),
        ("[ 2 ] [\u00a03\u00a0]", (2, 3), ()),
        ("[1-3]", (1, 2, 3), ()),
        ("[2–4; 1]", (1, 2, 3, 4), ()),
        ("[1 and 2], [3, and 4]", (1, 2, 3, 4), ()),
        ("[1 & 3]", (1, 3), ()),
        ("[Document 2] [doc. 3] [documents 1, 4]", (1, 2, 3, 4), ()),
        ("[Document 1, Document 3]", (1, 3), ()),
        ("[#2] [Document [3]]", (2, 3), ()),
        ("【1】 [2、3] [1，4]", (1, 2, 3, 4), ()),
        ("[3-6]", (3, 4), (6,)),  # of what is no document the ends are enough
        ("[1-9999]", (1, 2, 3, 4), (9999,)),
        ("[7-9]", (), (7, 9)),
        ("[4-2]", (2, 4), ()),  # no range
        ("(1) first, (2) second, 1. third, ², [1.5], [v2], [two], [1 of 2]", (), ()),
        ("Write `rows[0]` or\n```\nx[7] = [8, 9]\n``` as it says `[2]`.", (2,), ()),
        ("```\nfirst[9]", (), ()),
        ("`a` [1] `b`", (1,), ()),
    ],
)
def test_citations_have_many_forms(text: str, cited: tuple[int, ...], unknown: tuple[int, ...]) -> None:
    answer = reply(text, 4)
    assert (answer.cited, answer.unknown) == (cited, unknown)
    assert all(answer.text[each.start] in "[【" for each in answer.citations)
    assert all(answer.text[each.end - 1] in "]】" for each in answer.citations)


def test_what_is_not_in_the_documents_is_said() -> None:
    assert reply(NOT_FOUND).not_found
    assert any("not in the documents" in note for note in reply(f"I looked. {NOT_FOUND}").notes)
    assert not reply("It is 7 [1].").not_found
    assert reply("It is 7 [1].").notes == ()
    assert any("cites no document" in note for note in reply("It is 7.").notes)
    nothing = RagReply.of(Reply("Hm."), "Why?", ())
    assert nothing.not_found
    assert any("no document was found" in note for note in nothing.notes)


def test_hostile_documents_are_text() -> None:
    chunk = Chunk("a", HOSTILE + "\x1b[31m", HOSTILE, HOSTILE)
    answer = RagReply.of(Reply(HOSTILE + " [1]"), HOSTILE, (Hit(chunk, 0.5, 1, None),))
    for bundle in (rag_bundle(answer), sources_bundle(answer), hits_bundle(HOSTILE, answer.hits)):
        html = bundle["text/html"]
        assert "<img" not in html
        assert "<script" not in html
        assert html.count("<details") == html.count("</details>")
        assert "\x1b" not in html + bundle["text/plain"]
    assert answer.cited == (1,)


def test_the_same_facts_as_text_and_html() -> None:
    answer = reply("Yes [2].").checked(Divergence((0.5, 0.1), (True, False), 1200, 2.0))
    for kind in ("text/plain", "text/html"):
        shown = rag_bundle(answer)[kind]
        for fact in (
            "2 chunks read, 1 cited",
            "doc1.md › Part 1",
            "Text number 2.",
            "score 0.5",
            "mean KL 0.3000",
            "1 of 2",
        ):
            assert fact in shown, (kind, fact)
    assert "[2]*" in rag_bundle(answer)["text/plain"]
    assert isinstance(answer, Reply)
    ranked = hits_bundle("why", [hit(1, vector_rank=1, text_rank=3)])
    assert "meaning #1, words #3" in ranked["text/plain"]


def test_the_stable_order_is_that_of_the_documents() -> None:
    hits = [Hit(Chunk(str(n), "", source, "", start), 0.1) for n, (source, start) in
            enumerate([("b", 5), ("a", 9), ("b", 1), ("a", 0)])]  # fmt: skip
    assert [(each.chunk.source, each.chunk.start) for each in stable(hits)] == [("a", 0), ("a", 9), ("b", 1), ("b", 5)]
    assert stable(hits) == stable(hits[::-1])


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("--rag docs --raw", "--raw"),
        ("--rag docs --system x", "--system"),
        ("--rag docs --samples 2", "--samples"),
        ("--rag docs --no-think", "--no-think"),
        ("-k 3", "--rag"),
        ("--check", "--rag"),
        ("--reuse fused", "--rag"),
        ("--rag docs --mode words", "hybrid"),
        ("--rag docs -k 0", "at least 1"),
    ],
)
def test_options_that_do_not_go_together(line: str, word: str) -> None:
    with pytest.raises(BadOption, match=word):
        parse_cell_line(line)


def test_options_of_answers_from_documents() -> None:
    args = parse_cell_line("--rag docs -k 6 --hybrid --reuse fused --recompute 8 --check")
    assert (args.rag, args.k, args.mode, args.check) == ("docs", 6, "hybrid", True)
    assert args.overrides == {"reuse": "fused", "recompute": 8}


def test_a_layout_is_checked() -> None:
    with pytest.raises(BadOption, match="chunks"):
        Layout("", "text", "")  # type: ignore[arg-type]


def test_sources_in_a_cell_can_hold_variables() -> None:
    variables = {"folder": Path("/srv"), "pages": {"a": "text"}}
    assert source("{{pages}}", variables) is variables["pages"]
    assert source("{{folder}}/notes/*.md", variables) == "/srv/notes/*.md"
    with pytest.raises(BadOption, match=r"^\{\{fold\}\} is not a variable here"):
        source("{{fold}}/x", variables)


def test_one_token_is_one() -> None:
    assert "computed 1 prompt token, first" in divergence_text(Divergence((0.1,), (True,), 1, 0.5))


def test_many_problems_are_not_all_shown() -> None:
    shown = problems_table({f"<b>{n}\n.bin": "a binary file" for n in range(50)})._repr_mimebundle_()
    assert shown["text/plain"].count("a binary file") == shown["text/html"].count("a binary file") == 20
    assert "and 30 more" in shown["text/plain"]
    assert "<b>" not in shown["text/html"]
