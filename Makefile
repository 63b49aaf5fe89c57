SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
PLATFORM ?= modal
# The suite of faults, and the tests elsewhere that docs/reliability.md counts too.
FAULTS := tests/faults tests/test_jobs.py tests/test_processes.py tests/platforms/test_archive.py
DEVICE ?= cpu
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

.PHONY: help setup repro rehearse show test test-slow faults lint format bench clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# Of two at once, the second waits and finds it done.
setup: $(VENV)/.ready ## make .venv and install what the project needs

$(VENV)/.ready: pyproject.toml constraints.txt
	@exec 9<.; flock 9; if [ $@ -nt pyproject.toml ] && [ $@ -nt constraints.txt ]; then exit; fi; set -x; \
	$(PYTHON) -m venv $(VENV); \
	python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,nodus,s3]'; \
	touch $@

repro: setup ## run the pipeline on params.yaml and show its metrics
	dvc repro
	python -m stages.show
	@echo "the report is in metrics/report.html"

rehearse: setup ## run it against a paid platform's emulator, free and offline: make rehearse PLATFORM=modal
	dvc exp remove --quiet $(PLATFORM) 2>/dev/null || true
	dvc exp run --name $(PLATFORM) --set-param platform=$(PLATFORM) --set-param rehearse=true
	python -m stages.show

show: setup ## show the metrics of the last run
	python -m stages.show

test: setup ## run the tests
	python -m pytest -m "not slow and not faults"

test-slow: setup ## run the tests that take minutes each
	python -m pytest -m slow

faults: setup ## run every fault of tests/faults and count them in docs/reliability.md
	mkdir -p build
	status=0; python -m pytest $(FAULTS) --junitxml=build/faults.xml || status=$$?; \
	python -m tests.faults.counts && exit $$status

lint: setup ## check style and types
	ruff check .
	ruff format --check .
	mypy

format: setup ## rewrite to the project's style
	ruff check --fix .
	ruff format .

bench: $(VENV)/.bench ## measure side by side with what one would use instead: make bench DEVICE=cuda
	python -m bench --device $(DEVICE)

$(VENV)/.bench: $(VENV)/.ready
	python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[bench,dev,nodus,s3]'
	touch $@

clean: ## remove .venv and what the pipeline made; git's and DVC's own stay
	rm -rf $(VENV) data build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
