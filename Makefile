# Everything runs in .venv, and every target goes through `setup`, which is quick when nothing changed.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed-for
# Three processes for two cores, since many tests wait for a process of their own; each test file whole in one of them.
# Hundreds of tests start a process of ours: where Python may not keep bytecode, each would compile all sources anew.
PYTEST := $(BIN)/python -m compileall -q src && $(BIN)/python -m pytest -n 3 --dist loadscope
# One thread: the programs here are tiny, and a second thread only adds noise and cost to them.
export OMP_NUM_THREADS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint types pytest docs clean distclean

help:
	@echo "make setup   make .venv and install gradledger with its development tools (quick when nothing changed)"
	@echo "make demo    audit every program under examples/ and print what was found"
	@echo "make test    ruff, mypy --strict, then every test, README and example blocks included"
	@echo "make lint | types | pytest   one of the three"
	@echo "make docs    run the code blocks of README.md and docs/"
	@echo "make clean   remove build output and caches; make distclean removes .venv too"

# The stamp holds a hash of what decides the installation, so touching a file or switching branches costs nothing.
setup:
	@test -n "$(PYTHON)" || { echo "make setup: no python3.11 or python3 on PATH; install Python 3.11 or set PYTHON=..."; exit 1; }
	@want=$$(cat pyproject.toml constraints.txt | git hash-object --stdin) && want="$$want $(CURDIR)"; \
	if [ -x $(BIN)/gradledger ] && [ "$$(cat $(STAMP) 2>/dev/null)" = "$$want" ]; then exit 0; fi; \
	set -e; \
	"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "make setup: $(PYTHON) does not run, or is older than Python 3.11; install 3.11 or set PYTHON=..."; exit 1; }; \
	if [ ! -x $(BIN)/python ]; then echo "making $(VENV)"; "$(PYTHON)" -m venv $(VENV); fi; \
	echo "installing gradledger and its development tools into $(VENV) (minutes the first time)"; \
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'; \
	echo "$$want" > $(STAMP)

demo: setup
	@$(BIN)/python tools/demo.py

lint: setup
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy --strict src/

pytest: setup
	$(PYTEST)

docs: setup
	$(BIN)/python -m pytest tests/docs

# One after the other, pytest last: its closing line is the verdict.
test: setup
	$(BIN)/ruff check .
	$(BIN)/mypy --strict src/
	$(PYTEST)

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .gradledger
	find src tests examples tools benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean
	rm -rf $(VENV) src/gradledger.egg-info
