"""Views of many rows, of which only those in sight are in the page."""

from __future__ import annotations

from ipyllama.widgets.play import play_script
from ipyllama.widgets.view import STATIC, style


def rows_script(name: str) -> str:
    """The module of static/NAME.js, with what all such views share before it."""
    return f"{play_script('rows')}\n{(STATIC / f'{name}.js').read_text('utf-8')}"


def rows_style(name: str) -> str:
    """The style sheet of static/NAME.css, likewise."""
    return f"{style('rows')}\n{(STATIC / f'{name}.css').read_text('utf-8')}"
