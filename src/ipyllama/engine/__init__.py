"""The engine: who evaluates what, when, and how it stops."""

from ipyllama.engine.engine import Engine
from ipyllama.engine.generate import Request
from ipyllama.engine.job import Job
from ipyllama.engine.task import Task

__all__ = ["Engine", "Job", "Request", "Task"]
