"""Whether a model fits in this machine's memory: an estimate, with its numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ipyllama.models.header import GgufHeader
from ipyllama.models.kv import PLAIN_KV_TYPES, kv_bytes

_UBATCH = 512  # llama.cpp's default micro-batch
_PIECE = 256  # tokens that a prompt is evaluated by
_FIXED = 64 << 20  # vocabulary, graphs, allocator
_MAX_CTX, _MIN_CTX, _STEP = 8192, 512, 256


@dataclass(frozen=True, slots=True)
class Fit:
    """An estimate in bytes: what the model needs with `n_ctx` tokens of KV, and what is available."""

    n_ctx: int
    weights: int
    kv: int
    overhead: int
    available: int

    @property
    def needed(self) -> int:
        return self.weights + self.kv + self.overhead

    @property
    def ok(self) -> bool:
        return self.needed <= self.available

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        parts = f"weights {_size(self.weights)}, KV of {self.n_ctx:,} tokens {_size(self.kv)}"
        parts += f", buffers {_size(self.overhead)}"
        return f"{_size(self.needed)} needed ({parts}), {_size(self.available)} available"


def fits(
    header: GgufHeader,
    n_ctx: int,
    available_bytes: int | None = None,
    kv_type: str = "f16",
    n_sequences: int = 1,
    *,
    flash_attention: bool = False,
) -> Fit:
    """Estimate whether the model fits with `n_ctx` tokens of KV in cells of `kv_type`, for so many sequences.

    `available_bytes` defaults to what this machine, or the container's memory limit, has left now.
    """
    available = available_memory() if available_bytes is None else available_bytes
    # logits of a micro-batch are the largest buffer of a small model, activations of a large one
    overhead = _FIXED + _UBATCH * 4 * (header.n_vocab + 8 * header.n_embd)
    if header.causal and kv_type in PLAIN_KV_TYPES and not flash_attention:
        overhead += n_ctx * _PIECE * 4 * header.n_head  # every query of a piece with every key
    return Fit(n_ctx, header.expected_size, kv_bytes(header, n_ctx, kv_type, n_sequences), overhead, available)


def default_n_ctx(header: GgufHeader, available_bytes: int | None = None, kv_type: str = "f16") -> int:
    """The context to load with if nobody says: the model's own up to 8,192, halved down to 512 until it fits.

    A multiple of 256, except where the model was trained on less than that.
    """
    available = available_memory() if available_bytes is None else available_bytes
    n_ctx = min(header.n_ctx_train or _MAX_CTX, _MAX_CTX)
    if n_ctx > _STEP:
        n_ctx -= n_ctx % _STEP
    while n_ctx // 2 >= _MIN_CTX and not fits(header, n_ctx, available, kv_type):
        n_ctx = n_ctx // 2 - n_ctx // 2 % _STEP
    return n_ctx


def available_memory() -> int:
    """Bytes that can be taken now without swapping, within the memory limit of the container."""
    import psutil

    machine = int(psutil.virtual_memory().available)
    group = cgroup_available()
    return machine if group is None else min(machine, group)


def cgroup_available(membership: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes left under the tightest memory limit of this process's control groups (v2 or v1); None without a limit."""
    left = [_left(folder) for folder in _groups(membership, root)]
    return min((n for n in left if n is not None), default=None)


def _groups(membership: Path, root: Path) -> list[Path]:
    """The folders that hold this process's memory limits: its group and every group above it."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, inside = rest.partition(":")
        if "memory" in controllers.split(","):
            base = root / "memory"
        elif number == "0" and not controllers:
            base = root
        else:
            continue
        # inside a container the path may be the host's; then only the root is there
        group = base / inside.lstrip("/")
        folders += [group, *(p for p in group.parents if p.is_relative_to(base))]
    return folders


def _left(folder: Path) -> int | None:
    for limit_file, usage_file in (
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        try:
            limit = int((folder / limit_file).read_text())  # "max" is no number: no limit
            usage = int((folder / usage_file).read_text())
        except (OSError, ValueError):
            continue
        if limit < 1 << 60:  # v1 writes "no limit" as a huge number
            return max(0, limit - usage + _page_cache(folder))
    return None


def _page_cache(folder: Path) -> int:
    """Bytes of file cache in the group's usage: the kernel gives them up when memory is short."""
    try:
        rows = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return sum(int(row[1]) for row in rows if row[:1] in (["active_file"], ["inactive_file"]))
    except (OSError, ValueError, IndexError):
        return 0


def _size(n: int) -> str:
    return f"{n / 1e9:.1f} GB" if n >= 1e9 else f"{n / 1e6:.0f} MB"
