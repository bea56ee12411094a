"""How llama.cpp is built: the options, the key that names a build, the steps. One build per key, kept in the cache."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from common import ProvideError, cache, find_program, locked, say
from source import Source

VERSION = 1  # raise it when the steps below change what they produce

DEFAULTS = {
    "BUILD_SHARED_LIBS": "OFF",
    "CMAKE_INSTALL_LIBDIR": "lib",
    "CMAKE_POSITION_INDEPENDENT_CODE": "ON",
    "GGML_NATIVE": "ON",
    "GGML_RPC": "ON",  # turning it on later would rebuild half of the tree
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_BUILD_COMMON": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_MTMD": "ON",
    "LLAMA_BUILD_SERVER": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_TOOLS": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_SUBPROCESS": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
}
FOR_TOOLS = {"LLAMA_BUILD_COMMON": "ON", "LLAMA_BUILD_TOOLS": "ON"}

# Of what the user gives to our CMake, this is meant for llama.cpp's. (X_LIBRARY are results of find_library.)
FORWARDED = re.compile(
    r"(?!.*_LIBRARY$)(GGML_\w+|LLAMA_\w+|MTMD_\w+|CMAKE_(C|CXX|CUDA|HIP)_"
    r"(FLAGS|ARCHITECTURES|COMPILER_LAUNCHER|HOST_COMPILER|COMPILER)|CMAKE_OSX_ARCHITECTURES|CUDAToolkit_ROOT)$"
)
GPU_COMPILERS = {"GGML_CUDA": "nvcc", "GGML_HIP": "hipcc", "GGML_VULKAN": "glslc", "GGML_SYCL": "icpx"}
WITHOUT_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
"""GCC 12.2 compiles ggml's code for AMX to one that ends the process at the first token: the tiles are not set up, an
illegal instruction. Where a compiler does better, `-DGGML_AMX_TILE=ON` leaves AMX in."""
# One spelling, so that one build has one key. Not the digits: GGML_SCHED_MAX_COPIES=1 is a number.
BOOLEANS = {"YES": "ON", "TRUE": "ON", "ON": "ON", "NO": "OFF", "FALSE": "OFF", "OFF": "OFF"}


def parse_definitions(arguments: Iterable[str]) -> dict[str, str]:
    """{name: value} of the -DNAME[:TYPE]=VALUE arguments that concern llama.cpp; an empty value is no value."""
    text = "\n".join(arguments).replace("-D\n", "-D")
    found = re.findall(r"^-D(\w+)(?::\w+)?=(.*)$", text, re.MULTILINE)
    return {name: BOOLEANS.get(value.upper(), value) for name, value in found if value and FORWARDED.match(name)}


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what a build contains."""

    source: Source
    options: dict[str, str]
    build_type: str
    compilers: tuple[str, str]  # C, C++
    toolchain: str  # see describe_toolchain

    @cached_property
    def key(self) -> str:
        facts = [VERSION, self.source.digest, sorted(self.options.items()), self.build_type, self.toolchain]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]

    @property
    def home(self) -> Path:
        return cache() / self.key

    @property
    def prefix(self) -> Path:
        return self.home / "install"

    @property
    def log(self) -> Path:
        return self.home / "build.log"

    def summary(self) -> dict[str, str]:
        """What `ipyllama.build_info()` tells about this build; our CMake reads it from the finished prefix."""
        chosen = {name: value for name, value in self.options.items() if DEFAULTS.get(name) != value}
        shown = {name: self.options[name] for name in ("GGML_NATIVE", "GGML_RPC")} | chosen
        options = " ".join(f"{name}={value}" for name, value in sorted(shown.items()))
        return {"commit": self.source.commit, "carrier": self.source.carrier, "options": options, "key": self.key}


def make_recipe(source: Source, arguments: list[str], build_type: str) -> Recipe:
    """The recipe for `-D` arguments in the manner of CMAKE_ARGS; CC, CXX, CFLAGS and CXXFLAGS count as for CMake."""
    options = parse_definitions(arguments)
    for name, variable in (("CMAKE_C_FLAGS", "CFLAGS"), ("CMAKE_CXX_FLAGS", "CXXFLAGS")):
        if os.environ.get(variable):
            options.setdefault(name, os.environ[variable])
    c = options.pop("CMAKE_C_COMPILER", None) or os.environ.get("CC")
    cxx = options.pop("CMAKE_CXX_COMPILER", None) or os.environ.get("CXX")
    compilers = (find_compiler(c, "C", ("cc", "gcc", "clang")), find_compiler(cxx, "C++", ("c++", "g++", "clang++")))
    options = DEFAULTS | options
    if uses_amx(compilers[1], options):
        for name in ("CMAKE_C_FLAGS", "CMAKE_CXX_FLAGS"):
            options[name] = f"{options.get(name, '')} {WITHOUT_AMX}".strip()
    return Recipe(source, options, build_type, compilers, describe_toolchain(compilers, options))


def find_compiler(asked: str | None, language: str, usual: tuple[str, ...]) -> str:
    names = (asked,) if asked else usual
    for name in names:
        if path := find_program(name):
            return path
    raise ProvideError(
        f"no {language} compiler was found (looked for {', '.join(names)}). Install one: `apt install g++` on Debian "
        "and Ubuntu, `dnf install gcc-c++` on Fedora, `xcode-select --install` on macOS; or set CC and CXX."
    )


def describe_toolchain(compilers: tuple[str, str], options: dict[str, str]) -> str:
    """A digest of the compilers and, for native code, of this CPU: all macros that the compiler predefines.

    They hold the compiler's version, the target, and, under -march=native, each instruction set in use. So a home
    folder shared by unlike machines gets a build for each of them, and code for one CPU never runs on another.
    """
    facts = [platform.system(), platform.machine(), *platform.libc_ver()]
    for compiler, language in zip(compilers, ("c", "c++"), strict=True):
        facts.append("\n".join(sorted(predefined(compiler, language, options))))
    for option, program in GPU_COMPILERS.items():
        if is_on(options.get(option)) and (path := find_program(program)):
            facts.append(subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout)
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()


def predefined(compiler: str, language: str, options: dict[str, str]) -> list[str]:
    """The macros that a compiler predefines for the CPU that is built for, as `#define` lines."""
    native = ("-march=native", "-mcpu=native") if is_on(options["GGML_NATIVE"]) else ()
    for flag in (*native, None):
        command = [compiler, *filter(None, [flag]), "-dM", "-E", "-x", language, os.devnull]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return done.stdout.splitlines()
    reason = (done.stderr.strip() or "no message").splitlines()[0]
    raise ProvideError(f"the compiler {compiler} does not work ({reason}). Set CC and CXX to one that does.")


def uses_amx(compiler: str, options: dict[str, str]) -> bool:
    """True if native code for this CPU would use AMX, and nobody asked for that."""
    asked = is_on(options.get("GGML_AMX_TILE")) or not is_on(options["GGML_NATIVE"])
    return not asked and any(line.startswith("#define __AMX_TILE__") for line in predefined(compiler, "c++", options))


def is_on(value: str | None) -> bool:
    return value in ("ON", "1")


def build(recipe: Recipe) -> Path:
    """The install prefix of the recipe's build, made now if it is not in the cache. An interrupted build is resumed."""
    marker = recipe.prefix / "ipyllama.json"  # written last: a prefix that has it is complete
    if marker.is_file():
        return recipe.prefix
    with locked(recipe.key):
        if not marker.is_file():
            say(f"not built yet with this compiler and these options; it is done once, in {recipe.home}")
            configure(recipe, {})
            compile_target(recipe, None)
            shutil.rmtree(recipe.prefix, ignore_errors=True)
            run(recipe, [cmake(), "--install", str(recipe.home / "build"), "--prefix", str(recipe.prefix)], "install")
            write_atomically(marker, json.dumps(recipe.summary(), indent=2).encode())
            say("done")
    return recipe.prefix


def build_tool(recipe: Recipe, name: str) -> Path:
    """The path of one of upstream's own programs, linked to the very objects of `build(recipe)`."""
    program = recipe.home / "bin" / name
    build(recipe)
    with locked(recipe.key):
        if not program.is_file():
            say(f"building upstream's {name} with the same options; it is done once")
            configure(recipe, FOR_TOOLS)
            compile_target(recipe, name)
            program.parent.mkdir(exist_ok=True)
            write_atomically(program, (recipe.home / "build" / "bin" / name).read_bytes(), 0o755)
    return program


def configure(recipe: Recipe, extra: dict[str, str]) -> None:
    """CMake's configure step; if left-overs of an interrupted or moved build are in its way, once more without them."""
    tree, folder = recipe.source.tree(), recipe.home / "build"
    given = {
        "CMAKE_BUILD_TYPE": recipe.build_type,
        "CMAKE_C_COMPILER": recipe.compilers[0],
        "CMAKE_CXX_COMPILER": recipe.compilers[1],
        "LLAMA_BUILD_COMMIT": recipe.source.commit,
        "LLAMA_BUILD_NUMBER": "0",
    }
    command = [cmake(), "-S", str(tree), "-B", str(folder)]
    if ninja := find_program("ninja"):
        command += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    command += [f"-D{name}={value}" for name, value in (recipe.options | extra | given).items()]
    left_over = folder.exists()
    recipe.home.mkdir(exist_ok=True)
    try:
        run(recipe, command, "configure")
    except ProvideError:
        if not left_over:
            raise
        shutil.rmtree(folder)
        run(recipe, command, "configure")


def compile_target(recipe: Recipe, target: str | None) -> None:
    affinity = getattr(os, "sched_getaffinity", None)
    jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(len(affinity(0)) if affinity else os.cpu_count() or 1)
    say(f"compiling with {jobs} jobs (a few minutes; log: {recipe.log})")
    command = [cmake(), "--build", str(recipe.home / "build"), "--parallel", jobs]
    run(recipe, command + (["--target", target] if target else []), "compile")


def cmake() -> str:
    if found := find_program("cmake"):
        return found
    raise ProvideError("cmake was not found. Install it: `apt install cmake`, or `pip install cmake`.")


def run(recipe: Recipe, command: list[str], step: str) -> None:
    """Run one step into the log, and say every tenth of its progress."""
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(recipe.home)}
    tenth = 0
    with recipe.log.open("w" if step == "configure" else "a", encoding="utf-8", buffering=1) as log:
        log.write(f"$ {shlex.join(command)}\n")
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment
        )
        with process:
            assert process.stdout is not None
            for line in process.stdout:
                log.write(line)
                if (part := progress(line)) is not None and int(part * 10) > tenth:
                    tenth = int(part * 10)
                    say(f"compiled {tenth * 10} %")
    if process.returncode:
        raise ProvideError(f"{step} failed.\n{excerpt(recipe.log)}\nThe whole log: {recipe.log}")


def progress(line: str) -> float | None:
    """How far a build is, from Ninja's `[12/230]` or Make's `[ 12%]`."""
    if found := re.match(r"\[(\d+)/(\d+)\]", line):
        return int(found[1]) / int(found[2])
    found = re.match(r"\[ *(\d+)%\]", line)
    return int(found[1]) / 100 if found else None


def excerpt(log: Path) -> str:
    """The lines of a log that tell why a step failed: the first errors, then the end."""
    text = log.read_text(encoding="utf-8", errors="replace")
    lines = [line for line in text.splitlines() if line.strip() and " -o " not in line]  # without compile commands
    errors = [line for line in lines if re.search(r"\berror\b|Killed", line, re.IGNORECASE)][:4]
    chosen = dict.fromkeys(errors + lines[-6:])
    hint = "\nThe machine ran out of memory: set CMAKE_BUILD_PARALLEL_LEVEL=1." if "Killed" in "\n".join(errors) else ""
    return "\n".join(f"  {line[:300]}" for line in chosen) + hint


def write_atomically(path: Path, content: bytes, mode: int = 0o644) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(content)
    temporary.chmod(mode)
    temporary.replace(path)
