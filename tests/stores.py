"""Model stores as other programs lay them out."""

import json
import os
from pathlib import Path


def put(path: Path, content: bytes = b"GGUF") -> Path:
    """A file, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def hub_file(hub: Path, repo: str, file: str, commit: str = "c0ffee", content: bytes = b"GGUF") -> Path:
    """As huggingface_hub lays its cache out: a blob, and a link to it in a snapshot."""
    folder = hub / f"models--{repo.replace('/', '--')}"
    blob = put(folder / "blobs" / f"{commit}-{file.replace('/', '-')}", content)
    link = folder / "snapshots" / commit / file
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(blob, link.parent))
    put(folder / "refs" / "main", b"c0ffee")
    return link


def ollama_model(store: Path, path: str, digest: str = "a" * 64, content: bytes = b"GGUF") -> Path:
    """As Ollama lays its store out: a manifest that names the weights by digest."""
    layers = [
        {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:" + "b" * 64},
        {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"},
        {"mediaType": "application/vnd.ollama.image.projector", "digest": "sha256:" + "c" * 64},
    ]
    put(store / "manifests" / path, json.dumps({"schemaVersion": 2, "layers": layers}).encode())
    return put(store / "blobs" / f"sha256-{digest}", content)
