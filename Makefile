# Every command a developer needs; each sets up .venv by itself. PYTHON chooses the interpreter (3.11 or newer);
# TPU=1, or CI in the environment, adds libtpu, with which plans are checked by the real TPU compiler.

PYTHON ?= python3
BIN := .venv/bin
JOBS ?= 2
COUNT ?= 5000

EXTRAS := dev,examples
STAMP := .venv/.installed
ifneq ($(TPU)$(CI),)
EXTRAS := dev,examples,tpu
STAMP := .venv/.installed-tpu
endif

# Dozens of processes of the tests import the same modules.
unexport PYTHONDONTWRITEBYTECODE

SOURCES := planner cost_models pbqp benchmarks examples tests
# The demo is no benchmark, nor what several share, nor what compares two states of the code; the contest's instances are not part of the repository.
NO_BENCHMARKS := $(addprefix benchmarks/,__init__.py problems.py stamp.py suite.py demo.py iopddl.py same_plans.py \
  compiled_row.py pass_page.py ablation_programs.py)
BENCHMARKS := $(filter-out $(NO_BENCHMARKS),$(wildcard benchmarks/*.py))

# A file in one process, for what its tests share, in the order of tests/conftest.py, which begins with what takes longest.
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help setup demo check fix format-check lint types imports docs test samples tests test-all conformance fuzz hazards probes golden bench \
  release clean

help: ## print the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP) ## make .venv and install the project into it (TPU=1: with libtpu)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is older than Python 3.11: say make PYTHON=/path/to/a/newer/python3" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --editable ".[$(EXTRAS)]" || \
	  { echo "uv could not install it, pip tries" >&2; \
	    $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[$(EXTRAS)]"; }
	@touch .venv/.installed $@

demo: $(STAMP) ## plan, train and verify a transformer on eight virtual devices; plan Llama-3-8B for 256 TPUs
	PYTHONPATH=. $(BIN)/python benchmarks/demo.py

check: format-check lint types imports docs tests ## everything a change must pass

format-check: $(STAMP)
	$(BIN)/ruff format --check $(SOURCES)

lint: $(STAMP)
	$(BIN)/ruff check $(SOURCES)

types: $(STAMP)
	$(BIN)/pyright --threads $(JOBS) --pythonpath $(BIN)/python

imports: $(STAMP)
	$(BIN)/lint-imports --no-cache

docs: $(STAMP) ## the documentation as a site, in build/docs
	$(BIN)/sphinx-build --quiet --fail-on-warning --fresh-env docs build/docs

test: $(STAMP) ## the fast tests
	$(PYTEST) -m "not slow and not sample"

samples: $(STAMP) ## fixed samples of conformance, hazards and generated programs
	$(PYTEST) -m sample

tests: $(STAMP) ## both in one run, which starts and collects once
	$(PYTEST) -m "not slow"

test-all: $(STAMP) ## all tests, the slow ones too
	$(PYTEST)

fix: $(STAMP) ## format, and mend what the linter can mend
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

conformance: $(STAMP) ## JAX's own primitive cases planned, run and compared; every rule against Shardy's and its meaning
	$(BIN)/python -m pytest -n $(JOBS) tests/rules
	$(BIN)/python -m tests.rules.rule_coverage
	$(BIN)/python -m tests.conformance.conformance --workers $(JOBS) --record benchmarks/results/conformance.json

fuzz: $(STAMP) ## generated programs (COUNT=5000) and plan files, many more than in the fast tests, others every time
	$(BIN)/python -m pytest -n $(JOBS) -m slow tests/programs/test_programs.py tests/pricing/reshards/test_reshard.py tests/plan_file/test_mutated_files.py
	FUZZ_COUNT=$(COUNT) $(BIN)/python -m pytest --hypothesis-profile=fuzz --hypothesis-show-statistics tests/programs/fuzz.py

hazards: $(STAMP) ## every split the planner offers of every op, compiled and run: is any computed wrongly? (hours)
	$(BIN)/python -m tests.hazards.hazard_hunt --workers $(JOBS) --log build/hazards.jsonl --output benchmarks/results/hazards.json

probes: $(STAMP) ## one tiny program per pass of the compiler model, compiled: which behaviours of the compilers have changed?
	$(BIN)/python -m tests.compiler.probes.run --out benchmarks/results/probes.json

golden: $(STAMP) ## write the golden plans that the fast tests compare; review the change before you commit it
	PYTHONPATH=. $(BIN)/python -m benchmarks.same_plans golden

bench: $(STAMP) ## the benchmarks: tables on the screen, JSON in benchmarks/results
	for script in $(BENCHMARKS); do PYTHONPATH=. $(BIN)/python $$script || exit 1; done

release: $(STAMP) ## build what would be released and try it in an environment of its own; publishes nothing
	.ci/release $(BIN)

clean: ## remove .venv and the caches
	rm -rf .venv .pytest_cache .hypothesis .ruff_cache .import_linter_cache build dist *.egg-info
