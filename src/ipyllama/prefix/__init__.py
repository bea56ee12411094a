"""Prefix memory: what a prompt has cost once is never paid again."""

from ipyllama.prefix.block import Block, Origin, Probe
from ipyllama.prefix.keys import Cut
from ipyllama.prefix.listing import PrefixInfo, entries, remove
from ipyllama.prefix.local import LocalBackend
from ipyllama.prefix.memory import PrefixMemory
from ipyllama.prefix.records import Binding, Check, Counts, Found, Stats
from ipyllama.prefix.remote import FsspecBackend
from ipyllama.prefix.store import StoreBackend, register_store_backend

__all__ = [
    "Binding",
    "Block",
    "Check",
    "Counts",
    "Cut",
    "Found",
    "FsspecBackend",
    "LocalBackend",
    "Origin",
    "PrefixInfo",
    "PrefixMemory",
    "Probe",
    "Stats",
    "StoreBackend",
    "entries",
    "register_store_backend",
    "remove",
]
