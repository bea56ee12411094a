"""Records of replies by key: in RAM and on disk, within their limits, and a miss where anything is wrong."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import joblib
import pytest

from ipyllama.prefix import PrefixMemory
from ipyllama.prefix.replies.memo import RAM_LIMIT, Replies, recorded, replies_location
from ipyllama.prefix.replies.results import NAME
from ipyllama.prefix.store.local import LocalBackend

KEY, OTHER = "a" * 64, "b" * 64


def record(text: str = "Yes.", **changes: Any) -> dict[str, Any]:
    timings = {"queued": 0.1, "prefill": 0.2, "first_token": 0.3, "decode": 1.5}
    return {"text": text, "tokens": [1, 2, 3], "finish_reason": "stop", "timings": timings, **changes}


def make(location: Path | None) -> Replies:
    return Replies(location, warnings.warn)


def kept(location: Path, *keys: str) -> None:
    """What a process leaves that put these."""
    replies = make(location)
    for key in keys:
        replies.put(key, record(key))
    replies.flush()


def size(location: Path) -> int:
    return sum(path.stat().st_size for path in location.rglob("output.json"))


@pytest.mark.parametrize("where", ["RAM", "disk"])
def test_what_was_put_is_found(tmp_path: Path, where: str) -> None:
    replies = make(tmp_path / "replies" if where == "disk" else None)
    assert replies.get(KEY) is None
    replies.put(KEY, record())
    assert replies.get(KEY) == record()
    assert replies.get(OTHER) is None
    replies.clear()
    assert replies.get(KEY) is None


def test_another_process_finds_it(tmp_path: Path) -> None:
    kept(tmp_path, KEY)
    other = make(tmp_path)
    assert other.get(KEY) == record(KEY)
    assert other.get(OTHER) is None
    other.clear()
    assert make(tmp_path).get(KEY) is None


def test_asking_makes_no_folder(tmp_path: Path) -> None:
    replies = make(tmp_path / "replies")
    replies.prepare()
    assert replies.get(KEY) is None
    replies.clear()
    replies.flush()
    assert not (tmp_path / "replies").exists()


def test_switched_off_it_neither_finds_nor_keeps(tmp_path: Path) -> None:
    replies = make(tmp_path)
    replies.put(KEY, record())
    replies.enabled = False
    replies.put(OTHER, record())
    assert replies.get(KEY) is None
    replies.enabled = True
    assert replies.get(KEY) == record()
    assert replies.get(OTHER) is None


@pytest.mark.parametrize(
    "wrong",
    [
        "text",
        [],
        record(text=1),
        record(tokens="abc"),
        record(tokens=[1, "2"]),
        record(finish_reason="interrupted"),
        record(finish_reason="context"),
        record(timings={"queued": "long"}),
        record(timings={"of a later version": 1.0}),
        record("half a character: \ud800"),
        record(tokens=[]),
        record(tokens=[True]),
        record(tokens=[-1]),
        record(tokens=[1 << 70]),
        {"text": "no more"},
    ],
)
def test_a_record_of_another_kind_is_a_miss(tmp_path: Path, wrong: Any) -> None:
    write = joblib.Memory(tmp_path, backend=NAME, verbose=0).cache(recorded, ignore=["entry"]).call
    write(KEY, {"key": KEY, "record": wrong})
    write(OTHER, {"key": OTHER, "record": record()})
    assert make(tmp_path).get(KEY) is None
    assert make(tmp_path).get(OTHER) == record()


def test_the_key_within_must_be_the_key(tmp_path: Path) -> None:
    """joblib names files by an MD5 of it, which others can make collide."""
    write = joblib.Memory(tmp_path, backend=NAME, verbose=0).cache(recorded, ignore=["entry"]).call
    write(KEY, {"key": OTHER, "record": record()})
    assert make(tmp_path).get(KEY) is None


def test_a_folder_that_vanishes_comes_back(tmp_path: Path) -> None:
    location = tmp_path / "replies"
    replies = make(location)
    replies.put(KEY, record())
    replies.flush()
    shutil.rmtree(location)
    assert replies.get(KEY) == record()  # RAM has it
    replies.put(OTHER, record("again"))
    replies.flush()
    assert make(location).get(OTHER) == record("again")
    assert make(location).get(KEY) is None


def test_where_nothing_can_be_written_one_warning_is_given(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    replies = make(tmp_path / "file" / "replies")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for key in (KEY, OTHER):
            replies.put(key, record(key))
            replies.flush()
            assert replies.get(key) == record(key)
    assert [str(warning.message) for warning in said] == [replies.problem]
    assert replies.problem.startswith(f"nothing is saved in {tmp_path / 'file' / 'replies'}: ")


READ_ONLY = f"""
import os, sys, warnings
from pathlib import Path
from ipyllama.prefix.replies.memo import Replies
store = Path(sys.argv[1])
replies = Replies(store, warnings.warn)
assert replies.get({OTHER!r}) is None
for path in [store, *store.rglob("*")]:
    path.chmod(0o500 if path.is_dir() else 0o400)
    if os.getuid() == 0:
        os.chown(path, 65534, 65534)
if os.getuid() == 0:  # who may write everywhere
    os.setuid(65534)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    for n in range(3):
        replies.put(str(n), {record()!r})
        replies.flush()
        assert replies.get(str(n)) == {record()!r}
        print(replies.get({KEY!r})["text"] == {KEY!r}, len(said), said[0].message)
        replies._recent.clear()
"""


def test_a_folder_that_can_only_be_read_is_read(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        store = folder / "replies"
        kept(store, KEY)
        done = subprocess.run([sys.executable, "-c", READ_ONLY, store], capture_output=True, text=True, check=True)
        lines = done.stdout.splitlines()
        assert len(lines) == 3, done.stderr
        assert set(lines) == {lines[0]}
        assert lines[0].startswith(f"True 1 nothing is saved in {store}: it may not be written to")
        for path in [store, *store.rglob("*")]:
            path.chmod(0o700)


def test_the_ram_limit_holds() -> None:
    replies = make(None)
    for n in range(40):
        replies.put(str(n), record("x" * 1_000_000))
        assert replies._nbytes == sum(map(len, replies._recent.values())) <= RAM_LIMIT
    assert replies.get("0") is None
    assert replies.get("39") is not None
    replies.put("huge", record("x" * RAM_LIMIT))
    assert replies.get("huge") is None


def test_the_disk_limit_holds(tmp_path: Path) -> None:
    replies = Replies(tmp_path, warnings.warn, bytes_limit=80_000)
    for n in range(60):
        replies.put(str(n), record("x" * 4000))
        replies.flush()
        assert size(tmp_path) < 80_000 * 9 // 8 + 5000
    assert size(tmp_path) > 60_000
    assert make(tmp_path).get("0") is None
    assert make(tmp_path).get("59") is not None


def test_a_forked_process_keeps_replies_too(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK, tmp_path], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "child\nparent\n", done.stderr
    assert make(tmp_path).get(OTHER) == record("child")


FORK = f"""
import os, sys, warnings
from pathlib import Path
from ipyllama.prefix.replies.memo import Replies
record = lambda text: {record()!r} | {{"text": text}}
replies = Replies(Path(sys.argv[1]), warnings.warn)
replies.put({KEY!r}, record("parent"))
replies.flush()
child = os.fork()
if not child:
    replies.put({OTHER!r}, record("child"))
    replies.flush()
    print(replies.get({OTHER!r})["text"], flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(replies.get({KEY!r})["text"])
"""


@pytest.mark.parametrize(
    ("prefix", "replies"),
    [(None, None), ("/n/.ipyllama/lesson/prefix", "/n/.ipyllama/lesson/replies"), ("/my/cache", "/my/cache/replies")],
)
def test_replies_lie_beside_the_prefixes(prefix: str | None, replies: str | None) -> None:
    found = PrefixMemory(prefix).replies.location
    assert found == replies_location(Path(prefix) if prefix else None) == (Path(replies) if replies else None)


def test_git_ignores_a_folder_that_replies_came_to_first(tmp_path: Path) -> None:
    memory = PrefixMemory(tmp_path / "new")
    memory.replies.put(KEY, record())
    memory.flush()
    LocalBackend(tmp_path / "new").write("block", [memoryview(b"state")])
    assert (tmp_path / "new" / ".gitignore").read_text() == "*\n"


def test_a_folder_that_no_system_can_have_is_told_of_once() -> None:
    told: list[str] = []
    replies = Replies(Path("/", "a" * 300, "replies"), told.append)
    replies.prepare()
    assert replies.get(KEY) is None
    replies.put(KEY, record())
    replies.put(OTHER, record())
    replies.flush()
    assert (len(told), replies.get(KEY)) == (1, record())


def test_a_slow_disk_is_no_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """joblib takes it for large arguments."""
    replies = make(tmp_path / "replies")
    write = LocalBackend.write

    def slowly(*arguments: Any, **options: Any) -> None:
        time.sleep(0.6)
        write(*arguments, **options)

    monkeypatch.setattr(LocalBackend, "write", slowly)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        replies.put(KEY, record())
        replies.flush()
    assert [str(each.message) for each in seen] == []
    assert make(tmp_path / "replies").get(KEY) == record()
