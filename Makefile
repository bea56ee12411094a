# Everything lives in .venv/, build/ and the user cache; nothing is installed outside of them.

PYTHON ?= python3
VENV   := .venv
RUN    := $(VENV)/bin/python
PIP    := $(RUN) -m pip --disable-pip-version-check -qq
READY  := $(VENV)/.ready
NATIVE := pyproject.toml CMakeLists.txt $(wildcard llama.cpp/*.py llama.cpp/*.json ext/*.cpp ext/*.h ext/engine/*)
STUB   := src/ipyllama/_core.pyi
STUBGEN = $(RUN) -m nanobind.stubgen --quiet -m ipyllama._core

# Tests of the widgets want Chromium. Where they cannot have it, they are left out, and that is said at the end.
CHROMIUM ?= /usr/bin/chromium
export CHROMIUM
CHROMIUM_HERE = $(shell command -v $(CHROMIUM))
INSTALL_CHROMIUM = if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "Installing Chromium for the tests in a real browser"; apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	  apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null || true; fi

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test ipykernels fuzz faults dev asan lab bench bench-peers lint stub build clean FORCE

# A preset of CMakePresets.json, built with the tools of .venv
build_preset = PATH="$(CURDIR)/$(VENV)/bin:$$PATH"; cmake --preset $(1) >build/$(1).log 2>&1 \
	  && cmake --build --preset $(1) >>build/$(1).log 2>&1 || { tail -n 30 build/$(1).log; exit 1; }

help:  ## list these targets
	@echo "ipyllama: local language models in Jupyter cells"
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

demo: $(READY)  ## run the first notebook here in the terminal, with a real model
	@$(RUN) notebooks/play.py notebooks/01_quickstart.ipynb

test: $(READY)  ## run the tests (ARGS="-k name" picks some)
	@$(if $(CHROMIUM_HERE),,$(INSTALL_CHROMIUM))
	@echo "Tests in a real browser, then all others"
	@$(RUN) -m pytest tests/browser $(ARGS) || [ $$? = 5 ]  # 5: ARGS picks none of these
	@$(RUN) -m pytest --ignore=tests/browser $(ARGS)
	@[ -n "$$(command -v $(CHROMIUM))" ] || echo "LEFT OUT: all tests in a real browser, because there is no Chromium" \
	  "(apt install chromium fonts-dejavu-core, or set CHROMIUM to its path)"

ipykernels: $(READY)  ## run the tests of Stop with ipykernel 6, 7.0, 7.2, 7.3 and 7.4: some minutes
	@$(RUN) tests/on_ipykernel.py all -m pytest tests/kernel/test_stop.py tests/kernel/test_interrupt.py $(ARGS)

fuzz: $(READY)  ## 50,000 damaged states, model files, and objects called at random (ARGS="--cases 1000 --seed 7")
	@for target in state gguf calls; do PYTHONPATH=tests $(RUN) -m fuzz $$target --cases 50000 $(ARGS) || exit 1; done
	@cd tests && ../$(RUN) -m native.walk.run --cases 5000 && ../$(RUN) -m native.scenarios.run --cases 600

faults: $(READY)  ## 200 killed processes, 8 at once for 30 s, and 100,000 blocks, all on stores of prefix states
	@for what in kill crowd large; do (cd tests && ../$(RUN) -m reliability.$$what) || exit 1; done

dev: $(READY)  ## run the native tests on a debug build of our code, where nanobind reports what leaks
	@$(call build_preset,$@)
	@$(RUN) tests/on_build.py $@ -m pytest tests/native $(ARGS)

asan: $(READY)  ## run them with everything, llama.cpp too, under ASan and UBSan (the first build takes long)
	@$(call build_preset,$@)
	@$(RUN) tests/on_build.py $@ -m pytest --timeout=1800 tests/native $(ARGS)

lab: $(READY)  ## open the notebooks in JupyterLab
	@$(RUN) -m jupyterlab $(if $(filter 0,$(shell id -u)),--allow-root) $(ARGS) notebooks

bench: $(READY)  ## measure against llama.cpp's own llama-bench
	@$(RUN) -m benchmarks

bench-peers: $(READY)  ## measure restarts against other programs (the first time builds them: half an hour)
	@$(RUN) -m benchmarks.peers $(ARGS)

lint: $(READY)  ## check style, types and the committed stub
	@$(VENV)/bin/ruff check --quiet .
	@$(VENV)/bin/ruff format --quiet --check .
	@$(RUN) -m mypy
	@$(VENV)/bin/clang-format --dry-run -Werror $(wildcard ext/*.cpp ext/*.h ext/engine/*)
	@$(STUBGEN) -o build/_core.pyi
	@diff -u $(STUB) build/_core.pyi || { echo "$(STUB) is not what the build says: run 'make stub'"; exit 1; }
	@$(RUN) docs/native_api.py --check
	@echo "lint: all clean"

stub: $(READY)  ## write anew what follows from the built extension: src/ipyllama/_core.pyi, docs/native-api.md
	@$(STUBGEN) -o $(STUB)
	@$(RUN) docs/native_api.py

build: $(READY)  ## make .venv with everything in it (the other targets do it when needed)

clean:  ## remove .venv and build; the user cache with the built llama.cpp stays
	@rm -rf $(VENV) build dist
	@echo "Removed .venv, build and dist. The cache of llama.cpp builds stays: ~/.cache/ipyllama/llama.cpp"

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "This Python cannot make virtual environments: apt install python3-venv"; exit 1; }
	@echo "[1/4] Making the virtual environment .venv"
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.tools: $(VENV)/.created pyproject.toml
	@echo "[2/4] Installing what the build needs"
	@$(RUN) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
	  > $(VENV)/build-requires.txt
	@for tool in cmake ninja; do command -v $$tool >/dev/null || echo $$tool >> $(VENV)/build-requires.txt; done
	@$(PIP) install -r $(VENV)/build-requires.txt
	@touch $@

# CMake keeps the options it was once given: when CMAKE_ARGS changes, start it afresh.
$(VENV)/.options: $(VENV)/.created FORCE
	@echo '$(CMAKE_ARGS)' | cmp -s - $@ || { rm -rf build/cp*; echo '$(CMAKE_ARGS)' > $@; }

$(READY): $(VENV)/.tools $(VENV)/.options $(NATIVE)
	@echo "[3/4] llama.cpp: taken from the user cache, or built into it (once per machine, some minutes)"
	@$(RUN) llama.cpp/provide.py >/dev/null
	@echo "[4/4] Compiling the extension and installing ipyllama with its dependencies (about a minute or two)"
	@$(PIP) install --no-compile --no-build-isolation --editable '.[hub,lab,rag,langchain,llamaindex,test,dev]'
	@touch $@
