PYTHON ?= python3
VENV ?= .venv
CONFIG ?= configs/quickstart.yaml

bin := $(VENV)/bin
pip := $(bin)/python -m pip --disable-pip-version-check --no-input install --quiet --constraint constraints.txt
code := hooktrainer plugins tests examples
# The fast tests wait for threads, so that two cores are busy with three test processes. Slow ones start processes.
fast := -n 3 --dist worksteal -m "not slow and not proof"
slow := -n 2 --dist worksteal -m "slow and not proof"

# Compiling the package again in every process that a test starts would take longer than most tests.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: train test coverage slow check readme

train: $(VENV)/.installed  ## Run the quickstart
	$(bin)/hooktrainer fit $(CONFIG)

test: check  ## Check, and run the fast tests
	$(bin)/python -m pytest $(fast)

coverage: check  ## The same, and fail below the coverage that pyproject.toml sets
	$(bin)/python -m pytest $(fast) --cov --cov-report=term:skip-covered

slow: $(VENV)/.installed-dev  ## Run the tests that take minutes
	$(bin)/python -m pytest $(slow)

check: $(VENV)/.installed-dev  ## Check style, types and imports
	$(bin)/ruff check $(code)
	$(bin)/ruff format --check $(code)
	$(bin)/mypy
	$(bin)/lint-imports

readme: $(VENV)/.installed-dev  ## Rewrite the generated tables of all README files
	$(bin)/python tests/helpers/readme_tables.py --write

$(bin)/python:
	$(PYTHON) -m venv $(VENV)

# A stamp file skips an installation that is up to date. Installations are editable, so only these files require a new one.
$(VENV)/.installed: pyproject.toml constraints.txt | $(bin)/python
	$(pip) --editable .
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(bin)/python
	$(pip) --editable ".[dev]"
	touch $@ $(VENV)/.installed
