"""Files to text: what each kind of file is read with. Nothing in a file is run, and no link in it is followed."""

from __future__ import annotations

import ast
import codecs
import io
import json
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import PurePath
from typing import Any, Final

from ipyllama.errors import BadSource
from ipyllama.rag.documents import Document, Section, by_lines, clean, markdown_document
from ipyllama.rag.packages import needed

VERSION: Final = 1
"""Counts changes after which files are to be read again."""
MAX_BYTES: Final = 32 << 20
"""A larger file is left out."""
_MAX_TITLE: Final = 200
_NO_TEXT: Final = ("script", "style", "template", "noscript", "nav", "svg", "head", "title")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")


def load(name: str, content: bytes) -> Document:
    """The document in a file of this name. Raises `BadSource` for what holds no text, and says why."""
    check_size(len(content))
    read = _LOADERS.get(PurePath(name).suffix.lower(), _text)
    try:
        document = read(content)
    except RecursionError:
        raise BadSource("nested too deeply to be read") from None
    if not any(section.text.strip() for section in document.sections):
        raise BadSource("there is no text in it")
    return document


def check_size(nbytes: int) -> None:
    """Raises `BadSource` for a file that is too large."""
    if nbytes > MAX_BYTES:
        raise BadSource(f"{nbytes / 1e6:,.0f} MB, over the limit of {MAX_BYTES / 1e6:,.0f} MB: split it")


def decode(content: bytes) -> tuple[str, str]:
    """The text of a file, and a notice where its encoding is a guess. Raises `BadSource` for what is no text."""
    for mark, encoding in (
        (codecs.BOM_UTF8, "utf-8-sig"),
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
    ):
        if content.startswith(mark):
            return clean(content.decode(encoding, "replace")), ""
    sample = content[: 1 << 16].decode("latin-1")
    if "\0" in sample or len(_CONTROL.findall(sample)) > len(sample) // 100:
        raise BadSource("a binary file, not text")
    try:
        return clean(content.decode()), ""
    except UnicodeDecodeError:
        text = content.decode("cp1252", "replace")
        return clean(text), "is not UTF-8: read as Windows-1252. If letters look wrong, save it as UTF-8"


def _text(content: bytes) -> Document:
    text, notice = decode(content)
    return Document([Section(text)], notice=notice)


def _markdown(content: bytes) -> Document:
    text, notice = decode(content)
    return markdown_document(text, notice=notice)


def _html(content: bytes) -> Document:
    bs4 = needed("bs4", "reading HTML")
    markdownify = needed("markdownify", "reading HTML")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bs4.XMLParsedAsHTMLWarning)
        try:
            soup = bs4.BeautifulSoup(content, "html.parser")
        except bs4.exceptions.ParserRejectedMarkup as error:
            raise BadSource(f"the HTML cannot be read: {_short(error)}") from error
    title = " ".join(soup.title.get_text().split())[:_MAX_TITLE] if soup.title else ""
    for tag in [*soup(_NO_TEXT), *soup.select("a.headerlink")]:
        tag.decompose()
    body = soup.find("main") or soup.find(attrs={"role": "main"}) or soup.find("article") or soup
    options = {"heading_style": "ATX", "strip": ["a", "img"], "escape_asterisks": False, "escape_underscores": False}
    text = clean(markdownify.MarkdownConverter(**options, escape_misc=False).convert_soup(body))
    return markdown_document(text, "" if body.find("h1") else title)


def _pdf(content: bytes) -> Document:
    pypdf = needed("pypdf", "reading PDF")
    with _quiet("pypdf"):
        try:
            reader = pypdf.PdfReader(io.BytesIO(content))
            if reader.is_encrypted and not reader.decrypt(""):
                raise BadSource("the PDF is encrypted: save it without a password")
            pages = [clean(page.extract_text() or "") for page in reader.pages]
        except (BadSource, RecursionError):
            raise
        except Exception as error:  # whatever a damaged file provokes in the parser
            raise BadSource(f"the PDF cannot be read: {_short(error)}") from error
    if not any(page.strip() for page in pages):
        raise BadSource("the PDF holds no text (scanned pages?): run text recognition over it first")
    sections, start = [], 0
    for number, page in enumerate(pages, 1):
        sections.append(Section(page, f"page {number}", start, {"page": number}))
        start += len(page) + 1
    return Document(sections)


def _notebook(content: bytes) -> Document:
    nbformat = needed("nbformat", "reading notebooks")
    text, notice = decode(content)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cells = nbformat.reads(text, as_version=4).cells
    except Exception as error:
        raise BadSource(f"the notebook cannot be read: {_short(error)}") from error
    return markdown_document("\n\n".join(_of_cell(cell) for cell in cells), notice=notice)


def _of_cell(cell: Any) -> str:
    source = clean(str(cell.source))
    if cell.cell_type != "code":
        return source
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", source)), default=0))
    return f"{fence}\n{source}\n{fence}" if source.strip() else ""


def _json(content: bytes) -> Document:
    """Written anew with a line for each value: what comes from a program is often one line."""
    text, notice = decode(content)
    with suppress(ValueError):
        text = json.dumps(json.loads(text), ensure_ascii=False, indent=1)
    return Document([Section(clean(text))], notice=notice)


def _python(content: bytes) -> Document:
    text, notice = decode(content)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            body = ast.parse(text).body
    except (SyntaxError, ValueError, MemoryError):
        return Document([Section(text)], notice=notice)
    return Document(by_lines(text, _starts(list(_definitions(body)))), notice=notice)


def _starts(definitions: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Without what goes on under the title of the line before."""
    found = [(0, "")]
    for line, title in sorted(definitions):
        if title != found[-1][1]:
            found = [*(found if line > found[-1][0] else found[:-1]), (line, title)]
    return found


def _definitions(body: list[ast.stmt], above: str = "") -> Iterator[tuple[int, str]]:
    """First line (from 0) and title of what follows it."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            line = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1
            word = "class" if isinstance(node, ast.ClassDef) else "def"
            title = f"{above} > {word} {node.name}" if above else f"{word} {node.name}"
            yield line, title
            if isinstance(node, ast.ClassDef):
                yield from _definitions(node.body, title)
        else:
            yield node.lineno - 1, above


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """What a library logs about a damaged file is in our own message."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


_LOADERS: Final[dict[str, Callable[[bytes], Document]]] = {
    **dict.fromkeys((".md", ".markdown", ".mdown", ".qmd", ".rmd"), _markdown),
    **dict.fromkeys((".html", ".htm", ".xhtml"), _html),
    **dict.fromkeys((".py", ".pyi"), _python),
    ".pdf": _pdf,
    ".ipynb": _notebook,
    ".json": _json,
}
"""suffix -> loader; everything else is text, if it is text"""
