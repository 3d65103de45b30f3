# Every verb makes its own .venv first (scripts/venv.sh), demo a smaller one; the second call finds it ready.
#   make demo | test | test-fast | shapes | films | lint | docs | pictures | bench | mutants | wheels | examples | release | clean
# Variables: PYTHON=python3.12   DEMO_ARGS=...   TEST_ARGS="-k metrics"   VERSIONS=lowest|newest (test)   BENCH=benchmarks/search.py   PICTURES=all
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
export PYTHON VERSIONS
# Compiled sources are kept: the tests start a Python process a hundred times.
export PYTHONDONTWRITEBYTECODE =

ifeq ($(OS),Windows_NT)
BIN := .venv$(VERSIONS:%=-%)/Scripts
else
BIN := .venv$(VERSIONS:%=-%)/bin
endif
DEMO_ARGS ?=
TEST_ARGS ?=
WORKERS ?= 3
BENCH ?= $(filter-out benchmarks/_%,$(sort $(wildcard benchmarks/*.py)))

.PHONY: help venv demo test test-fast shapes films lint format docs pictures bench mutants wheels examples release clean

help:
	@sed -n '1,3p' Makefile

venv:
	@scripts/venv.sh

demo:  ## search with the model that ships, then train a small one and search with it
	@scripts/venv.sh demo
	$(BIN)/prvr demo $(DEMO_ARGS)

test: venv  ## unit tests, laws, golden numbers and doctests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(TEST_ARGS)

test-fast: WORKERS = 2
test-fast: venv  ## a part of the tests in less than a minute, for while you write code (tests/fast.txt)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(TEST_ARGS) @tests/fast.txt

# tests/shapes.txt leaves out compiled code, which the checks cannot be traced in, and tests of whole programs, of training
# and of many options, where they double the time and find nothing more.
# None of them waits, so a third worker gains nothing.
shapes: WORKERS = 2
shapes: venv  ## doctests and the tests of what computes, with the shapes in every signature checked at each call
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(TEST_ARGS) \
	  --jaxtyping-packages=lorentz,regdiff,prvr,prvr_search,beartype.beartype @tests/shapes.txt

films: venv  ## fetch the real films that some tests read (145 MB, of which 25 MB are kept in the user's cache)
	$(BIN)/python tests/prvr/real_films.py

lint: venv  ## style, format, types, import directions, the workflow, size
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/ci.yml
	$(BIN)/python scripts/count.py --check

format: venv  ## mend what can be mended without a person
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: venv  ## the documentation into site/, warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

pictures: venv  ## the pictures of the documentation whose sources have changed (PICTURES=all: also those that need training)
	$(BIN)/python scripts/pictures.py $(if $(filter all,$(PICTURES)),--all,$(PICTURES))

bench: venv  ## print the ratios behind every figure in the documentation
	for script in $(BENCH); do echo "== $$script"; $(BIN)/python "$$script"; done

mutants: venv  ## small mistakes, each in a copy of the packages, and the test that notices it
	for package in lorentz regdiff prvr; do $(BIN)/python scripts/mutants.py $$package $(MUTANT_ARGS) || exit 1; done

wheels: venv  ## four wheels into dist/, each installed alone and tried; on Linux g++ compiles lorentz's extension
	LORENTZ_BUILD_EXTENSION=$(if $(filter Linux,$(shell uname -s)),1) $(BIN)/python scripts/check_wheels.py

release: venv  ## dist/ for an index, and the whole repository: ADDRESS=https://HOST/OWNER/NAME CONTACT=MAIL@HOST
	$(BIN)/python scripts/release.py $(ADDRESS) $(CONTACT)

examples: venv  ## every example on small data
	$(BIN)/python scripts/run_examples.py

clean:  ## everything that make built, .venv included
	rm -rf .venv .venv-lowest .venv-newest dist site runs __pycache__ .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find packages tests examples benchmarks scripts -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
