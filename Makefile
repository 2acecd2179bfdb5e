# Every command of a developer. A machine needs make and one of these Pythons, with venv.

PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3.14 python3; do \
	command -v $$python && break; done)
VENV   := .venv
BIN    := $(VENV)/bin
# Tests run side by side, so each computes with one thread; what Python compiles is kept, since every
# process of a test would compile it again.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
# What locks and audits requirements is no requirement of the project itself.
TOOLS  := $(VENV)/tools
# One file for every Python from 3.11 on: the same releases, with markers.
LOCK   := $(TOOLS)/bin/uv pip compile --quiet --generate-hashes --no-header --no-annotate \
	--universal --fork-strategy fewest --python-version 3.11 --no-emit-index-url \
	--no-emit-find-links $(if $(UPGRADE),--upgrade)
BUILD  := import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"])
# Brokers, workers and clients wait for each other as much as they compute: one test more than cores.
JOBS   ?= $(shell expr `getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2` + 1)

# Types are checked beside the tests, and what is wrong with them is told last. $(1): the tests.
beside_types = @said=$$(mktemp); $(MAKE) --no-print-directory types > $$said 2>&1 & types=$$!; \
	$(1); tests=$$?; wait $$types; wrong=$$?; cat $$said; rm -f $$said; exit $$((tests | wrong))

.PHONY: help demo check test nightly debian test-torch test-huggingface test-adapters lint style types docs examples reference lock audit dist pin image simulate chaos fuzz bench \
	bench-torch gpu gains papers theorems clean

help:                             ## what there is
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile
	@echo "One test, without the rest:  make test ARGS=tests/unit/test_config.py::NAME"
	@echo "The same for demo, check, fuzz, bench and papers: ARGS is handed on."

# The demo needs few of the packages of development; an environment that has all of them is used as it is.
DEMO   := $(VENV)/$(if $(LOCKED)$(wildcard $(VENV)/installed),installed,demo)

demo: $(DEMO)                     ## compare individual accounting with its baselines, on a real broker and Redis
	$(BIN)/turnstile demo $(ARGS)

check: $(VENV)/installed style    ## lint, types, import rules, all tests that start no process
	$(call beside_types,$(PYTEST) -n auto --dist worksteal -m "not process and not slow" \
		--hypothesis-profile check --ignore=tests/integration $(ARGS))

ifeq ($(strip $(ARGS)),)
test: $(VENV)/installed style     ## lint, types, import rules, all tests but the longer fault injection; or those in ARGS
	$(call beside_types,$(PYTEST) -n $(JOBS) --dist worksteal -m "not fault")
else
test: $(VENV)/installed
	$(PYTEST) $(ARGS)
endif

nightly: $(VENV)/installed        ## fault injection, attacks, simulation, chaos, fuzz, thorough; continues an interrupted night; ONLY="faults fuzz"
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m tests.nightly $(if $(ONLY),--only $(ONLY)) $(ARGS)

debian:                           ## make check and the demo in a fresh Debian; needs root; SUITE=forky, LOCKED=1
	.ci/debian $(SUITE)

test-torch: $(VENV)/installed     ## trainers with PyTorch and Opacus: they take gigabytes, so not in `make test`
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,torch]' 'flwr[simulation]' lightning
	$(PYTEST) tests/unit/trainers tests/worlds $(ARGS)

test-huggingface: $(VENV)/installed ## the same with transformers and PEFT
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,huggingface]' peft
	$(PYTEST) tests/unit/trainers tests/worlds $(ARGS)

test-adapters:                    ## the ledger of a data set with OpenDP, Opacus and Flower, in an environment of its own
	@test -d out/adapters || $(PYTHON) -m venv out/adapters
	out/adapters/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' opacus opendp 'flwr[dp]'
	out/adapters/bin/python -m pytest -n0 -rs tests/unit/test_dataset_ledger.py $(ARGS)

lint: style types                 ## ruff, mypy, import rules

style: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tests.plain_english

types: $(VENV)/installed
	$(BIN)/mypy
	$(BIN)/lint-imports

examples: $(VENV)/installed       ## clients in Go and Java, and Kafka's own tools, on a real broker; needs go and mvn, and says which is missing
	TURNSTILE_EXAMPLES=1 $(PYTEST) -v -rs tests/integration/test_examples.py tests/integration/test_other_programs.py $(ARGS)

reference: $(VENV)/installed      ## write the generated files: AsyncAPI documents, tables in the documentation
	$(BIN)/python -m docs.generated

docs: $(VENV)/installed           ## the documentation site, in out/docs
	$(BIN)/sphinx-build --fail-on-warning --quiet -c docs/site . out/docs
	@echo "out/docs/index.html is the first page"

# The image has the releases that CI tests: what it needs is locked within what development needs.
lock: $(TOOLS)/installed          ## lock what pyproject.toml asks for; UPGRADE=1 with the newest releases
	$(LOCK) --extra dev --output-file requirements/dev.txt pyproject.toml
	$(LOCK) --extra secure --extra service --constraint requirements/dev.txt --output-file requirements/worker.txt pyproject.toml
	$(BIN)/python -c '$(BUILD)' | $(LOCK) --constraint requirements/dev.txt --output-file requirements/build.txt -

audit: $(TOOLS)/installed         ## known vulnerabilities of locked packages; UNAUDITED=1 without a network
	$(TOOLS)/bin/python requirements/audit.py $(if $(UNAUDITED),--allow-unaudited) \
		$(TOOLS)/bin/pip-audit requirements/*.txt

dist: $(TOOLS)/installed          ## the wheel and the source archive in dist/: their metadata is checked, and the wheel installed
	rm -rf dist && $(TOOLS)/bin/uv build --quiet --out-dir dist
	$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check twine
	$(TOOLS)/bin/twine check --strict dist/*.whl dist/*.tar.gz
	$(PYTHON) -m venv dist/bare && dist/bare/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl
	dist/bare/bin/turnstile --version && rm -rf dist/bare

VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)

PINNED ?= docker-compose.yml deploy/Dockerfile
PYTHON_IMAGE ?= $(shell sed -n 's/^ARG PYTHON_IMAGE=//p' deploy/Dockerfile)

pin:                              ## the digests that the tags of our images have today; needs docker
	@for image in $$(grep -ohE '[a-z][a-z/]*:[0-9][a-z0-9.-]*@sha256:[0-9a-f]{64}' $(PINNED) | sort -u); do \
		tag=$${image%@*}; \
		digest=$$(docker buildx imagetools inspect --format '{{.Manifest.Digest}}' "$$tag") || exit 1; \
		case "$$digest" in sha256:*) ;; *) echo "$$tag: the registry gave no digest"; exit 1;; esac; \
		sed -i "s|$$image|$$tag@$$digest|" $(PINNED); echo "$$tag@$$digest"; \
	done

image:                            ## the worker image to publish; PYTHON_IMAGE=python:...@sha256:... names another base
	@case "$(PYTHON_IMAGE)" in *@sha256:*) ;; *) \
		echo "PYTHON_IMAGE='$(PYTHON_IMAGE)' has no digest. Look it up in a registry that you trust:"; \
		echo "  docker buildx imagetools inspect python:3.11-slim-bookworm"; exit 1;; esac
	docker build --build-arg "PYTHON_IMAGE=$(PYTHON_IMAGE)" -f deploy/Dockerfile -t dp-turnstile:$(VERSION) .

bench: $(VENV)/installed          ## speed and latency against the raw pipe; a table in out/
	$(BIN)/python -m bench $(ARGS)

bench-torch: $(VENV)/installed    ## private training beside Opacus's; ARGS="--data DIR" with MNIST, too
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,torch]'
	OMP_NUM_THREADS=1 $(BIN)/python -m bench.training $(ARGS)
	$(BIN)/python -m bench.sizes

gpu: $(VENV)/installed            ## sums on a GPU beside those on the CPU, steps beside Opacus's; says so if there is no GPU
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,torch]'
	$(BIN)/python -m bench.gpu $(ARGS)

simulate: $(VENV)/installed       ## SEEDS=n worlds with every fault; SEED=n one, with its trace; MUTATIONS=all
	$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED)) $(if $(SEEDS),--seeds $(SEEDS)) \
		$(if $(FIRST),--first $(FIRST)) $(if $(MUTATIONS),--mutations $(filter-out all,$(MUTATIONS))) \
		$(if $(MUTATION),--mutation $(MUTATION))

chaos: $(VENV)/installed          ## MINUTES=n of faults of every kind, then an audit; BROKERS=3 REDIS=cluster SECURE=1
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.chaos $(if $(MINUTES),--minutes $(MINUTES)) \
		$(if $(BROKERS),--brokers $(BROKERS)) $(if $(REDIS),--redis $(REDIS)) \
		$(if $(SECURE),--secure) $(ARGS)

fuzz: $(VENV)/installed           ## hostile records at the edge; ARGS=1000000 for so many
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz $(ARGS)

gains: $(VENV)/installed          ## individual accounting beside the strongest baselines; ARGS="--data DIR"
	OMP_NUM_THREADS=1 $(BIN)/python -m bench.papers.gains $(ARGS)

papers: $(VENV)/installed         ## results of the papers, computed again; a table in out/papers
	$(BIN)/python -m bench.papers $(ARGS)

theorems:                         ## the new theorems with their proofs, as out/theorems.pdf; needs tectonic or pdflatex
	@mkdir -p out
	@if command -v tectonic > /dev/null; then tectonic --outdir out docs/research/theorems.tex; \
	elif command -v pdflatex > /dev/null; then for pass in 1 2; do pdflatex -halt-on-error \
		-interaction nonstopmode -output-directory out docs/research/theorems.tex > out/theorems.txt \
		|| { tail -n 20 out/theorems.txt; exit 1; }; done; \
	else echo "No TeX was found: install tectonic, or pdflatex with amsmath and hyperref"; exit 1; fi
	@echo "out/theorems.pdf is the paper"

define environment
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is needed, and no python3 was found"; exit 1; }
	@$(PYTHON) requirements/ready.py
	@echo "Installing Python packages into $(VENV), which takes some minutes the first time"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
endef

$(VENV)/demo: pyproject.toml
	$(environment)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[demo]'
	@touch $@

$(VENV)/installed: pyproject.toml
	$(environment)
ifdef LOCKED
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements/dev.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
else
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
endif
	@touch $@

$(TOOLS)/installed: $(VENV)/installed
	@$(PYTHON) -m venv $(TOOLS)
	@$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check pip-audit uv
	@touch $@

clean:                            ## remove what make made
	rm -rf $(VENV) build dist out *.egg-info
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
