# Two commands for a new user: `make demo` and `make test`. Both set up .venv first (Python 3.11 or newer).
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: demo test setup lint clean

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[demo,dev]'
	touch $@

setup: $(VENV)/.ready

demo: setup
	$(BIN)/little-lm train configs/demo.yaml

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: setup lint
	$(BIN)/python -m pytest

clean:
	rm -rf $(VENV) build *.egg-info
