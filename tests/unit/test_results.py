"""joblib.Memory over JSON and `.npy`: what was kept comes back, damage is a miss, nothing in a folder is run."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ipyllama.errors import BadState, StoreError
from ipyllama.prefix.replies.results import NAME
from ipyllama.prefix.replies.values import decode, encode

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
DTYPES = hnp.integer_dtypes() | hnp.floating_dtypes(endianness="=") | hnp.boolean_dtypes() | hnp.unicode_string_dtypes()
ARRAYS = hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0))
VALUES = st.recursive(
    SCALARS | ARRAYS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)
)
CALL = ("module/function", "0" * 32)
RECORD = {"text": "ein Wort ✓", "numbers": [1, 2.5, None], "vectors": np.arange(6, dtype=np.float32).reshape(2, 3)}


class Function:
    """A memoised function that counts how often it is computed."""

    def __init__(self, folder: Path, value: Any = RECORD) -> None:
        self.computed = 0
        self.folder, self.value = folder, value
        self.memory = joblib.Memory(folder, backend=NAME, verbose=0)
        self._cached = self.memory.cache(result, ignore=["compute"])
        self._cached.check_call_in_cache("", None)

    def __call__(self, key: str = "key") -> Any:
        return self._cached(key, self._compute)

    def _compute(self) -> Any:
        self.computed += 1
        return self.value

    @property
    def entry(self) -> Path:
        """The folder of the only entry."""
        (entry,) = (path for path in self.folder.rglob("*") if len(path.name) == 32)
        return entry


def result(key: str, compute: Callable[[], Any]) -> Any:
    return compute()


@pytest.fixture
def function(tmp_path: Path) -> Function:
    function = Function(tmp_path / "store")
    function()
    return function


def again(folder: Path) -> Function:
    """The same, as a new process sees it."""
    return Function(folder)


def same(a: Any, b: Any) -> bool:
    return encode(CALL, a) == encode(CALL, b)


@settings(max_examples=50)
@given(VALUES)
def test_every_value_comes_back(value: Any) -> None:
    document, arrays = encode(CALL, value)
    found = decode(CALL, document, arrays.__getitem__)
    np.testing.assert_equal(found, value)
    assert encode(CALL, found) == (document, arrays)


@pytest.mark.parametrize(
    "value",
    [
        {1, 2},
        b"bytes",
        {1: "a number as key"},
        {"$npy": "x.npy"},
        np.array([object()]),
        np.array([{}]),
        object(),
        [{1}],
    ],
)
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="only JSON values and arrays"):
        encode(CALL, value)


def test_a_new_process_finds_what_was_kept(function: Function) -> None:
    other = again(function.folder)
    np.testing.assert_equal(other(), RECORD)
    assert (function.computed, other.computed) == (1, 0)
    assert other("another key") is RECORD
    assert other.computed == 1


def test_only_the_owner_reads_it(function: Function) -> None:
    for path in function.folder.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert stat.S_IMODE(function.folder.stat().st_mode) == 0o700
    assert (function.folder / ".gitignore").read_text() == "*\n"


def test_each_flipped_bit_is_a_miss_or_changes_nothing() -> None:
    document, arrays = encode(CALL, RECORD)
    ((name, array),) = arrays.items()
    misses = 0
    for content, other in ((document, False), (array, True)):
        for n in range(8 * len(content)):
            flipped = bytearray(content)
            flipped[n // 8] ^= 1 << n % 8
            try:
                found = decode(
                    CALL, document if other else bytes(flipped), {name: flipped if other else array}.__getitem__
                )
            except BadState:
                misses += 1
            except KeyError as error:
                pytest.fail(f"another file was asked for: {error}")
            else:
                assert same(found, RECORD)
    assert misses > 7 * (len(document) + len(array))


@pytest.mark.parametrize("name", ["output.json", "array"])
@pytest.mark.parametrize("damage", [b"", b"\0" * 50, b"[" * 100_000, b'{"sha256": 1, "result": []}', b"\xff\xfe"])
def test_a_damaged_entry_is_a_miss_and_replaced(function: Function, name: str, damage: bytes) -> None:
    path = function.entry / name if name != "array" else next(function.entry.glob("*.npy"))
    path.write_bytes(damage)
    other = again(function.folder)
    np.testing.assert_equal(other(), RECORD)
    assert other.computed == 1
    last = again(function.folder)
    np.testing.assert_equal(last(), RECORD)
    assert last.computed == 0


def test_another_calls_entry_is_no_answer(function: Function) -> None:
    first = function.entry
    function.value = {"text": "another"}
    function("other")
    (second,) = (path.parent for path in function.folder.rglob("output.json") if path.parent != first)
    shutil.copytree(first, second, dirs_exist_ok=True)
    other = again(function.folder)
    other.value = "computed"
    assert other("other") == "computed"


def test_arrays_cannot_point_elsewhere(tmp_path: Path) -> None:
    secret = tmp_path / "secret.npy"
    np.save(secret, np.arange(3))
    asked: list[str] = []
    body = {"format": 1, "call": list(CALL), "value": {"$npy": f"../{secret.name}"}}
    document = _signed(body)
    with pytest.raises(BadState, match="another file"):
        decode(CALL, document, lambda name: asked.append(name) or secret.read_bytes())  # type: ignore[func-returns-value]
    assert asked == []


def refused(folder: Path, why: str) -> None:
    """It cannot be used from the start."""
    joblib.memory._FUNCTION_HASHES.clear()  # as in a new process
    with pytest.raises(StoreError, match=why):
        Function(folder)


# -- hostile folders --------------------------------------------------------------------------------------


class Bomb:
    """Unpickling it makes a folder."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.target),)


NAMES = [
    "output.pkl",
    "output.pkl.gz",
    "output.pkl.z",
    "output.json",
    "metadata.json",
    "func_code.py",
    f"{'0' * 64}.npy",
]


def test_nothing_in_a_folder_is_unpickled(function: Function, tmp_path: Path) -> None:
    marker = tmp_path / "unpickled"
    bomb = pickle.dumps(Bomb(marker))
    array = next(function.entry.glob("*.npy"))
    folders = [function.folder, *(path for path in function.folder.rglob("*") if path.is_dir())]
    for name in [*NAMES, array.name]:
        for folder in folders:
            (folder / name).write_bytes(bomb)
        other = again(function.folder)
        np.testing.assert_equal(other(), RECORD)
        other.memory.reduce_size(items_limit=0)
        other.memory.clear(warn=False)
        other()
        assert not marker.exists(), name
    pickle.loads(bomb)
    assert marker.exists()  # it would have gone off


CODES = {
    "no code": b"",
    "no number": b"# first line: x\n",
    "no text": b"\xff\xfe",
    "a pickle": pickle.dumps(Bomb(Path("/nowhere"))),
    "another's": b"# first line: 3\ndef result(key, compute):\n    return 1\n",
}


@pytest.mark.parametrize("name", CODES)
def test_the_code_of_a_function_is_only_compared(function: Function, name: str) -> None:
    """With another function's code its results go; what is no code is replaced."""
    path = function.entry.parent / "func_code.py"
    joblib.memory._FUNCTION_HASHES.clear()  # as in a new process
    again(function.folder)
    right = path.read_bytes()
    path.write_bytes(CODES[name])
    joblib.memory._FUNCTION_HASHES.clear()
    other = again(function.folder)
    np.testing.assert_equal(other(), RECORD)
    assert other.computed == (1 if name == "another's" else 0)
    assert path.read_bytes() == right


def test_an_array_of_pickles_is_damage(tmp_path: Path) -> None:
    """Also where its checksum is right."""
    marker = tmp_path / "unpickled"
    np.save(tmp_path / "bomb.npy", np.array([Bomb(marker)], dtype=object), allow_pickle=True)
    content = (tmp_path / "bomb.npy").read_bytes()
    name = f"{hashlib.sha256(content).hexdigest()}.npy"
    document = _signed({"format": 1, "call": list(CALL), "value": {"$npy": name}})
    with pytest.raises(BadState):
        decode(CALL, document, lambda asked: content)
    assert not marker.exists()
    np.load(tmp_path / "bomb.npy", allow_pickle=True)
    assert marker.exists()


def test_links_lead_nowhere(function: Function, tmp_path: Path) -> None:
    """An entry, or the folder of all of them, that is a link to files of somebody else."""
    outside = tmp_path / "outside"
    entry = function.entry
    for inner in (entry, entry.parent):
        shutil.copytree(inner, outside)
        shutil.rmtree(inner)
        inner.symlink_to(outside)
        kept = sorted(path.name for path in outside.rglob("*"))
        other = again(function.folder) if inner == entry else None
        if other is not None:
            with pytest.warns(UserWarning, match="is a link or no folder"):
                np.testing.assert_equal(other(), RECORD)
            assert other.computed == 1
            other.memory.reduce_size(items_limit=0)
            other.memory.clear(warn=False)
        else:
            function.memory.reduce_size(items_limit=0)
            function.memory.clear(warn=False)
        assert sorted(path.name for path in outside.rglob("*")) == kept
        inner.unlink()
        shutil.rmtree(outside)
        function()
    target = tmp_path / "elsewhere"
    shutil.move(function.folder, target)
    function.folder.symlink_to(target)
    kept = sorted(target.rglob("*"))
    refused(function.folder, "is a link or no folder")
    assert sorted(target.rglob("*")) == kept


def test_what_others_put_there_stays(function: Function) -> None:
    folders = (function.folder, function.folder / "results", function.entry.parent)
    mine = [function.entry / "notes.txt", *(folder / "output.json" for folder in folders)]
    for path in mine:
        path.write_text("mine")
    function.memory.clear(warn=False)
    assert all(path.read_text() == "mine" for path in mine)
    assert list(function.entry.iterdir()) == [mine[0]]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_somebody_elses_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    refused(folder, "belongs to another user: choose another place")
    assert not list(folder.iterdir())


# -- limits, faults, company ------------------------------------------------------------------------------


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    function = Function(tmp_path, {"text": "x" * 10_000})
    for n in range(10):
        function(str(n))
    for age, n in enumerate([3, 7, 0, 1, 2, 4, 5, 6, 8, 9]):
        function(str(n))
        newest = max(tmp_path.rglob("output.json"), key=lambda path: path.stat().st_mtime_ns)
        for path in newest.parent.iterdir():
            os.utime(path, (time.time() - age * 60,) * 2)
    function.memory.reduce_size(bytes_limit=25_000)
    assert sum(path.stat().st_size for path in tmp_path.rglob("output.json")) < 25_000
    before = function.computed
    function("3")
    function("7")
    assert function.computed == before
    function("9")
    assert function.computed == before + 1


FULL = """
import resource, signal, sys, warnings
from pathlib import Path
import joblib
from ipyllama.prefix.replies.results import NAME
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
def length(text):
    return len(text)
function = joblib.Memory(Path(sys.argv[1]), backend=NAME, verbose=0).cache(length)
function("a")
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    print([function("x" * n) for n in range(3)], len(said), said[0].message)
"""


def test_a_full_disk_is_told_once(tmp_path: Path) -> None:
    """No file may grow beyond 100 bytes, as the operating system says it."""
    script, store = tmp_path / "script.py", tmp_path / "store"
    script.write_text(FULL)
    done = subprocess.run([sys.executable, script, store], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"[0, 1, 2] 1 nothing is saved in {store}: "), done.stdout + done.stderr
    assert not list((store / "tmp").iterdir())


COMPANY = """
import sys, random
from pathlib import Path
import joblib
from ipyllama.prefix.replies.results import NAME
def result(key, value):
    return value
memory = joblib.Memory(Path(sys.argv[1]), backend=NAME, verbose=0)
function = memory.cache(result, ignore=["value"])
print("ready", flush=True)
while True:
    n = random.randrange(20)
    assert function(n, {"n": n, "text": str(n) * 1000}) == {"n": n, "text": str(n) * 1000}
    if random.random() < 0.05:
        memory.reduce_size(items_limit=10)
"""


def test_killed_processes_leave_nothing_wrong(tmp_path: Path) -> None:
    """Two processes write, read and evict; each is killed in the midst of it."""
    script = tmp_path / "script.py"
    script.write_text(COMPANY)
    store = tmp_path / "store"
    processes = [
        subprocess.Popen([sys.executable, script, store], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
        time.sleep(1.5)
        assert [process.poll() for process in processes] == [None] * 2
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    found = 0
    for path in store.rglob("output.json"):
        call = (str(path.parents[1].relative_to(store / "results")), path.parent.name)
        value = decode(call, path.read_bytes(), lambda name: b"")
        assert value["text"] == str(value["n"]) * 1000
        found += 1
    assert found > 0


def _signed(body: dict[str, Any]) -> bytes:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    return json.dumps({"sha256": hashlib.sha256(canonical).hexdigest(), "result": body}).encode()
