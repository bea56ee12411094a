"""A file system of fsspec in memory that answers slowly, not at all, with errors or with damage, as it is told."""

from __future__ import annotations

import threading
import time
from typing import Any

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


class Weather:
    """What happens to each request from now on."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.delay, self.fetch_delay, self.error, self.flip = 0.0, 0.0, False, False
        self.hang = threading.Event()
        self.hang.set()
        self.requests: list[str] = []
        self.at_once, self.most_at_once = 0, 0
        self.lock = threading.Lock()

    def blow(self, request: str) -> None:
        with self.lock:
            self.requests.append(request)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            time.sleep(self.delay + (self.fetch_delay if request == "cat" else 0.0))
            self.hang.wait(300)
            if self.error:
                raise RuntimeError("the cable is cut")  # libraries have errors of their own
        finally:
            with self.lock:
                self.at_once -= 1


weather = Weather()


class StormyFileSystem(MemoryFileSystem):
    """`stormy://`"""

    protocol = "stormy"
    store: dict[str, Any] = {}  # noqa: RUF012 - fsspec's own way
    pseudo_dirs = [""]  # noqa: RUF012

    def info(self, path: str, **options: Any) -> Any:
        weather.blow("info")
        return super().info(path, **options)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        weather.blow("cat")
        content: bytes = super().cat_file(path, start=start, end=end, **options)
        return content[:-1] + bytes([content[-1] ^ 1]) if weather.flip else content

    def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
        weather.blow("pipe")
        super().pipe_file(path, value, **options)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("stormy://", "memory://"))


fsspec.register_implementation("stormy", StormyFileSystem, clobber=True)
