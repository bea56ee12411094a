"""`hf:` names, against huggingface_hub itself: its cache, and a hub of our own on the loopback."""

import hashlib
import http.server
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from stores import hub_file

import ipyllama
from ipyllama.errors import FetchError, ModelNotFound
from ipyllama.models import resolve

COMMIT = "c0ffee" + "0" * 34


@pytest.mark.parametrize(
    "name",
    ["hf:", "hf:x", "hf:owner/repo", "hf:owner/repo/file.bin", "hf:owner/repo/../../x.gguf", "hf:owner/repo/.gguf/"],
)
def test_names_that_name_no_file_are_refused(home, name):
    with pytest.raises(ModelNotFound, match=r"Write hf:owner/repo/file\.gguf"):
        resolve(name)


def test_without_huggingface_hub_the_way_out_is_named(home, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(FetchError, match="`pip install huggingface_hub`"):
        resolve("hf:owner/repo/file.gguf")


class HubHandler(http.server.BaseHTTPRequestHandler):
    """What huggingface_hub asks of a hub when it downloads a file."""

    def do_HEAD(self) -> None:
        self.answer(b"")

    def do_GET(self) -> None:
        self.answer(self.server.content)

    def answer(self, body: bytes) -> None:
        if "/resolve/" not in self.path:  # the library asks other things too, which we do not have
            self.send_error(404)
            return
        self.server.asked.append(self.path)
        owner, _repo, _resolve, revision, *file = self.path.lstrip("/").split("/")
        missing = {"gated": (403, "GatedRepo"), "private": (401, "RepoNotFound")}.get(owner)
        if revision not in ("main", "v1"):
            missing = (404, "RevisionNotFound")
        if missing is None and file[-1] not in ("m.gguf", "s-00001-of-00002.gguf", "s-00002-of-00002.gguf"):
            missing = (404, "EntryNotFound")
        self.send_response(missing[0] if missing else 200)
        self.send_header("X-Repo-Commit", COMMIT)
        if missing:
            self.send_header("X-Error-Code", missing[1])
            body = b""
        else:
            self.send_header("ETag", f'"{hashlib.sha256(self.server.content).hexdigest()}"')
        self.send_header("Content-Length", str(len(self.server.content) if not missing else 0))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def hub(tiny):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), HubHandler)
    server.content, server.asked = tiny("llama").read_bytes(), []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def ask(home: Path, name: str, **variables: str) -> list[str]:
    """What `resolve` gives in a process of its own, as lines: huggingface_hub reads its settings at import."""
    code = (
        "import sys\nfrom ipyllama.errors import LlamaError\nfrom ipyllama.models import resolve\nseen = []\n"
        "try:\n    model = resolve(sys.argv[1], progress=lambda *report: seen.append(report))\n"
        "    print(model.path, model.name, model.source, seen[-1] if seen else None, sep='\\n')\n"
        "except LlamaError as error:\n    print(f'{type(error).__name__}: {error}')\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(ipyllama.__file__).parents[1]), "HF_HUB_DISABLE_XET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, name], env=environment | variables, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_a_file_is_fetched_into_the_hubs_own_cache_once(home, hub):
    address = f"http://127.0.0.1:{hub.server_address[1]}"
    path, name, source, report = ask(home, "hf:owner/repo/sub/m.gguf", HF_ENDPOINT=address)
    snapshot = home / ".cache" / "huggingface" / "hub" / "models--owner--repo" / "snapshots" / COMMIT
    assert Path(path) == snapshot / "sub" / "m.gguf"
    assert Path(path).read_bytes() == hub.content
    assert (name, source) == ("m", "Hugging Face")
    assert report == str((len(hub.content), len(hub.content), "fetching sub/m.gguf"))
    asked = len(hub.asked)
    assert ask(home, "hf:owner/repo/sub/m.gguf", HF_ENDPOINT=address)[3] == "None"
    assert len(hub.asked) == asked
    assert resolve("owner/repo/sub/m.gguf").path == Path(path)


def test_all_parts_of_a_split_model_are_fetched(home, hub):
    address = f"http://127.0.0.1:{hub.server_address[1]}"
    path, name, *_ = ask(home, "hf:owner/repo@v1/s-00002-of-00002.gguf", HF_ENDPOINT=address)
    assert (Path(path).name, name) == ("s-00001-of-00002.gguf", "s")
    assert all(request.startswith("/owner/repo/resolve/v1/") for request in hub.asked)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf:gated/repo/m.gguf", "asks for consent"),
        ("hf:private/repo/m.gguf", "no such repository"),
        ("hf:owner/repo@nope/m.gguf", "no such repository or revision"),
        ("hf:owner/repo/n.gguf", "has no such file"),
    ],
)
def test_refusals_of_the_hub_are_one_line(home, hub, name, message):
    lines = ask(home, name, HF_ENDPOINT=f"http://127.0.0.1:{hub.server_address[1]}")
    assert len(lines) == 1
    assert lines[0].startswith("FetchError: ")
    assert message in lines[0]


def test_without_a_network_the_cache_still_serves(home, tiny):
    link = hub_file(home / ".cache" / "huggingface" / "hub", "owner/repo", "m.gguf", COMMIT, tiny("llama").read_bytes())
    (link.parents[2] / "refs" / "main").write_text(COMMIT)
    assert ask(home, "hf:owner/repo/m.gguf", HF_HUB_OFFLINE="1")[0] == str(link)
    (line,) = ask(home, "hf:owner/repo/other.gguf", HF_HUB_OFFLINE="1")
    assert "the hub cannot be reached" in line
