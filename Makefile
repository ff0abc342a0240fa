# `make` alone says what can be made. Everything runs from .venv, which `make setup` fills from the lock.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

BIN := .venv/bin
READY := .venv/.ready

# What tests and benchmarks need from the system, by its Debian name.
TEST_PACKAGES := libczmq4 strace openssl monitoring-plugins-basic iproute2 nftables chromium prometheus graphite-carbon curl systemd jq
EVIDENCE_PACKAGES := strace faketime
BENCH_PACKAGES := nats-server redis-server beanstalkd nagios-nrpe-server nagios-nrpe-plugin

# Three workers on two cores: tests that start processes mostly wait (see tests/scheduling.py).
WORKERS ?= 3
PYTEST := $(BIN)/python -m pytest -n $(WORKERS)
SEEDS ?= 300
MINUTES ?= 30
SECONDS ?= 60
KILLS ?= 100
BROKER_KILLS ?= 100

.PHONY: help setup demo test test-slow check coverage lint format bench bench-tasks bench-postgres bench-agents bench-pipeline sim soak fuzz
.PHONY: evidence evidence-bugs lock clean bench-management bench-broker wheel

help: ## Say what can be made (this)
	@printf 'Scale0: a service network in one install.\n\nStart with:\n\n    make demo\n\nTargets:\n\n'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "    make %-16s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@printf '\nVariables:\n\n'
	@printf '    PYTHON=python3.12   the interpreter for a new .venv (3.11 or later)\n'
	@printf '    SEED=17             the one seed that `make sim` replays\n'
	@printf '    SEEDS=1000          how many seeds `make sim` tries without SEED (300)\n'
	@printf '    MINUTES=5           how long `make soak` and `make evidence` take (30)\n'
	@printf '    SECONDS=20          how long `make fuzz` fuzzes each parser (60)\n'
	@printf '    BROKER_KILLS=20     how many brokers of a group `make soak` kills after that (100)\n'
	@printf '    KILLS=20            how many drivers of the pipeline `make soak` kills at its end (100)\n'
	@printf '    ARGS="-k lease"     passed on to pytest by `make test` and `make check`, or parts and --rounds to `make bench`, names to `make evidence-bugs`\n'

setup: $(READY) ## Install everything that the other targets need, Spark too; instant when nothing changed
	@scripts/java || true
	@scripts/console
	@scripts/node-example

$(READY): pyproject.toml requirements.lock requirements-pipeline.lock scripts/setup
	@scripts/setup requirements-pipeline.lock
	@touch $@

demo: setup ## Run a whole network on this machine, kill parts of it, and have Spark report on it
	@$(BIN)/scale0 demo

test: setup system-packages lint ## Lint, types, and the tests that gate a change; a skipped test is a failure
	@$(PYTEST) -m "not extended" $(ARGS)

# Only `make test` may call apt, and only after asking: see scripts/debian-packages.
.PHONY: system-packages
system-packages:
	@scripts/debian-packages --ask $(TEST_PACKAGES) || true
	@scripts/java --ask || true

test-slow: setup ## The tests that take long: pages typed, a Spark cluster, kills, planted bugs, the independent judge
	@$(PYTEST) -m extended $(ARGS)

check: setup ## The fast floor: lint, types, and the tests that need neither time nor processes; under a minute
	@$(MAKE) -j 2 --output-sync=target lint floor

# Beside lint: mypy takes half a minute when it has no cache. `floor` is known to tests/conftest.py.
.PHONY: floor durations
floor: $(READY)
	@$(BIN)/python -m pytest -q -n 2 -m "not slow and not processes and not extended" $(ARGS)

coverage: setup ## Branch coverage of the fast tests: the total, and the ten files with the least
	@rm -rf build/coverage && mkdir -p build/coverage
	@$(BIN)/coverage run -m pytest -q -n 2 -m "not slow and not processes and not extended" $(ARGS)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report --show-missing > build/coverage/lines.txt
	@$(BIN)/coverage report > build/coverage/files.txt
	@head -2 build/coverage/files.txt; grep '^src' build/coverage/files.txt | sort -k6,6n -k2,2nr | sed 10q; grep '^TOTAL' build/coverage/files.txt
	@echo 'build/coverage/lines.txt lists the lines that were not run'

durations: setup ## Run the tests of `make test`, and write how long each file takes: the longest begin (see tests/scheduling.py)
	@$(PYTEST) -m "not extended" --write-durations $(ARGS)

lint: $(READY) ## ruff and mypy --strict
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check --quiet || { echo 'lint: not formatted; run: make format' >&2; exit 1; }
	@$(BIN)/mypy

format: $(READY) ## Let ruff format and sort what it can
	@$(BIN)/ruff check --fix --exit-zero --quiet
	@$(BIN)/ruff format

# What is measured beside Scale0 has a virtualenv of its own.
PEERS := scripts/bench-peers

bench: setup ## Measure requests and durable tasks beside the peers that install here; writes docs/performance.md
	@scripts/debian-packages $(BENCH_PACKAGES) || true
	@$(PEERS)
	@$(BIN)/python -m benchmarks.whole $(ARGS)

bench-broker: setup ## Measure a broker with 10,000 idle backends, over a million requests, beside another broker, and under floods
	@$(BIN)/python -m benchmarks.run $(or $(ARGS),idle flat forwarded floods)

bench-tasks: setup ## Measure durable tasks beside other queues (they come into .venv-bench)
	@scripts/debian-packages $(BENCH_PACKAGES) || true
	@$(PEERS)
	@$(BIN)/python -m benchmarks.tasks $(ARGS)

bench-postgres: setup ## Measure tasks of a group on PostgreSQL beside Procrastinate (it comes into .venv-bench)
	@$(PEERS)
	@$(BIN)/python -m benchmarks.postgres $(ARGS)

bench-agents: setup ## Measure Helen with 10,000 agents, and checks beside NRPE
	@scripts/debian-packages $(BENCH_PACKAGES) || true
	@$(BIN)/python -m benchmarks.agents $(ARGS)

bench-management: setup ## Measure what looking costs: requests beside readers, the console, /metrics with 10,000 clients
	@$(BIN)/python -m benchmarks.management $(ARGS)

bench-pipeline: setup ## Measure the pipeline beside DuckDB's SQL for the same tables
	@$(BIN)/python -m benchmarks.pipeline $(ARGS)

sim: setup ## Simulate whole networks under faults: SEED=n replays one, else SEEDS of them
ifdef SEED
	@$(BIN)/python -m simulator.main --kind all --seed $(SEED)
else
	@$(BIN)/python -m simulator.main --kind all --seeds $(SEEDS)
	@NETWORK_SEEDS=$(SEEDS) $(PYTEST) -q tests/unit/broker/test_faults.py tests/unit/tasks/test_shared_storms.py
endif

evidence: setup ## Faults and attacks against real processes, and simulated seeds, for MINUTES; writes build/evidence
	@scripts/debian-packages $(EVIDENCE_PACKAGES) || true
	@$(BIN)/python -m evidence.main --minutes $(MINUTES) $(ARGS)

evidence-bugs: setup ## Plant each known bug in a copy of the package: the campaign must find it
	@$(BIN)/python -m evidence.bugs $(ARGS)

fuzz: setup ## Fuzz every parser of foreign bytes for SECONDS each; what breaks one is kept in fuzz/corpora
	@scripts/fuzz-engine
	@$(BIN)/python -m fuzz.main --seconds $(SECONDS) $(ARGS)

soak: setup ## A long simulation; real networks, brokers and drivers of the pipeline killed; writes docs/soak.md
	@$(BIN)/python scripts/soak --minutes $(MINUTES) --broker-kills $(BROKER_KILLS) --kills $(KILLS)

# --universal: one lock for every system and every Python from 3.11 on, with the hash of every file.
LOCK := --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-header

wheel: setup ## Build a wheel and a source archive into dist, with the console inside
	@scripts/wheel

lock: ## Choose the newest allowed versions again, and write both lock files
	@uv=$$(command -v uv || echo $(BIN)/uv); [ -x "$$uv" ] || { $(MAKE) setup; }; \
	"$$uv" pip compile $(LOCK) --upgrade --extra dev --extra agent --extra http --extra tui --extra segments --extra postgres --extra otlp pyproject.toml -o requirements.lock >/dev/null; \
	"$$uv" pip compile $(LOCK) --upgrade --extra pipeline -c requirements.lock pyproject.toml -o requirements-pipeline.lock >/dev/null
	@$(MAKE) setup && $(BIN)/python scripts/image-lock
	@grep -c '^[a-z]' requirements.lock requirements-pipeline.lock

clean: ## Remove .venv, and all that the tools made
	@rm -rf .venv .venv-bench .venv-fuzz .venv-node build dist console/node_modules examples/node_js/node_modules src/scale0/http/pages .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
