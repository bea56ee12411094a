"""Prefix memory: what a prompt has cost once is never paid again."""

from ipyllama.prefix.block import Block, Origin, Probe
from ipyllama.prefix.keys import Cut
from ipyllama.prefix.memory import PrefixMemory
from ipyllama.prefix.records import Binding, Check, Counts, Found, Stats

__all__ = ["Binding", "Block", "Check", "Counts", "Cut", "Found", "Origin", "PrefixMemory", "Probe", "Stats"]
