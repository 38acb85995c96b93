# Two commands matter: `make demo` and `make test`. Both set up .venv by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -q -c constraints.txt

.PHONY: help demo test cluster check docs pictures install bench ray lowest clean

help: ## list these commands
	@grep -E '^[a-z]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 10

demo: $(VENV)/core ## index real photos, search, explain, leave demo/report.html
	$(BIN)/bm25v demo

test: $(VENV)/full ## everything, with every extra installed
	$(BIN)/python -m pytest -n auto --dist worksteal

cluster: $(VENV)/full ## three real Qdrant nodes, of which some are killed; skipped without npm
	$(BIN)/python -m tests.qdrant_nodes

check: $(VENV)/full ## formatting, lint, types, import directions
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

docs: $(VENV)/docs ## the documentation as a site: site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo site/index.html

pictures: $(VENV)/full ## make the pictures of the documentation again; needs Chromium
	PYTHONPATH=. $(BIN)/python docs/make_pictures.py

install: $(VENV)/full ## .venv with every extra

bench: $(VENV)/full ## measure searches and indexing on this machine, beside other engines; takes long
	$(PIP) pyseismic-lsr tantivy
	$(BIN)/python benchmarks/search.py --n 10000 100000 1000000
	$(BIN)/python benchmarks/encode.py

ray: $(VENV)/full ## test encoding on Ray clusters; Ray is 240 MB, and not part of install
	$(PIP) -e '.[ray]'
	$(BIN)/python -m pytest tests/test_ray.py

LOWEST := build/lowest
lowest: ## test the lowest versions that pyproject.toml allows; before a release, minutes
	rm -rf $(LOWEST)
	$(PYTHON) -m venv $(LOWEST)
	$(PYTHON) .ci/lowest.py > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip install -q -c $(LOWEST)/constraints.txt -e . \
		bm25s hypothesis onnx pytest pytest-timeout scipy
	$(LOWEST)/bin/python -m pytest tests/test_index.py tests/test_gallery.py tests/test_search.py \
		tests/test_query.py tests/test_images.py tests/test_indexing.py tests/test_wrong_input.py

clean: ## remove what the other commands made
	rm -rf $(VENV) demo site build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(VENV)/core: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	touch $@

$(VENV)/docs: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[docs]'
	touch $@ $(VENV)/core

$(VENV)/full: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[all,dev,docs]'
	touch $@ $(VENV)/core $(VENV)/docs
