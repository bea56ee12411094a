"""What a model writes is shown, never run: hostile answers through a real HTML parser."""

from __future__ import annotations

import time
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipyllama.display import ModelRow, Progress, models_table, reply_bundle
from ipyllama.display.markdown import markdown_html
from ipyllama.display.progress import line_bundle, progress_bundle
from ipyllama.reply import Reply

TAGS = {"a", "blockquote", "br", "code", "div", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre"}
TAGS |= {"s", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"}
ATTRIBUTES = {"href", "style", "target", "rel", "start", "role", "aria-label", "dir"}
ATTRIBUTES |= {"aria-valuemin", "aria-valuemax", "aria-valuenow"}
NO_MATH = ("class", "mathjax_ignore tex2jax_ignore")
VOID = {"br", "hr"}


class Audit(HTMLParser):
    """Collects what a browser would act on, and checks that every element is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: list[str] = []
        self.text = ""
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in TAGS:
            self.bad.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if (name, value) == NO_MATH:
                continue
            if name not in ATTRIBUTES or (name == "style" and "url(" in str(value)):
                self.bad.append(f"{tag}@{name}")
            if name == "href" and str(value).strip().lower().startswith(("javascript:", "data:", "vbscript:", "file:")):
                self.bad.append(str(value))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.bad.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        self.bad.append(f"<!--{data}")

    def handle_decl(self, decl: str) -> None:
        self.bad.append(f"<!{decl}")


def audit(html: str) -> str:
    """The text that the HTML shows; fails if there is anything in it that acts."""
    parser = Audit()
    parser.feed(html)
    parser.close()
    assert parser.bad == []
    assert parser.open == []
    return parser.text


HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<!-- <script>alert(1)</script> -->",
    "</div></td></body><h1 style='position:fixed'>",
    "<style>body{display:none}</style>",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](&#106;avascript:alert(1))",
    "[x](data:text/html;base64,PHNjcmlwdD4=)",
    '[x](https://a/"onmouseover="alert(1))',
    "<javascript:alert(1)>",
    "![x](https://tracker.example/pixel.png)",
    '![x" onerror="alert(1)](https://a/b.png "t")',
    "![x][ref]\n\n[ref]: https://tracker.example/pixel.png",
    '```"><script>alert(1)</script>\n<script>\n```',
    '```python" onclick="alert(1)\nx\n```',
    "$<script>alert(1)</script>$",
    "$$</div><script>alert(1)</script>$$",
    "\\(<img src=x onerror=alert(1)>\\)",
    "\\begin{align}<script>alert(1)</script>\\end{align}",
    "| a |\n|---|\n| <script>alert(1)</script> |",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "# <iframe src=//x>",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_hostile_survives(text: str) -> None:
    audit(reply_bundle(Reply(text, notes=(text,)))["text/html"])


def test_raw_html_is_shown_as_it_was_written() -> None:
    assert audit(markdown_html("a <b onclick='x'>bold</b>")) == "a <b onclick='x'>bold</b>"


@given(st.text(st.characters() | st.sampled_from("<>&\"'`$\\[]()!*_|#-{} \n")))
@settings(max_examples=200)
def test_no_text_makes_the_html_act(text: str) -> None:
    audit(reply_bundle(Reply(text, notes=(text,)))["text/html"])


@pytest.mark.parametrize("tex", [r"\href{javascript:alert(1)}{x}", r"\require{html}", r"\class{a}{b}", r"\URL{x}"])
def test_math_that_could_make_a_link_is_shown_as_code(tex: str) -> None:
    assert markdown_html(f"a ${tex}$").startswith("<p>a <code>$")


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("$a<b$ is 5", "<span>$a&lt;b$</span> is 5"),
        ("it is $5 + 3$.", "it is <span>$5 + 3$</span>."),
        ("$5 or $6", "<span>$</span>5 or <span>$</span>6"),
        ("5$ or 6$", "5<span>$</span> or 6<span>$</span>"),
        (r"\$x$", "<span>$</span>x<span>$</span>"),
        (r"$a\$b$", r"<span>$a\$b$</span>"),
        ("$a_1$ and $b_2$", "<span>$a_1$</span> and <span>$b_2$</span>"),
        (r"so \(a_1 * b * c\)", "so <span>$a_1 * b * c$</span>"),
        ("so $$a$$ it is", "so <span>$$a$$</span> it is"),
        ("`$a$`", "<code>$a$</code>"),
    ],
)
def test_math_keeps_its_dollars_and_prices_are_no_math(text: str, html: str) -> None:
    assert markdown_html(text) == f"<p>{html}</p>"


def test_display_math_is_not_read_as_markdown() -> None:
    assert markdown_html("$$\na\n- b\n# c\n$$") == "<div>$$a\n- b\n# c$$</div>"


def test_words_from_the_right_begin_there() -> None:
    html = markdown_html("שלום **world**\n\n- مرحبا\n\n```\nx\n```")
    assert html.startswith('<p dir="auto">שלום <strong>world</strong></p>\n<ul dir="auto">')
    assert '<li dir="auto">' in html
    assert "dir=" not in markdown_html("hello\n\n- there")


def test_code_that_nobody_can_highlight_is_plain() -> None:
    assert "<span" not in markdown_html("```nonsense\nif x < 1:\n```")
    assert "if x &lt; 1:\n" in markdown_html("```nonsense\nif x < 1:\n```")


@pytest.mark.parametrize("language", ["python", "js", "c++", "json", "bash", "html", ""])
def test_highlighting_changes_no_character(language: str) -> None:
    code = "\n\nx = '<a>' && \"b\"  \n\n\tif (y) { /* c */ }\n\n"
    assert audit(markdown_html(f"```{language}\n{code}```")) == code


def test_tables_and_progress_are_escaped() -> None:
    evil = "<script>alert(1)</script>\"'&"
    table = models_table([ModelRow(evil, 1, evil, 1, True, evil)])._repr_mimebundle_()["text/html"]
    assert audit(table).count(evil) == 3
    assert evil in audit(progress_bundle(Progress(evil, 1, 2))["text/html"])
    assert audit(line_bundle(evil)["text/html"]) == evil


def test_a_terminal_cannot_be_steered() -> None:
    plain = reply_bundle(Reply("a\x1b]52;c;x\x07b\x9b31m\r\nc\td", notes=("\x1b[2J",)))["text/plain"]
    assert not any((ord(char) < 32 and char not in "\n\t") or 0x7F <= ord(char) < 0xA0 for char in plain)
    assert plain.startswith("a␛]52;c;x␇b\ufffd31m\nc\td")


@pytest.mark.parametrize("piece", ["[", "![", "*a ", "`", "> ", "$", "\\(", "\\[", "- ", "<a", "|a", "(", "**_", "~~"])
def test_a_long_answer_of_one_sign_is_no_burden(piece: str) -> None:
    begun = time.perf_counter()
    markdown_html(piece * 3000)
    assert time.perf_counter() - begun < 5
