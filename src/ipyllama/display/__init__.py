"""How things look: pure renderers for text and HTML, and the answer that is shown while it is written."""

from ipyllama.display.capability import capability_bundle, capability_line
from ipyllama.display.progress import Progress, ProgressLine
from ipyllama.display.reply import reply_bundle
from ipyllama.display.side_by_side import AnswersStream
from ipyllama.display.stream import ReplyStream
from ipyllama.display.table import ModelRow, Table, models_table, status_table
from ipyllama.display.text import footer
from ipyllama.display.views import NotebookView, NullView, TerminalView, View, make_view

__all__ = [
    "AnswersStream",
    "ModelRow",
    "NotebookView",
    "NullView",
    "Progress",
    "ProgressLine",
    "ReplyStream",
    "Table",
    "TerminalView",
    "View",
    "capability_bundle",
    "capability_line",
    "footer",
    "make_view",
    "models_table",
    "reply_bundle",
    "status_table",
]
