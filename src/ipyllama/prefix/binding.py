"""What a state depends on: nothing that is not in here may change it, and nothing else is in here."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ipyllama import _core
from ipyllama.engine import PIECE
from ipyllama.models.fingerprint import fingerprint
from ipyllama.prefix.keys import Cut
from ipyllama.prefix.records import Binding
from ipyllama.prefix.store.block import VERSION, Origin

if TYPE_CHECKING:
    from ipyllama.loading import LoadOptions

_SWITCHES: Final = ("LLAMA_ATTN_ROT_DISABLE",)
"""Variables of the environment that make llama.cpp compute something else."""


def binding(name: str, path: Path, model: _core.Model, options: LoadOptions) -> Binding:
    """How the states of a loaded model are named and cut. Not part of it: context size, GPU layers."""
    settings = {
        "kv_type": options.kv_type,
        "flash_attention": options.flash_attention,
        "switches": {name: os.environ[name] for name in _SWITCHES if name in os.environ},
        "format": VERSION,
        "piece": PIECE,
    }
    weights = fingerprint(path)
    digest = hashlib.sha256(weights)
    digest.update(json.dumps(settings, sort_keys=True).encode())
    info = _core.build_info()
    build = hashlib.sha256(json.dumps([info, _core.system_info()], sort_keys=True).encode()).hexdigest()[:16]
    recurrent = model.is_recurrent or model.is_hybrid
    return Binding(
        digest.digest(),
        Cut(min(PIECE, model.n_swa or PIECE), sampled=not recurrent),
        Origin(build, options.n_threads or 1),
        model=name,
        weights=weights.hex(),
        settings=settings,
    )
