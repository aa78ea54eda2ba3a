# Two commands need nothing but Python 3.11 and a package index: `make demo` and `make test`.
# The environment is made once, in .venv, and again when pyproject.toml changes.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
export HF_HUB_OFFLINE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test lint types layers unit integration chaos bench clean

demo: $(READY)
	$(BIN)/turnstream demo

test: lint types layers unit integration

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet 'torch==2.13.0'
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@# Raises are documented where they are raised; verbs and translators of other libraries' errors apart.
	$(BIN)/ruff check --preview --select DOC102,DOC501 \
	  --exclude workers/cli,pipeline/stream,retrieval/rerank.py,retrieval/context/backends pipeline workers retrieval

types: $(READY)
	$(BIN)/mypy

layers: $(READY)
	$(BIN)/lint-imports

unit: $(READY)
	$(BIN)/python -m pytest tests/unit -q -n 2

# A module's tests share what they start, so they stay in one process.
integration: $(READY)
	$(BIN)/python -m pytest tests/integration tests/crash -q -n 2 --dist loadfile

# Breaks it, and prints one table of what came of it; LONG=1 about ten times as much, in hours.
chaos: $(READY)
	$(BIN)/python -m pytest tests/crash -q $(if $(LONG),--long)

bench: $(READY)
	@for script in tests/bench/bench_*.py; do echo "== $$script"; $(BIN)/python $$script; done

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
