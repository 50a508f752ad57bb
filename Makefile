# make demo and make test do their own set-up on a fresh Debian or Ubuntu machine.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
DEMO ?= runs/demo

.PHONY: demo test test-quick test-long check bench docs docs-site release-check mutants clean setup

setup:
	@VENV=$(VENV) PYTHON=$(PYTHON) bash .ci/setup

demo: setup
	@rm -rf $(DEMO)
	$(BIN)/thalweg doctor
	env -u THALWEG_TRACES $(BIN)/thalweg run --servers 8 --scenario collapse --collapse-at 60s --images 24 \
	  --time-scale 250 --link-mean 0.2mbit --seed 6 --out $(DEMO)
	$(BIN)/thalweg analyze $(DEMO)

PYTEST := $(BIN)/python -P -m pytest -n 4 --max-worker-restart=0

test: setup
	$(PYTEST) --size usual $(ARGS)

# under two minutes: what needs no testbed, container, kernel or Spark
test-quick: setup
	$(PYTEST) --size quick $(ARGS)

# hours: PARTS="chroots faults" runs some of it, ARGS=--list tells what there is
test-long: setup
	$(BIN)/python tests/long_runs.py $(PARTS) $(ARGS)

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup
	$(BIN)/thalweg bench tree
	$(BIN)/thalweg bench graph
	$(BIN)/thalweg bench link
	$(BIN)/thalweg bench testbed
	$(BIN)/thalweg bench plan
	$(BIN)/thalweg bench move
	$(BIN)/thalweg bench sim

mutants: setup
	$(BIN)/python tests/mutants.py $(ARGS)

docs: setup
	$(BIN)/python docs/diagrams.py $(shell grep -rl --include='*.md' '<!-- diagram:' docs)

# build/site/index.html; needs a network once, and Graphviz. A dead link or an undocumented public name fails.
docs-site: setup $(VENV)/.site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -P -m mkdocs build --strict
	@echo "the site is build/site/index.html"

$(VENV)/.site: pyproject.toml
	bash .ci/install site
	$(BIN)/python -P -I -m pip install -q --disable-pip-version-check -e '.[docs]'
	@touch $@

# wheel and sdist, each installed in a fresh environment in which the tutorials run
release-check: setup
	$(BIN)/python tests/release_check.py


clean:
	rm -rf $(VENV) runs build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
