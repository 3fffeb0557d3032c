# `make help` lists the targets. `make train` runs in .venv-small, everything else in .venv. Each is set up once, and again when
# the pins change.
PYTHON ?= python3.11
PYTEST_ARGS ?=
EXTRAS ?=
BIN := .venv/bin
SMALL := .venv-small/bin

.PHONY: help install train test test-ci-slow test-slow test-long lint site docs types check format version release clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*##/\1:/' | awk -F: '{ printf "  make %-14s%s\n", $$1, $$2 }'

install: .venv/.installed  ## set up .venv with the pinned versions

.venv/.installed: PACKAGES := ".[dev]"
.venv/.installed: SIZE := all extras and the developers' tools, 3.3 GB
.venv-small/.installed: PACKAGES := .
.venv-small/.installed: SIZE := what CartPole needs, about 230 MB

.venv/.installed .venv-small/.installed: pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null && $(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' || { \
		echo "raypid needs Python 3.10 to 3.13; '$(PYTHON)' is another version or is not installed." >&2; \
		echo "Install Python 3.11, or name another: make $(or $(MAKECMDGOALS),install) PYTHON=python3.12" >&2; exit 1; }
	@echo "Setting up $(@D): raypid in place (editable) with $(SIZE)"
	@$(@D)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip --disable-pip-version-check install -c constraints.txt -e $(PACKAGES)
	@touch $@

train: .venv-small/.installed  ## train PPO on CartPole-v1 and evaluate it, in a small environment of its own
	$(SMALL)/raypid train --run PPO --env CartPole-v1 \
		--stop '{"evaluation/episode_reward_mean": 475, "time_total_s": 120}' --seed 0 --out runs/cartpole --overwrite
	$(SMALL)/raypid eval runs/cartpole --episodes 20

test: install  ## the tests, without the slow ones
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-ci-slow: install  ## the slower tests that the CI runs
	$(BIN)/python -m pytest -m ci_slow --timeout=600 $(PYTEST_ARGS) || [ $$? -eq 5 ]

# -n 0: what learns within a time limit has the machine to itself
test-slow: install  ## all slow tests except the long ones, at most 75 minutes
	$(BIN)/python -m pytest -n 0 -m "(slow or ci_slow) and not long" --timeout=2700 --session-timeout=4500 $(PYTEST_ARGS)

test-long: install  ## tests that train for most of an hour each
	$(BIN)/python -m pytest -n 0 -m long $(PYTEST_ARGS)

lint: install  ## rules and format (ruff), no part of the package larger than allowed, Dockerfiles (hadolint)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python benchmarks/code_size.py --check
	$(BIN)/python docs/make_agents.py --check
	$(BIN)/python docs/make_pages.py --check
	$(BIN)/python docs/make_speed.py --check
	$(BIN)/hadolint docker/*.Dockerfile

site: install  ## build the site into build/site; dead links and names that do not exist fail it
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "Open build/site/index.html"

docs: site  ## the same, and run the quick code of its pages, which takes half a minute more
	$(BIN)/python -m pytest -q tests/test_documentation.py $(PYTEST_ARGS)

types: install  ## mypy
	$(BIN)/mypy

check: lint types  ## lint and types

format: install  ## let ruff fix what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

version: install  ## VERSION=0.2.0 into the files that state it; Unreleased in the changelog becomes its section
	$(BIN)/python tools/release.py version "$(VERSION)"

release: install  ## sdist, wheel, notes and sums in dist/, checked and tried (EXTRAS=torch,ray with these); publishes nothing
	$(BIN)/python tools/release.py build --extras "$(EXTRAS)"

clean:  ## remove .venv, .venv-small, caches and build folders; runs/ stays
	rm -rf .venv .venv-small build dist .pytest_cache .mypy_cache .ruff_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
