"""Give our build a compiled llama.cpp: find the pinned source, build it once per machine, print where it is.

    python llama.cpp/provide.py                     the install prefix, with what CMAKE_ARGS asks for
    python llama.cpp/provide.py -DGGML_CUDA=ON      the same with options; CMakeLists.txt calls it like this
    python llama.cpp/provide.py --tool llama-bench  one of upstream's own programs, built with the same options

The last line on stdout is the path; progress goes to stderr.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys

from common import ProvideError
from recipe import build, build_tool, make_recipe
from source import find_source


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", metavar="NAME", help="build this upstream program and print its path")
    parser.add_argument("--build-type", default="Release", help="CMake's build type (default: %(default)s)")
    parser.add_argument("--errors-to-stdout", action="store_true", help="for CMake, which shows the message itself")
    parser.add_argument("--key", action="store_true", help="only print the key of the build, and build nothing")
    arguments, definitions = parser.parse_known_args()
    # Under CMake both are there: CMAKE_ARGS, and the same options as CMake understood them. The latter win.
    definitions = shlex.split(os.environ.get("CMAKE_ARGS", "")) + definitions
    errors = sys.stdout if arguments.errors_to_stdout else sys.stderr
    try:
        recipe = make_recipe(find_source(), definitions, arguments.build_type)
        if arguments.key:
            result = recipe.key
        else:
            result = str(build_tool(recipe, arguments.tool) if arguments.tool else build(recipe))
    except ProvideError as error:
        errors.write(f"error: llama.cpp: {error}\n")
        return 1
    except KeyboardInterrupt:
        errors.write("error: llama.cpp: interrupted; the next build goes on from here.\n")
        return 130
    sys.stdout.write(f"{result}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
