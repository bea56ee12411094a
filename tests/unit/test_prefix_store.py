"""Stores: the same primitives everywhere, and on a disk nobody else's files."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import pytest
from blocks import ROOT, is_true, local_store, make_block, make_chain, number
from fsspec.implementations.memory import MemoryFileSystem

from ipyllama.errors import BadOption, BadState, StoreBusy, StoreError
from ipyllama.prefix import FsspecBackend, LocalBackend, PrefixMemory, StoreBackend, register_store_backend
from ipyllama.prefix.store.backend import PRIMITIVES, make_backend
from ipyllama.prefix.store.blocks import BlockStore, Usage, block_name
from ipyllama.prefix.store.local import _create

NOBODY = 65534
Backend = Callable[[], StoreBackend]
as_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture(params=["local", "file", "memory"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreBackend]:
    """Every kind of store that needs no network, empty."""
    MemoryFileSystem.store.clear()
    places = {"local": tmp_path / "store", "file": f"file://{tmp_path}/store", "memory": "memory://store"}
    yield make_backend("local" if request.param == "local" else "fsspec", places[request.param])
    MemoryFileSystem.store.clear()


def test_primitives(backend: StoreBackend) -> None:
    assert (list(backend.items("a")), backend.exists("a/b")) == ([], False)
    with pytest.raises(FileNotFoundError):
        backend.open("a/b")
    backend.delete("a/b")
    backend.write("a/b", (memoryview(b"one"), memoryview(b" and two")))
    backend.write("a/b", (memoryview(b"three"),), durable=False)
    backend.write("a/c/d", (memoryview(b""),))
    with backend.open("a/b") as file:
        assert (file.seek(0, os.SEEK_END), file.seek(1), file.read(2), file.read()) == (5, 1, b"hr", b"ee")
    backend.touch("a/b")
    assert {item.name: item.nbytes for item in backend.items("a")} == {"a/b": 5, "a/c/d": 0}
    assert all(abs(item.used - time.time()) < 60 for item in backend.items("a"))
    backend.move("a/b", "e/f")
    assert (backend.exists("a/b"), backend.exists("e/f"), backend.exists("e")) == (
        False,
        True,
        isinstance(backend, LocalBackend) or backend.exists("e"),
    )
    backend.delete("e/f")
    assert not backend.exists("e/f")
    with backend.lock():
        backend.write("g", (memoryview(b"h"),))
    assert not list(backend.items("tmp"))


def test_blocks_in_any_store(backend: StoreBackend) -> None:
    store, links = BlockStore(backend), make_chain(range(12))
    assert store.read(ROOT, links[0].key) is None
    sizes = [store.write(make_block(link)) for link in links]
    assert sum(entry.nbytes for entry in store.entries()) == sum(sizes)
    for link in links:
        found = store.read(link.parent, link.key)
        assert found is not None
        assert found.link == link
        assert is_true(found)
        assert [entry.key for entry in store.children(link.parent)] == [link.key]
    assert store.verify() == []
    with store.locked():
        store.set_usage(Usage(sum(sizes), 5.0))
        assert store.usage() == Usage(sum(sizes), 5.0)
    store.quarantine(links[0].parent, links[0].key)
    assert [entry.key for entry in store.quarantined()] == [links[0].key]
    assert not store.has(links[0].parent, links[0].key)
    for entry in list(store.entries()):
        store.delete(entry)
    assert list(store.entries()) == []


def test_damage_is_found_named_and_put_aside(backend: StoreBackend) -> None:
    store, (first, second, third) = BlockStore(backend), make_chain(range(12))
    for link in (first, second):
        store.write(make_block(link))
    with backend.open(block_name(first.parent, first.key)) as file:
        content = bytearray(file.read())
    backend.write(block_name(third.parent, third.key), (memoryview(bytes(content)),))  # another block's place
    content[-1] ^= 1
    backend.write(block_name(first.parent, first.key), (memoryview(bytes(content)),))
    with pytest.raises(BadState, match="its state is damaged"):
        store.read(first.parent, first.key)
    with pytest.raises(BadState, match="another block's name"):
        store.read(third.parent, third.key)
    steps: list[tuple[int, int | None]] = []
    named = store.verify(lambda done, total, label: steps.append((done, total)))
    assert len(named) == 2
    assert any("its state is damaged" in line for line in named)
    assert steps == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert len(list(store.quarantined())) == 2
    assert not store.has(first.parent, first.key)
    store.write(make_block(first))
    assert store.has(first.parent, first.key)


def test_notes(backend: StoreBackend) -> None:
    store = BlockStore(backend)
    assert store.notes() == {}
    store.put_note("ROOT-16_a", {"model": "smollm2", "n": [1, 2]})
    store.put_note("ROOT-16_a", {"model": "smollm2", "n": 3})
    backend.write("notes/list.json", (memoryview(b"[1]"),))
    backend.write("notes/no json.json", (memoryview(b"{}"),))
    backend.write("notes/broken.json", (memoryview(b'{"a":'),))
    backend.write("notes/deep.json", (memoryview(b"[" * 60_000),))
    backend.write("notes/large.json", (memoryview(b'{"a": "' + b"x" * 70_000 + b'"}'),))
    assert store.notes() == {"ROOT-16_a": {"model": "smollm2", "n": 3}}


@pytest.mark.parametrize("name", ["", "../x", "a/b", "a.b", "x" * 65, "ä", "a\n"])
def test_a_note_has_a_plain_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadOption, match="a note's name"):
        local_store(tmp_path / "store").put_note(name, {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [{"a": object()}, {"a": float("nan")}, {"a": "x" * 70_000}])
def test_a_note_is_small_json(tmp_path: Path, content: dict[str, object]) -> None:
    with pytest.raises(BadOption, match="a note"):
        local_store(tmp_path).put_note("a", content)


# -- kinds of stores --------------------------------------------------------------------------------------------


class Dictionary:
    """A store of a user's own, in a few lines."""

    shared: dict[str, dict[str, bytes]] = {}  # noqa: RUF012 - a place that outlives its stores

    def __init__(self, location: str | os.PathLike[str]) -> None:
        self._items = self.shared.setdefault(os.fspath(location), {})
        self._lock = threading.RLock()

    def open(self, name: str) -> BytesIO:
        if name not in self._items:
            raise FileNotFoundError(name)
        return BytesIO(self._items[name])

    def write(self, name, parts, durable=True):
        self._items[name] = b"".join(parts)

    def exists(self, name):
        return name in self._items

    def delete(self, name):
        self._items.pop(name, None)

    def move(self, name, to):
        self._items[to] = self._items.pop(name)

    def touch(self, name):
        pass

    def items(self, folder):
        from ipyllama.prefix.store.backend import Item

        return [Item(name, len(value), 0.0) for name, value in self._items.items() if name.startswith(folder + "/")]

    def lock(self):
        return self._lock


def test_a_store_of_ones_own() -> None:
    register_store_backend("dictionary", Dictionary)
    register_store_backend("dictionary", Dictionary)  # a cell that runs again
    memory = PrefixMemory("somewhere", backend="dictionary")
    blocks = [make_block(link) for link in make_chain(range(8))]
    for block in blocks:
        memory.save(block)
    assert memory.flush(60)
    other = PrefixMemory("somewhere", backend="dictionary")
    assert other.stats().disk_blocks == 2
    assert other.store is not None
    found = other.store.read(blocks[1].link.parent, blocks[1].link.key)
    assert found is not None
    assert is_true(found)
    memory.clear()
    assert other.stats().disk_blocks == 0


def test_a_class_that_lacks_something_is_refused() -> None:
    class Half:
        def open(self, name: str) -> BytesIO:
            return BytesIO()

    with pytest.raises(BadOption, match=r"Half cannot be a store: it has no write, no exists, .* no lock"):
        register_store_backend("half", Half)  # type: ignore[type-abstract, arg-type]
    with pytest.raises(BadOption, match="there is no store backend 'half': known are"):
        PrefixMemory("x", backend="half")


def test_a_name_is_given_once() -> None:
    with pytest.raises(BadOption, match="there is a store backend 'local' already"):
        register_store_backend("local", FsspecBackend)
    assert {name for name in PRIMITIVES if callable(getattr(LocalBackend, name))} == set(PRIMITIVES)


def test_a_password_is_shown_nowhere() -> None:
    memory = PrefixMemory(remote="ftp://me:secret@host/folder")
    assert (memory.places, memory.stats().remote) == (("", "ftp://host/folder"), "ftp://host/folder")


def test_a_protocol_that_nobody_speaks_is_named() -> None:
    with pytest.raises(BadOption, match=r"nosuch://x cannot be opened: .*nosuch"):
        FsspecBackend("nosuch://x").exists("a")


# -- a folder on disk -------------------------------------------------------------------------------------------


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o777])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_files_and_folders_are_their_owners_alone(tmp_path: Path, umask: int) -> None:
    folder = tmp_path / ".ipyllama" / "notebook" / "prefix"
    store = local_store(folder)
    with store.locked():
        store.write(make_block(number(1)))
        store.set_usage(Usage(1, 1.0))
    store.put_note("note", {})
    store.quarantine(number(1).parent, number(1).key)
    modes = {str(path.relative_to(tmp_path)): stat.S_IMODE(path.lstat().st_mode) for path in tmp_path.rglob("*")}
    folders = {name for name in modes if (tmp_path / name).is_dir()}
    assert {modes[name] for name in folders} == {0o700}
    assert {modes[name] for name in modes.keys() - folders} == {0o600}
    names = {name.rpartition("/")[2] for name in modes}
    assert {".gitignore", "lock", "usage", "note.json", "quarantine", "blocks", "prefix"} <= names
    assert (folder / ".gitignore").read_text() == "*\n"


def test_a_folder_that_was_there_stays_as_it_was(tmp_path: Path) -> None:
    """`cache="."`: what else lies there is no concern of ours, nor is git to ignore it."""
    (tmp_path / "work.py").touch()
    tmp_path.chmod(0o755)
    local_store(tmp_path).write(make_block(number(1)))
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    assert not (tmp_path / ".gitignore").exists()
    assert stat.S_IMODE((tmp_path / "blocks").stat().st_mode) == 0o700


def test_making_one_and_asking_it_touches_nothing(tmp_path: Path) -> None:
    memory = PrefixMemory(tmp_path / "a" / "b")
    assert memory.store is not None
    assert not memory.store.has(ROOT, ROOT)
    assert memory.store.read(ROOT, ROOT) is None
    assert (memory.stats().disk_blocks, memory.verify(), memory.store.notes()) == (0, [], {})
    memory.store.quarantine(ROOT, ROOT)
    assert not (tmp_path / "a" / "b" / "blocks").exists()


@as_root
@pytest.mark.parametrize("part", ["", "blocks", "tmp", "blocks/{shard}"])
def test_what_belongs_to_another_user_is_refused(tmp_path: Path, part: str) -> None:
    folder, link = tmp_path / "store", number(1)
    local_store(folder).write(make_block(link))
    place = folder / part.format(shard=link.parent.hex()[:2])
    os.chown(place, NOBODY, NOBODY)
    store = local_store(folder)
    with pytest.raises(StoreError, match=r"belongs to another user: choose another place: load\(..., cache=FOLDER\)"):
        store.write(make_block(number(2)))
    if not part:  # the whole of it: nothing is read, either
        assert not store.has(link.parent, link.key)
        assert list(store.entries()) == []


@as_root
def test_a_file_of_another_user_is_not_read(tmp_path: Path) -> None:
    store, link = local_store(tmp_path), number(1)
    store.write(make_block(link))
    os.chown(tmp_path / block_name(link.parent, link.key), NOBODY, NOBODY)
    with pytest.raises(BadState, match="it belongs to another user"):
        store.read(link.parent, link.key)


@as_root
def test_another_user_is_told_where_to_go() -> None:
    with tempfile.TemporaryDirectory() as place:  # all may enter it, unlike pytest's
        os.chmod(place, 0o755)
        folder = Path(place) / "store"
        local_store(folder).write(make_block(number(1)))
        folder.chmod(0o755)
        os.seteuid(NOBODY)
        try:
            memory = PrefixMemory(folder)
            memory.save(make_block(number(2)))
            with pytest.warns(UserWarning, match="belongs to another user: choose another place"):
                memory.flush(60)
            assert not local_store(folder).has(number(1).parent, number(1).key)
        finally:
            os.seteuid(0)


@pytest.mark.parametrize("part", ["", "blocks", "tmp", "quarantine", "notes", "blocks/{shard}"])
def test_links_lead_nowhere(tmp_path: Path, part: str) -> None:
    """A folder that came with a downloaded notebook may hold links: nothing outside is written, moved or deleted."""
    folder, outside = tmp_path / "store", tmp_path / "outside"
    outside.mkdir()
    mine = outside / "precious"
    mine.write_text("mine")
    link = number(1)
    place = folder / part.format(shard=link.parent.hex()[:2])
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(outside)
    memory = PrefixMemory(folder, bytes_limit="1M", verbose=0)
    memory.save(make_block(link))
    memory.flush(60)
    store = memory.store
    assert store is not None
    for call in (lambda: store.put_note("note", {}), lambda: store.quarantine(link.parent, link.key), memory.clear):
        try:
            call()
        except StoreError as error:
            assert "is a link or no folder: remove it" in str(error)  # noqa: PT017 - some get by without it
    assert [path.name for path in outside.iterdir()] == ["precious"]
    assert mine.read_text() == "mine"


def test_a_block_that_is_a_link_a_folder_or_a_pipe_is_refused(tmp_path: Path) -> None:
    store, links = local_store(tmp_path), [number(n) for n in range(3)]
    for link in links:
        store.write(make_block(link))
    other = tmp_path / "elsewhere.kv"
    paths = [tmp_path / block_name(link.parent, link.key) for link in links]
    paths[0].rename(other)
    paths[0].symlink_to(other)
    paths[1].unlink()
    paths[1].mkdir()
    paths[2].unlink()
    os.mkfifo(paths[2])
    for link in links:
        with pytest.raises(BadState):
            store.read(link.parent, link.key)
        store.quarantine(link.parent, link.key)
        assert not store.has(link.parent, link.key)
    assert other.exists()
    assert list(store.entries()) == []


def test_an_item_is_seen_whole_or_not_at_all(tmp_path: Path) -> None:
    """Readers look all the time while one item is replaced by others of other lengths."""
    backend = LocalBackend(tmp_path)
    contents = [bytes([n]) * (10_000 + 1000 * n) for n in range(20)]
    seen: set[bytes] = set()
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            try:
                with backend.open("a/item") as file:
                    seen.add(file.read())
            except FileNotFoundError:
                continue

    readers = [threading.Thread(target=look) for _ in range(2)]
    for reader in readers:
        reader.start()
    for content in contents * 10:
        backend.write("a/item", (memoryview(content[:5000]), memoryview(content[5000:])), durable=False)
    done.set()
    for reader in readers:
        reader.join()
    assert seen <= set(contents)
    assert len(seen) > 1


def test_a_folder_that_is_deleted_under_a_write_is_made_again(tmp_path: Path) -> None:
    class Deleting(tuple[memoryview, ...]):
        """Parts of an item; whoever writes the first of them finds the folder gone."""

        def __iter__(self) -> Iterator[memoryview]:
            if not gone:
                shutil.rmtree(tmp_path / "store")
                gone.append(True)
            return super().__iter__()

    gone: list[bool] = []
    backend = LocalBackend(tmp_path / "store")
    backend.write("a/item", Deleting((memoryview(b"whole"),)))
    with backend.open("a/item") as file:
        assert (file.read(), gone) == (b"whole", [True])


def test_what_killed_writers_left_goes_with_the_next_lock(tmp_path: Path) -> None:
    store = local_store(tmp_path)
    store.write(make_block(number(1)))
    left = tmp_path / "tmp" / "12345-dead"
    with _create(left) as file:
        file.write(b"half a block")
        with store.locked():
            assert left.exists()  # whoever writes it is alive
    with store.locked():
        assert not left.exists()
    _create(left).close()
    local_store(tmp_path).put_note("note", {})  # or with the first item that a process writes
    assert not left.exists()


def test_a_lock_that_another_holds_is_given_up_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ipyllama.prefix.store.local.LOCK_PATIENCE", 0.2)
    first, second = local_store(tmp_path), local_store(tmp_path)
    with first.locked(), pytest.raises(StoreBusy, match="another process holds"), second.locked():
        pass
    with second.locked():
        pass


def test_as_many_blocks_as_you_like_are_opened_and_looked_up_at_once(tmp_path: Path) -> None:
    """The bounds are those for 100,000 blocks, see `python -m reliability.large`."""
    folder = tmp_path / "blocks"
    for n in range(256):
        shard = folder / f"{n:02x}"
        shard.mkdir(parents=True)
        for k in range(8):
            (shard / f"{n:02x}{k:014x}-{k:064x}.kv").touch()
    links, opened, looked = make_chain(range(4000), 250), [], []
    for _ in range(20):  # the best of them: others work on this machine, too
        began = time.perf_counter()
        memory = PrefixMemory(tmp_path)
        opened.append(time.perf_counter() - began)
        assert memory.store is not None
        began = time.perf_counter()
        assert [memory.store.has(link.parent, link.key) for link in links] == [False] * 16
        looked.append(time.perf_counter() - began)
    assert (min(opened) < 0.005, min(looked) < 0.010) == (True, True)
