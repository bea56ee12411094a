"""Memory estimates, and the memory limits of containers."""

from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from ipyllama.models import available_memory, default_n_ctx, fits, read_header
from ipyllama.models.fit import cgroup_available

GB = 1 << 30


def test_the_estimate_adds_up(smollm2):
    header = read_header(smollm2)
    fit = fits(header, 4096, GB)
    assert fit.weights == smollm2.stat().st_size
    assert fit.kv == 4096 * 23_040
    assert fit.needed == fit.weights + fit.kv + fit.overhead
    assert fit.ok
    assert not fits(header, 4096, fit.needed - 1)
    assert "KV of 4,096 tokens 94 MB" in str(fit)
    assert "1.1 GB available" in str(fit)


def test_the_default_context_shrinks_until_it_fits(smollm2):
    header = read_header(smollm2)
    assert default_n_ctx(header, 8 * GB) == 8192
    sizes = [default_n_ctx(header, available) for available in range(0, GB, GB // 64)]
    assert set(sizes) == {512, 1024, 2048, 4096, 8192}
    assert sizes == sorted(sizes)
    for available in range(0, GB, GB // 64):
        n_ctx = default_n_ctx(header, available)
        assert n_ctx == 512 or fits(header, n_ctx, available)
        assert n_ctx == 8192 or not fits(header, 2 * n_ctx, available)


@pytest.mark.parametrize(
    ("trained", "expected"), [(131_072, 8192), (0, 8192), (2000, 1792), (512, 512), (300, 256), (128, 128)]
)
def test_the_default_context_follows_training(smollm2, trained, expected):
    assert default_n_ctx(replace(read_header(smollm2), n_ctx_train=trained), 8 * GB) == expected


@pytest.mark.parametrize("trained", [2000, 3000, 5000, 7777])
def test_the_default_context_is_a_multiple_of_256(smollm2, trained):
    header = replace(read_header(smollm2), n_ctx_train=trained)
    for available in range(0, GB, GB // 16):
        n_ctx = default_n_ctx(header, available)
        assert n_ctx % 256 == 0
        assert n_ctx >= 512


def group(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content)
    return folder


def test_cgroup_v2_takes_the_tightest_limit(tmp_path):
    root = tmp_path / "cgroup"
    (tmp_path / "self").write_text("0::/pod/box\n")
    group(root, memory__stat="anon 1\n")
    group(
        root / "pod", memory__max="3000\n", memory__current="1000\n", memory__stat="active_file 50\ninactive_file 7\n"
    )
    group(root / "pod" / "box", memory__max="max\n", memory__current="900\n")
    assert cgroup_available(tmp_path / "self", root) == 2057


def test_cgroup_v1_with_the_path_of_the_host(tmp_path):
    root = tmp_path / "cgroup"
    (tmp_path / "self").write_text("3:cpu:/\n5:memory,other:/docker/abc\n0::/\n")
    group(root / "memory", memory__limit_in_bytes="5000", memory__usage_in_bytes="6000")
    assert cgroup_available(tmp_path / "self", root) == 0
    group(root / "memory", memory__limit_in_bytes=str(0x7FFFFFFFFFFFF000))
    assert cgroup_available(tmp_path / "self", root) is None


def test_no_cgroups_no_limit(tmp_path):
    assert cgroup_available(tmp_path / "nothing", tmp_path) is None


def test_available_memory_is_what_the_machine_has():
    assert 0 < available_memory() <= psutil.virtual_memory().total
