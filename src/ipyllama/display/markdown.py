"""A model's Markdown as safe HTML: what the model writes is shown, never run and never fetched."""

from __future__ import annotations

import re
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from markdown_it import MarkdownIt
    from markdown_it.rules_core import StateCore
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token

_PRE: Final = (
    "margin:.6em 0;padding:.6em .8em;border-radius:4px;overflow-x:auto;line-height:1.4;"
    "background:var(--jp-cell-editor-background,rgba(127,127,127,.12))"
)
_LINK: Final = "color:var(--jp-content-link-color,#2f7fd6)"
_RULE: Final = "border-bottom:1px solid var(--jp-border-color1,rgba(127,127,127,.5))"
_CODE: Final = "font-family:var(--jp-code-font-family,ui-monospace,monospace);background:none"

# Colours of JupyterLab's own editor, so that code follows its theme; the others are readable on white and on black.
_COLOURS: Final = {
    "Comment": "var(--jp-mirror-editor-comment-color,#4f8a8a);font-style:italic",
    "Keyword": "var(--jp-mirror-editor-keyword-color,#1a8a3a);font-weight:bold",
    "Operator.Word": "var(--jp-mirror-editor-keyword-color,#1a8a3a);font-weight:bold",
    "Operator": "var(--jp-mirror-editor-operator-color,#a040e0)",
    "Literal.String": "var(--jp-mirror-editor-string-color,#c8524a)",
    "Literal.Number": "var(--jp-mirror-editor-number-color,#3a8a3a)",
    "Name.Builtin": "var(--jp-mirror-editor-builtin-color,#1a8a3a)",
    "Name.Function": "var(--jp-mirror-editor-def-color,#4477dd)",
    "Name.Class": "var(--jp-mirror-editor-def-color,#4477dd)",
    "Name.Tag": "var(--jp-mirror-editor-tag-color,#1a8a3a)",
    "Name.Attribute": "var(--jp-mirror-editor-attribute-color,#4477dd)",
    "Name.Decorator": "var(--jp-mirror-editor-meta-color,#a040e0)",
}

# Commands with which MathJax can make links, load code or set styles.
_UNSAFE_TEX: Final = re.compile(r"\\(?:href|url|html|class|style|cssId|data|require|unicode|includegraphics)", re.I)

# Hebrew, Arabic, Syriac, Thaana, N'Ko and others that are written from the right
_FROM_RIGHT: Final = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefe\U00010800-\U00010fff\U0001e800-\U0001efff]")
_LINE_END: Final = re.compile(r"\r\n|\r|\n")

# No space inside single dollars and no digit outside them: prices are no math.
_DOLLARS: Final = re.compile(
    r"\$\$(?P<display>(?:\\.|[^\\$])+)\$\$|\$(?!\s)(?P<inline>(?:\\.|[^\\$])+)(?<!\s)\$(?!\d)", re.S
)


def markdown_html(text: str) -> str:
    """HTML of CommonMark with tables; `$math$` is left for MathJax, raw HTML and images are shown as text and links."""
    return str(_parser().render(text)).rstrip("\n")


def closed_blocks(text: str) -> tuple[str, str, int]:
    """HTML of the blocks that more text cannot change; HTML of the rest; and how many characters the former take."""
    tokens = _parser().parse(text)
    ends = [match.end() for match in _LINE_END.finditer(text)]
    # a block has begun when its first line is complete: a star may become a list or go on in bold
    begun = [n for n, token in enumerate(tokens) if token.level == 0 and token.map and token.map[0] < len(ends)]
    last = begun[-1] if begun else 0
    if not last:
        return "", _rendered(tokens), 0
    line = (tokens[last].map or [0])[0]
    return _rendered(tokens[:last]) + "\n", _rendered(tokens[last:]), ends[line - 1]


def _rendered(tokens: Sequence[Token]) -> str:
    parser = _parser()
    return str(parser.renderer.render(tokens, parser.options, {})).rstrip("\n")


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt
    from mdit_py_plugins.amsmath import amsmath_plugin
    from mdit_py_plugins.dollarmath import dollarmath_plugin
    from mdit_py_plugins.texmath import texmath_plugin

    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    parser.use(dollarmath_plugin, allow_labels=False)
    # the plugin's own rule takes the end of a paragraph for what stands before its first sign (seen in 0.7.0)
    parser.inline.ruler.at("math_inline", _dollar_math)
    parser.use(texmath_plugin, delimiters="brackets")
    parser.use(amsmath_plugin)
    parser.core.ruler.push("direction", _direction)
    rules: dict[str, Any] = parser.renderer.rules  # type: ignore[attr-defined]
    rules["text"] = lambda tokens, i, options, env: _plain(tokens[i].content)
    rules["fence"] = lambda tokens, i, options, env: _code_block(tokens[i].content, tokens[i].info)
    rules["code_block"] = lambda tokens, i, options, env: _code_block(tokens[i].content, "")
    rules["table_open"] = lambda tokens, i, options, env: '<table style="border-collapse:collapse;margin:.6em 0">\n'
    rules["th_open"] = lambda tokens, i, options, env: _cell("th", tokens[i], f";{_RULE}")
    rules["td_open"] = lambda tokens, i, options, env: _cell("td", tokens[i])
    rules["image"] = _image
    rules["link_open"] = _link_open
    rules["math_inline"] = lambda tokens, i, options, env: _math(tokens[i].content, "$", "span")
    rules["math_inline_double"] = lambda tokens, i, options, env: _math(tokens[i].content, "$$", "span")
    for name in ("math_block", "math_block_eqno"):
        rules[name] = lambda tokens, i, options, env: _math(tokens[i].content, "$$", "div")
    rules["amsmath"] = lambda tokens, i, options, env: _math(tokens[i].content, "", "div")
    return parser


def _direction(state: StateCore) -> None:
    """Each block of a text that has words from right to left begins at the side where its first letter does."""
    if _FROM_RIGHT.search(state.src):
        for token in state.tokens:
            if token.nesting == 1:
                token.attrSet("dir", "auto")


def _dollar_math(state: StateInline, silent: bool) -> bool:
    found = _DOLLARS.match(state.src, state.pos)
    if found is None or state.src[max(0, state.pos - 1) : state.pos].isdigit():
        return False
    if not silent:
        kind = "math_inline" if found["display"] is None else "math_inline_double"
        state.push(kind, "math", 0).content = found["inline"] or found["display"]
    state.pos = found.end()
    return True


def _plain(text: str) -> str:
    # MathJax does not look for math across elements: prices stay prices
    return escape(text).replace("$", "<span>$</span>")


def _math(tex: str, delimiter: str, tag: str) -> str:
    unsafe = _UNSAFE_TEX.search(tex) is not None
    shown = escape(f"{delimiter}{tex.strip()}{delimiter}")
    shown = f"<code>{shown}</code>" if unsafe else f"<{tag}>{shown}</{tag}>"
    return shown if tag == "span" else f"{shown}\n"


def _cell(tag: str, token: Token, more: str = "") -> str:
    # JupyterLab sets cells flush right unless told otherwise
    return f'<{tag} style="padding:.25em .8em;{token.attrs.get("style") or "text-align:left"}{more}">'


def _image(tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    # loading it would tell a stranger's server that, and what, somebody reads here
    token = tokens[index]
    return f"{_link(str(token.attrs.get('src', '')))}[image: {escape(token.content or 'no description')}]</a>"


def _link_open(tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    return _link(str(tokens[index].attrs.get("href", "")))


def _link(address: str) -> str:
    return f'<a href="{escape(address)}" style="{_LINK}" target="_blank" rel="noopener noreferrer nofollow">'


def _code_block(code: str, info: str) -> str:
    language = info.split(maxsplit=1)[0] if info.strip() else ""
    return f'<pre style="{_PRE}"><code style="{_CODE}">{"".join(_highlighted(code, language))}</code></pre>\n'


def _highlighted(code: str, language: str) -> Iterator[str]:
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    try:
        lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:  # no language given, or one that nobody knows
        yield escape(code)
        return
    for kind, text in lexer.get_tokens(code):
        colour = _colour(kind)
        yield f'<span style="color:{colour}">{escape(text)}</span>' if colour else escape(text)


@cache
def _colour(kind: Any) -> str:
    """The colour of a pygments token kind or of its nearest ancestor that has one."""
    while kind:
        colour = _COLOURS.get(".".join(kind))
        if colour:
            return colour
        kind = kind.parent
    return ""
