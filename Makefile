# Every target does its own set-up: only Python 3.11 to 3.13, make, git and a package registry are needed.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test slow check format clean

demo: $(VENV)/.installed  ## a small sweep on this machine, seconds once installed
	$(BIN)/python run.py -m sweeps=smoke

test: $(VENV)/.installed-dev  ## all tests; those for a GPU skip without one
	$(BIN)/python -m pytest -q -m "not slow"

slow: $(VENV)/.installed-dev  ## the cluster launchers on this machine; installs submitit and ray
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,submitit,ray]'
	$(BIN)/python -m pytest -q -m slow

check: $(VENV)/.installed-dev  ## lint, format, types, and the import arrows of ARCHITECTURE.md
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@ $(VENV)/.installed
