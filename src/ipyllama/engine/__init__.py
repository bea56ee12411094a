"""The engine: who evaluates what, when, and how it stops."""

from ipyllama.engine.answer import Opening, Request
from ipyllama.engine.engine import Engine
from ipyllama.engine.gather import gather
from ipyllama.engine.job import Job
from ipyllama.engine.kv import KVBoard, KVMap
from ipyllama.engine.schedule import PIECE, piece_ends, shared_end
from ipyllama.engine.states import Fusing, Moved, Shift, Start, States
from ipyllama.engine.stream import Stream
from ipyllama.engine.task import Task

__all__ = [
    "PIECE",
    "Engine",
    "Fusing",
    "Job",
    "KVBoard",
    "KVMap",
    "Moved",
    "Opening",
    "Request",
    "Shift",
    "Start",
    "States",
    "Stream",
    "Task",
    "gather",
    "piece_ends",
    "shared_end",
]
