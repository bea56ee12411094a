"""How a model is loaded: what to ask of llama.cpp, and the load itself."""

from __future__ import annotations

import operator
import os
import threading
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from ipyllama import _core, crash
from ipyllama.engine import native_log
from ipyllama.engine.schedule import PIECE
from ipyllama.errors import BadModelFile, BadOption, NotEnoughMemory
from ipyllama.models import KV_TYPES, PLAIN_KV_TYPES, LocalModel, Progress, default_n_ctx, fits
from ipyllama.options import did_you_mean

ENCODER_N_CTX: Final = 2048
"""Longest text of an encoder unless a larger n_ctx is asked for: buffers grow with the square of it."""

_WHOLE_NUMBERS: Final = {
    "n_ctx": (1, 1 << 24),
    "n_threads": (1, 512),
    "n_gpu_layers": (-1, 1 << 16),
    "n_parallel": (1, 64),
    "ram_limit": (0, 1 << 50),
}


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a model is loaded. None leaves the choice to this machine.

    Raises `BadOption`, in one line with what is allowed, for a value that cannot be used.
    """

    n_ctx: int | None = None
    """tokens of context; default: what the model was trained on, up to 8,192, as far as memory allows; for encoders
    the longest text, up to 2,048"""
    n_threads: int | None = None
    """CPU threads; default: physical cores that this process may use"""
    n_gpu_layers: int = -1
    """layers on the GPU, where there is one; -1 is all"""
    kv_type: str = "f16"
    """type of KV cells: f16, q8_0 ..."""
    flash_attention: bool | None = None
    """default: off on a CPU with KV that is not quantised, where it makes the writing after long prompts two to three
    times slower; elsewhere llama.cpp decides"""
    use_mmap: bool = True
    """map the weights from the file, so that they are shared and load fast"""
    n_parallel: int = 8
    """most answers that are written at once (`LLM.samples`, `LLM.map`); recurrent models hold a state for each"""
    ram_limit: int | None = None
    """bytes of KV that may wait in RAM, 0 keeps only the active branch; default: what the `PrefixMemory` says, 1 GiB"""

    def __post_init__(self) -> None:
        for name, (low, high) in _WHOLE_NUMBERS.items():
            value = getattr(self, name)
            if value is None and name != "n_gpu_layers":
                continue
            number = -2 if isinstance(value, bool) or not hasattr(value, "__index__") else operator.index(value)
            if not low <= number <= high:
                raise BadOption(f"{name} must be a whole number between {low:,} and {high:,}: got {value!r}")
            object.__setattr__(self, name, number)
        for name in ("flash_attention", "use_mmap"):
            value = getattr(self, name)
            if not isinstance(value, bool) and (value is not None or name == "use_mmap"):
                raise BadOption(f"{name} must be True or False: got {value!r}")
        if self.kv_type not in KV_TYPES:
            raise BadOption(f"kv_type must be one of {', '.join(KV_TYPES)}: got {self.kv_type!r}")


def load_options(options: dict[str, Any]) -> LoadOptions:
    """`LoadOptions` by keyword. Raises `BadOption` for an unknown name."""
    known = [field.name for field in fields(LoadOptions)]
    for name in options:
        if name not in known:
            hint = did_you_mean(name, known) or f"known are {', '.join(known)}"
            raise BadOption(f"unknown load option '{name}': {hint}")
    return LoadOptions(**options)


def satisfies(has: LoadOptions, wanted: LoadOptions) -> bool:
    """True if `has`, chosen in full, is what was asked for."""
    return all(getattr(wanted, f.name) in (None, getattr(has, f.name)) for f in fields(LoadOptions))


def choose(found: LocalModel, options: LoadOptions) -> LoadOptions:
    """Fill in what was left to this machine; refuse what cannot fit, before anything is allocated."""
    header = found.header
    n_ctx = options.n_ctx
    if n_ctx is None:
        n_ctx = default_n_ctx(header, kv_type=options.kv_type)
        n_ctx = n_ctx if header.causal else min(n_ctx, ENCODER_N_CTX)
    flash_attention = options.flash_attention
    if flash_attention is None and header.causal and options.kv_type in PLAIN_KV_TYPES and not uses_gpu(options):
        flash_attention = False
    fit = fits(
        header,
        n_ctx,
        kv_type=options.kv_type,
        n_sequences=options.n_parallel + 1,
        flash_attention=flash_attention is not False,
    )
    if not fit:
        less = "a smaller model or n_ctx" if flash_attention else "a smaller model or n_ctx, or flash_attention=True"
        raise NotEnoughMemory(f"{found.name} does not fit: {fit}. Choose {less}.")
    return replace(
        options, n_ctx=n_ctx, n_threads=options.n_threads or physical_cores(), flash_attention=flash_attention
    )


def uses_gpu(options: LoadOptions) -> bool:
    """True if layers go to a device that is no CPU."""
    return options.n_gpu_layers != 0 and any(name != "CPU" for name, _ in _core.devices())


def context_options(options: LoadOptions) -> _core.ContextOptions:
    """The native form; steps are one piece of the evaluation schedule long."""
    native = _core.ContextOptions()
    native.n_ctx = max(options.n_ctx, PIECE) if options.n_ctx else 0  # a step is no longer than the context
    native.n_batch = PIECE
    native.n_seq_max = options.n_parallel + 1  # one is the active sequence
    native.n_threads = options.n_threads or 1
    native.type_k = native.type_v = options.kv_type
    native.flash_attention = -1 if options.flash_attention is None else int(options.flash_attention)
    return native


FileId = tuple[Path, int, int, int, int]
"""A file as it is now: path, device, inode, size, time of change. Another file under the same name is another."""


def identify(path: Path) -> FileId:
    """Which file this is."""
    real = Path(path).resolve()
    info = real.stat()
    return real, info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns


def load_weights(path: Path, options: LoadOptions, progress: Progress | None) -> _core.Model:
    """Load on a thread of its own, so that Ctrl-C cancels and progress can be shown."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise BadModelFile(f"{path.name!a} is not a UTF-8 name: rename the file") from None
    size, watch = path.stat().st_size, _core.LoadProgress()
    result: list[_core.Model | BaseException] = []

    def work() -> None:
        try:
            with crash.running(f"loading {path.name}"):
                model = _core.Model.load(
                    str(path), n_gpu_layers=options.n_gpu_layers, use_mmap=options.use_mmap, progress=watch
                )
            result.append(model)
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits
            result.append(error)

    thread = threading.Thread(target=work, name="ipyllama-load", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.05)
            if progress is not None:
                progress(int(watch.fraction * size), size, f"loading {path.name}")
    except BaseException:
        watch.cancel()
        thread.join()
        raise
    finally:
        native_log.forward()
    if isinstance(result[0], BaseException):
        raise result[0]
    if result[0].has_encoder or not result[0].has_decoder:
        result[0].close()
        raise BadModelFile(f"{path.name} has an encoder and a decoder, which is not supported: load another model")
    return result[0]


def physical_cores() -> int:
    """Physical cores that this process may use; hyper-threads do not speed llama.cpp up."""
    import psutil

    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        allowed = os.cpu_count() or 1
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))
