"""Prefix memory: what a prompt has cost once is never paid again."""

from ipyllama.prefix.keys import Cut
from ipyllama.prefix.listing import PrefixInfo, entries, remove
from ipyllama.prefix.memory import PrefixMemory
from ipyllama.prefix.records import Binding, Check, Counts, Found, Stats
from ipyllama.prefix.store.backend import StoreBackend, register_store_backend
from ipyllama.prefix.store.block import Block, Origin, Probe
from ipyllama.prefix.store.local import LocalBackend
from ipyllama.prefix.store.remote import FsspecBackend

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
