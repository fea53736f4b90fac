# make run    the service on http://127.0.0.1:8321
# make test   every test, offline after the first set-up
# make test-postgres   the suites of store and interface with every catalog on a PostgreSQL server
# make test-stores   the same suites with files in an S3 bucket and vectors on a Chroma server
# make cluster   an installation with a Ray cluster on this machine; each part is killed in turn
# make quick  the fast tests, in about a minute
# make check  lint, format and types
# make docs   docs/reference/, from the code
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WORKERS ?= 2
# A test module stays on one worker; tests/conftest.py orders the modules.
PARALLEL = -n $(WORKERS) --dist loadgroup --no-loadscope-reorder
# Suites of the store and of its callers.
ON_SERVERS ?= tests/kb tests/ingestion tests/retrieval tests/skills tests/api tests/complaints \
	tests/optimizer/evaluation/test_journal.py tests/optimizer/search/runs \
	tests/optimizer/test_new_chip_search.py
HOST ?= 127.0.0.1
PORT ?= 8321
DATA ?= data

# Containers often set this; then each of the hundreds of test processes compiles the program,
# which is a third of the suite's time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test test-postgres test-stores cluster postgres helm emulators quick check lint types docs setup browser serve clean

run serve: setup
	@$(BIN)/kernlore serve --host $(HOST) --port $(PORT) --data-dir $(DATA)

test: setup
	$(BIN)/python -m pytest $(PARALLEL)

# Every catalog of the tests on a real server.
test-postgres: setup
	KERNLORE_TEST_CATALOG=postgresql $(BIN)/python -m pytest $(PARALLEL) $(ON_SERVERS)

# Every stored file and every vector index of the tests on real servers, which the tests start.
test-stores: setup
	KERNLORE_TEST_BLOBS=s3 KERNLORE_TEST_CHROMA=server $(BIN)/python -m pytest $(PARALLEL) $(ON_SERVERS)

# What the loss of each part costs (benchmarks/results/operation.md).
cluster: setup postgres
	$(BIN)/python -m benchmarks.cluster.losses

quick: setup
	$(BIN)/python -m pytest $(PARALLEL) -m 'not slow'

check: lint types

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

docs: setup
	$(BIN)/python docs/generate.py

setup: $(STAMP)

# The lock pins every version; the CPU and the CUDA build of torch share a version, so there are no hashes.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Kernlore needs Python 3.11 or newer: make PYTHON=python3.11"; exit 2; }
	@echo "Setting up $(VENV): about 200 packages, of which torch is the largest, from your package index."
	@echo "This takes 2-4 minutes, once; nothing else is fetched, now or at run time."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --disable-pip-version-check --progress-bar off -c constraints.txt \
		-e '.[all]' >$(VENV)/install.log 2>&1 & pip=$$!; trap "kill $$pip" INT TERM; said=; \
	while kill -0 $$pip 2>/dev/null; do sleep 5; now=$$(tail -n 1 $(VENV)/install.log | cut -c 1-100); \
		if [ "$$now" != "$$said" ]; then echo "  $$now"; said=$$now; fi; done; \
	wait $$pip || { tail -n 20 $(VENV)/install.log; exit 1; }
	@echo "Preparing the built-in knowledge, so that a first start copies it."
	@$(BIN)/kernlore knowledge prepare
	@touch $@

# For the tests of the web pages; without it they are skipped. A machine with another one needs none.
browser:
	@if which chromium chromium-browser google-chrome 2>/dev/null | grep -q .; then :; \
	elif command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
		echo "Installing Chromium for the tests of the web pages."; \
		apt-get update -qq >/dev/null && DEBIAN_FRONTEND=noninteractive \
			apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null \
			|| echo "Chromium could not be installed; the tests of the web pages will be skipped."; \
	else echo "No Chromium: the tests of the web pages in a browser will be skipped."; fi

# For the tests of a catalog on a server; without it they are skipped. Nothing of it has to run.
postgres:
	@if ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null; then :; \
	elif command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
		echo "Installing PostgreSQL for the tests of a catalog on a server."; \
		apt-get update -qq >/dev/null && DEBIAN_FRONTEND=noninteractive \
			apt-get install -y -qq --no-install-recommends postgresql >/dev/null \
			|| echo "PostgreSQL could not be installed; its tests will be skipped."; \
	else echo "No PostgreSQL: the tests of a catalog on a server will be skipped."; fi

# For the tests that lint and render the chart; without it they are skipped. 75 MB, so no part of the
# set-up: the Helm library itself as a Python package.
helm: setup
	@if command -v helm >/dev/null || $(BIN)/python -c 'import helm_python' 2>/dev/null; then :; \
	else echo "Installing Helm's library for the tests of the chart."; \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check helm-python-sdk==0.2.2 \
			|| echo "Helm could not be installed; the chart will not be rendered."; fi

# For the tests of the chips that run in an emulator; without it they are skipped. 500 MB.
emulators:
	@if command -v clang-19 >/dev/null && command -v qemu-hexagon >/dev/null; then :; \
	elif command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
		echo "Installing clang 19 and QEMU for the tests of emulated chips."; \
		apt-get update -qq >/dev/null && DEBIAN_FRONTEND=noninteractive \
			apt-get install -y -qq --no-install-recommends qemu-user clang-19 lld-19 llvm-19 >/dev/null \
			|| echo "clang 19 or QEMU could not be installed; tests of emulated chips will be skipped."; \
	else echo "No clang 19 or QEMU: the tests of emulated chips will be skipped."; fi

clean:
	rm -rf $(VENV) $(DATA) build dist *.egg-info
