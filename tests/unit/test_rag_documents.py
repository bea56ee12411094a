"""Files to documents to chunks: what each kind of file gives, and that bad input is told in a few words."""

import json
import tracemalloc

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipyllama.errors import BadOption, BadSource
from ipyllama.rag.documents import Document, Section, clean, markdown_document
from ipyllama.rag.loaders import MAX_BYTES, load
from ipyllama.rag.sources import Root, Source, Unusable, expand, plain
from ipyllama.rag.split import Cut, Splitter


def titles(document: Document) -> list[tuple[str, str]]:
    return [(section.title, section.text.strip()) for section in document.sections]


def words(text: str) -> int:
    return len(text.split())


# -- loaders ------------------------------------------------------------------------------------------------


def test_markdown_stands_under_its_headings():
    text = "intro\n\n# One\nfirst\n## Two *bold* `x`\nsecond\n\n```\n# no heading\n```\n# Three\n\nSetext\n---\nthird\n"
    document = markdown_document(text)
    assert titles(document) == [
        ("", "intro"),
        ("One", "first"),
        ("One > Two bold x", "second\n\n```\n# no heading\n```"),
        ("Three > Setext", "third"),
    ]
    for section in document.sections:
        assert text[section.start : section.start + len(section.text)] == section.text


def test_front_matter_is_no_heading():
    assert titles(load("a.md", b"---\ntitle: x\n---\n# A\nbody\n")) == [("A", "body")]


def test_html_loses_what_is_no_text():
    page = b"""<html><head><title>The page</title><style>p {}</style></head><body><nav>menu</nav><main>
    <h1>Top<a class="headerlink" href="#x">P</a></h1><p>One &amp; <b>two</b>.</p><script>alert(1)</script>
    <h2>Sub</h2><pre>x = 1\n  y = 2</pre></main><footer>foot</footer></body></html>"""
    first, second = titles(load("a.html", page))
    assert first == ("Top", "One & **two**.")
    assert second[0] == "Top > Sub"
    assert "x = 1\n  y = 2" in second[1]


def test_html_without_a_heading_has_its_title():
    assert titles(load("a.htm", b"<title>T</title><p>text</p>")) == [("T", "text")]


def test_html_nested_too_deeply_is_refused():
    with pytest.raises(BadSource, match="nested too deeply"):
        load("deep.html", b"<div>" * 100_000 + b"text")


def test_a_notebook_gives_text_and_code():
    cells = [
        {"cell_type": "markdown", "id": "a", "metadata": {}, "source": "# Load\nWe read it."},
        {"cell_type": "code", "id": "b", "metadata": {}, "source": "a = '```'", "outputs": [], "execution_count": None},
    ]
    content = json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    assert titles(load("a.ipynb", content.encode())) == [("Load", "We read it.\n\n````\na = '```'\n````")]
    with pytest.raises(BadSource, match="the notebook cannot be read"):
        load("a.ipynb", b'{"cells": 3}')


def test_python_stands_under_its_definitions():
    code = "import os\n\n@cache\ndef f():\n    return 1\n\n"
    code += 'class A:\n    """Doc."""\n\n    def g(self):\n        pass\n\nX = 1\n'
    document = load("a.py", code.encode())
    assert titles(document) == [
        ("", "import os"),
        ("def f", "@cache\ndef f():\n    return 1"),
        ("class A", 'class A:\n    """Doc."""'),
        ("class A > def g", "def g(self):\n        pass"),
        ("", "X = 1"),
    ]
    assert "".join(section.text for section in document.sections) == code
    assert titles(load("bad.py", b"def (")) == [("", "def (")]


def pdf(text: bytes = b"Hello PDF world") -> bytes:
    """The smallest document that says something."""
    stream = b"BT /F1 12 Tf 72 700 Td (" + text + b") Tj ET"
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>",
        b"<</Length %d>>\nstream\n%s\nendstream" % (len(stream), stream),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    out, offsets = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    head = b"xref\n0 6\n0000000000 65535 f \n" + table
    return out + head + b"trailer\n<</Size 6/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % len(out)


def test_a_pdf_gives_its_pages():
    (section,) = load("a.pdf", pdf()).sections
    assert (section.text.strip(), section.title, section.metadata) == ("Hello PDF world", "page 1", {"page": 1})


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.pdf", b"no pdf at all", "the PDF cannot be read"),
        ("a.pdf", pdf()[:300], "the PDF cannot be read|no text"),
        ("a.pdf", pdf(b" "), "holds no text"),
        ("a.bin", bytes(range(256)) * 10, "a binary file"),
        ("a.txt", b"\x89PNG\r\n\x1a\n\0\0", "a binary file"),
        ("a.txt", b" \n\t ", "there is no text in it"),
        ("a.html", b"<script>x</script>", "there is no text in it"),
        ("a.html", b"<![x<p>text", "the HTML cannot be read"),
        ("a.log", b"x" * (MAX_BYTES + 1), "over the limit of 34 MB: split it"),
    ],
)
def test_what_cannot_be_read_says_why(name, content, why):
    with pytest.raises(BadSource, match=why):
        load(name, content)


def test_other_encodings_are_read():
    latin = load("a.txt", "Größe und Maß".encode("cp1252"))
    assert titles(latin) == [("", "Größe und Maß")]
    assert "not UTF-8" in latin.notice
    for encoding in ("utf-8-sig", "utf-16"):
        document = load("a.txt", "Größe 漢字 🙂".encode(encoding))
        assert (titles(document), document.notice) == ([("", "Größe 漢字 🙂")], "")


# -- chunks -------------------------------------------------------------------------------------------------


def test_chunks_are_as_long_as_they_may_be():
    text = " ".join(f"word{i}" for i in range(500))
    chunks = list(Splitter(Cut(50, 10), words).split("s", Document([Section(text)]), {"a": 1}))
    assert max(words(chunk.text) for chunk in chunks) <= 50
    assert {word for chunk in chunks for word in chunk.text.split()} == set(text.split())
    for chunk in chunks:
        assert text[chunk.start : chunk.start + len(chunk.text)] == chunk.text
        assert chunk.metadata == {"a": 1}
    assert chunks[0].text.split()[-10:] == chunks[1].text.split()[:10]


@given(st.text(max_size=3000), st.sampled_from(["text", "markdown"]))
def test_no_word_is_lost(text, form):
    text = clean(text)
    document = Document([Section(text, start=7)], form)
    chunks = list(Splitter(Cut(16, 0), words).split("s", document, {}))
    assert set("".join(chunk.text for chunk in chunks).split()) <= set(text.split()) or len(text) > 16 * 8
    covered = set()
    for chunk in chunks:
        assert text[chunk.start - 7 : chunk.start - 7 + len(chunk.text)] == chunk.text
        covered |= set(range(chunk.start - 7, chunk.start - 7 + len(chunk.text)))
        assert len(chunk.text) <= 16 * 8
    repeated = {chunk.text for chunk in chunks}
    left = "".join(char for i, char in enumerate(text) if i not in covered)
    assert all(word in "".join(repeated) for word in left.split())


def test_a_word_without_end_is_cut():
    chunks = list(Splitter(Cut(32, 0), lambda text: 1).split("s", Document([Section("x" * 10_000)]), {}))
    assert {len(chunk.text) for chunk in chunks} <= {256, 10_000 % 256}


def test_a_line_of_megabytes_is_cut_within_bounds():
    text = "lorem ipsum dolor " * 200_000
    document = Document([Section(text)])
    tracemalloc.start()
    n = sum(1 for _ in Splitter(Cut(256, 0), words).split("s", document, {}))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert n > 1  # what repeats is one chunk
    assert peak < 20e6


@pytest.mark.parametrize("sizes", [(8, 0), (100, 51), (100, -1), (1.5, 0), (True, 0), (9000, 0)])
def test_bad_sizes_are_refused(sizes):
    with pytest.raises(BadOption):
        Cut(*sizes)


# -- sources ------------------------------------------------------------------------------------------------


def test_folders_globs_and_files(home):
    (home / "docs/sub").mkdir(parents=True)
    (home / "docs/.git").mkdir()
    for name in ("docs/b.md", "docs/a.txt", "docs/sub/c.md", "docs/.git/config", "docs/.hidden"):
        (home / name).write_text("x")
    assert [each.name for each in expand("docs")] == ["docs/a.txt", "docs/b.md", "docs/sub/c.md", "docs"]
    assert [each.name for each in expand("docs/**/*.md")] == ["docs/b.md", "docs/sub/c.md", "docs/**/*.md"]
    assert [type(each) for each in expand([home / "docs/a.txt", "docs/none.txt", "*.rst"])] == [
        Source,
        Unusable,
        Unusable,
        Root,
    ]
    (home / "empty").mkdir()
    (empty, _) = expand("empty/")
    assert empty == Unusable("empty", "an empty folder: there is no file in it")


def test_globs_do_not_follow_links_in_circles(home):
    for name in ("a.md", "sub/b.md", "sub/deep/c.md", ".hidden/d.md", "sub/[x]/e.md"):
        (home / "docs" / name).parent.mkdir(parents=True, exist_ok=True)
        (home / "docs" / name).write_text("text")
    for name in ("one", "two"):  # through both, a folder is found 2 ** 40 times
        (home / "docs" / name).symlink_to(home / "docs")

    def found(pattern: str) -> list[str]:
        return [each.name for each in expand(pattern) if isinstance(each, Source)]

    everything = ["docs/a.md", "docs/sub/[x]/e.md", "docs/sub/b.md", "docs/sub/deep/c.md"]
    for pattern in ("docs/**/*.md", "docs/**", "**/*.md", "**", "d*/**/**/*.md", str(home / "**/*.md")):
        assert found(pattern) == everything
    assert found("docs/**/deep/*") == ["docs/sub/deep/c.md"]
    assert found("docs/one/a*") == ["docs/one/a.md"]  # it was asked for
    assert found("docs/.*/*") == ["docs/.hidden/d.md"]
    assert found("docs/a**") == ["docs/a.md"]


def test_texts_pairs_and_columns():
    pd = pytest.importorskip("pandas")
    given_ = ["one\ntwo", ("name", "text"), ("other", "text", {"year": 2024})]
    first, second, third = expand(given_)
    assert first.name.startswith("text ")
    assert (second.name, second.metadata, third.metadata) == ("name", {}, {"year": 2024})
    assert [each.name for each in expand({"a": "x", "b": "y"})] == ["a", "b"]
    column = pd.Series(["one", None, "three", " ", 4], name="notes")
    *found, none = expand(column)
    assert [(each.name, each.read()) for each in found] == [("notes[0]", b"one"), ("notes[2]", b"three")]
    assert none == Unusable("notes[1]", "there is no text in it, nor in 2 more")
    table = pd.DataFrame({"text": ["one"], "when": [pd.Timestamp("2024-05-01")], "n": [3], "no": [float("nan")]})
    (row,) = expand([table])
    assert row.metadata == {"when": "2024-05-01T00:00:00", "n": 3, "no": None}


@pytest.mark.parametrize("bad", [3, [3], [("a", 3)], [("a", "b", "c")], [("a", "b", {1: 2})], [("a",)]])
def test_what_is_no_document_is_refused(bad):
    with pytest.raises(BadSource):
        list(expand(bad))


def test_metadata_is_json():
    assert plain({"a": {1}, "b": (None, True), 3: float("inf")}) == {"a": [1], "b": [None, True], "3": None}
    assert plain("\ud800x\0") == "?x"
    assert plain([pd.NA, pd.NaT, np.nan, np.arange(3), np.array(1)]) == [None, None, None, [0, 1, 2], 1]
    table = pd.DataFrame({"text": ["a", "b"], "n": pd.array([1, None], dtype="Int64"), "v": [np.arange(2)] * 2})
    assert [dict(each.metadata) for each in expand(table)] == [{"n": 1, "v": [0, 1]}, {"n": None, "v": [0, 1]}]
    with pytest.raises(BadSource, match="column 'text'"):
        list(expand(pd.DataFrame([["a", "b"]], columns=["text", "text"])))
