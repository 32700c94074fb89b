PYTHON ?= python3
VENV ?= .venv
CONFIG ?= configs/quickstart.yaml

bin := $(VENV)/bin
pip := $(bin)/python -m pip --disable-pip-version-check --no-input install --quiet --constraint constraints.txt
code := hooktrainer plugins tests examples

.PHONY: train test slow check readme

train: $(VENV)/.installed  ## Run the quickstart
	$(bin)/hooktrainer fit $(CONFIG)

test: check  ## Check, run the fast tests, ask for coverage
	$(bin)/coverage run -m pytest -m "not slow and not proof"
	$(bin)/coverage report --skip-covered

slow: $(VENV)/.installed-dev  ## Run the tests that take minutes
	$(bin)/python -m pytest -m "slow and not proof"

check: $(VENV)/.installed-dev  ## Check without running anything
	$(bin)/ruff check $(code)
	$(bin)/ruff format --check $(code)
	$(bin)/mypy
	$(bin)/lint-imports

readme: $(VENV)/.installed-dev  ## Rewrite the generated tables of all README files
	$(bin)/python tests/helpers/readme_tables.py --write

$(bin)/python:
	$(PYTHON) -m venv $(VENV)

# The stamps make a second run cheap; both kinds of install are editable, so that only these files call for a new one.
$(VENV)/.installed: pyproject.toml constraints.txt | $(bin)/python
	$(pip) --editable .
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(bin)/python
	$(pip) --editable ".[dev]"
	touch $@ $(VENV)/.installed
