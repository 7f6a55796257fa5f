# make chat      build, fetch the default model, talk to it      (echo "a question" | make -s chat)
# make test      build everything, run the native checks, also under sanitizers and, for ARM and AVX-512, under emulation, the Python tests
#                (tests/cross/run alone does more: macOS, musl, an old glibc, ARM under sanitizers)
# make bench-memory   which gains of paging travel to this machine: bench-memory/memory.html
#                     (FULL=1: the long run, in bench-memory-full; MODEL=file; ARGS="--peer-python /venv/bin/python": beside llama.cpp)
# make check-metal   on a Mac: the GPU's logits beside the CPU's
# make clean     remove what the above made, except downloaded models
#
# Everything stays in this folder: the virtual environment in .venv, objects in build/, models in models/cache.
# Needed: Python >= 3.10, a C compiler, a package index. cmake and ninja come from the index.

PYTHON  ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.10 python; do \
             $$p -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && { echo $$p; exit; }; done)
VENV    := .venv
BIN     := $(VENV)/bin
PIP     := $(BIN)/python -m pip --disable-pip-version-check -q
JOBS    ?= $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
SOURCES := $(shell find native pyllama_paged bench/kernels -type f \( -name '*.[ch]' -o -name '*.def' -o -name '*.py' -o -name '*.txt' -o -name '*.json' \) -not -name '*.pyc')

# Installers talk much; what they said is shown only if they fail.
quietly  = $(1) > $(VENV)/log 2>&1 || { cat $(VENV)/log >&2; exit 2; }

export PLP_CACHE_DIR ?= $(CURDIR)/models/cache
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(JOBS)

.PHONY: check-metal chat test model bench-memory clean
.DELETE_ON_ERROR:

chat: $(VENV)/.installed
	@$(BIN)/pyllama-paged chat $(ARGS)

# The environment with the build's own tools. It is kept, so that a second build compiles only what changed.
$(VENV)/.tools: pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.10 or newer is needed; set PYTHON=/path/to/python3." >&2; exit 2; }
	@echo "setting up $(VENV) ..." >&2
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { echo "This Python cannot make virtual environments (on Debian and Ubuntu: apt install python3-venv python3-dev)." >&2; exit 2; }
	@$(call quietly,$(PIP) install "scikit-build-core>=0.10" "cffi>=1.16" "cmake>=3.18" "ninja>=1.10")
	@touch $@

$(VENV)/.installed: $(VENV)/.tools CMakeLists.txt $(SOURCES)
	@echo "building ..." >&2
	@$(call quietly,$(PIP) install --no-build-isolation -e .)
	@touch $@

# As above with the test tools; the native checks are built in the same tree, so that libplp is compiled once.
$(VENV)/.installed-test: $(VENV)/.tools CMakeLists.txt $(SOURCES) $(wildcard tests/native/*)
	@echo "building with tests ..." >&2
	@$(call quietly,$(PIP) install --no-build-isolation -C cmake.define.PLP_TESTS=ON -e ".[test]")
	@touch $@ $(VENV)/.installed

model: $(VENV)/.installed
	@$(BIN)/pyllama-paged pull smollm2-135m

test: $(VENV)/.installed-test
	@$(BIN)/pyllama-paged pull smollm2-135m
	@$(BIN)/ctest --test-dir build/python --output-on-failure -j $(JOBS)
	@tests/sanitize/run $(BIN)/cmake
	@PATH="$(CURDIR)/$(BIN):$$PATH" PLP_CROSS_BUILD=build/cross PLP_JOBS=$(JOBS) tests/cross/run tiers wide model arm
	@$(BIN)/python -m pytest tests/python $(ARGS)

bench-memory: $(VENV)/.installed
	@$(BIN)/python -c 'import matplotlib' 2>/dev/null || $(call quietly,$(PIP) install matplotlib)
	@$(BIN)/pyllama-paged bench memory $(MODEL) $(if $(FULL),--full,--quick) -o bench-memory$(if $(FULL),-full) $(ARGS)

# On a Mac: the Metal kernels and the default model on its GPU, beside the CPU.
check-metal: $(VENV)/.installed-test model
	@$(BIN)/python tests/metal/on_a_mac.py

clean:
	rm -rf $(VENV) build
