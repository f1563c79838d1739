# `make demo` and `make test` set up all they need in .venv, from PyPI.
VENV := .venv
BIN := $(VENV)/bin
export PYSPARK_PYTHON := $(abspath $(BIN)/python)
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)

# Tests wait for Spark and for agents a good part of their time, so there are three at a time for two cores.
# Threads of polars and Python callbacks in it can wait for each other; Spark's workers have one such thread, too.
check test test-all test-seeds test-random: export POLARS_MAX_THREADS := 1
PATIENT := -o faulthandler_timeout=3600

.PHONY: help demo demo-harness bench bench-quick bench-latency bench-store bench-harness bench-handover soak check test test-thorough test-all test-random test-seeds lint format hooks wheel docs clean demo-fraud bench-buffers bench-joins bench-shapes bench-shared

help:  ## what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/warm  ## stream a year of flights through two queries; prints tables, writes demo/flights.png
	@$(BIN)/python examples/flights.py

demo-fraud: $(VENV)/ready  ## find planted card fraud, transaction by transaction; prints a table, writes demo/fraud/fraud.png
	@$(BIN)/python examples/fraud.py

demo-harness: $(VENV)/ready  ## which store suits flights, clicks and sensors: reports in demo/harness (5 minutes)
	@rm -rf demo/harness && mkdir -p demo/harness
	$(BIN)/forebay harness compare examples/harness/*.toml --stores all --seconds 1 --rounds 3 --out demo/harness/stores
	$(BIN)/forebay harness generate examples/harness/flights.toml demo/harness/flights.arrow
	$(BIN)/forebay harness generate examples/harness/clicks.toml demo/harness/clicks.arrow
	$(BIN)/forebay harness generate examples/harness/sensors.toml demo/harness/sensors.arrow
	$(BIN)/forebay harness analyse demo/harness/*.arrow --contrast --out demo/harness/traces
	$(BIN)/forebay harness advise examples/harness/flights.toml --seconds 1
	@echo "open demo/harness/stores/report.html and demo/harness/traces/report.html"

bench: $(VENV)/ready  ## the race against Spark, Flink and bytewax, and how all scales: bench/, docs/benchmarks.md (2 hours)
	$(BIN)/python benchmarks/race.py
	$(BIN)/python benchmarks/race.py --shape few
	$(BIN)/python benchmarks/race.py --shape skew
	$(BIN)/python benchmarks/breakdown.py
	$(BIN)/python benchmarks/joins.py
	$(BIN)/python benchmarks/shapes.py
	$(BIN)/python benchmarks/scaling.py

bench-quick: $(VENV)/ready  ## forebay against Spark, one query of each pattern (3 minutes)
	$(BIN)/python benchmarks/race.py --quick

bench-latency: $(VENV)/ready  ## what a micro-batch costs, by rows, partitions, operators; QUICK=1 for 5 minutes: docs/benchmarks.md
	$(BIN)/python benchmarks/latency.py $(if $(QUICK),--quick)

bench-store: $(VENV)/ready  ## the stores without Spark against RocksDB: tables, CSV and charts in bench/store (20 minutes)
	$(BIN)/python benchmarks/store.py

bench-harness: $(VENV)/ready  ## every store of the harness with every workload: bench/harness, docs/harness.md (three quarters of an hour)
	$(BIN)/python benchmarks/harness.py

bench-joins: $(VENV)/ready  ## joins, deduplication and rolling aggregates against Spark's own: docs/benchmarks.md (10 minutes)
	$(BIN)/python benchmarks/joins.py

bench-shapes: $(VENV)/ready  ## text keys, few keys, many aggregates, wide rows against Spark's own: docs/benchmarks.md (10 minutes)
	$(BIN)/python benchmarks/shapes.py

bench-buffers: $(VENV)/ready  ## views of tweets with buffers and without: bench/buffers, docs/buffers.md
	$(BIN)/python benchmarks/buffers.py

bench-shared: $(VENV)/ready  ## patterns over card transactions, with one state and with a state for each: bench/shared, docs/patterns.md
	$(BIN)/python benchmarks/shared_stores.py
	$(BIN)/python benchmarks/shared.py
	$(BIN)/python benchmarks/shared.py --scaling
	$(BIN)/python benchmarks/shared_latency.py

bench-handover: $(VENV)/ready  ## hosts lost, added, slowed and retired, with replicas and without (two hours); needs root, iproute2, sshfs
	$(BIN)/python benchmarks/handover.py

soak: $(VENV)/ready  ## a query killed again and again for MINUTES=30: right in the end, and no larger
	$(BIN)/python benchmarks/soak.py --minutes $(or $(MINUTES),30)

check: lint  ## lint rules, types, and the tests that start neither Spark nor other programs (a minute)
	@sh scripts/in_memory.sh $(BIN)/python -m pytest -m "not slow and not thorough and not spark and not programs" -n 2 --dist worksteal

test: $(VENV)/warm  ## the test suite (5 to 13 minutes)
	@sh scripts/in_memory.sh $(BIN)/python -m pytest -m "not slow and not thorough" -n 3 --dist worksteal

test-thorough: $(VENV)/warm  ## tests that take long for what they add, which CI runs, too (4 to 13 minutes)
	@sh scripts/in_memory.sh $(BIN)/python -m pytest -m "thorough and not slow" -n 3 --dist worksteal

test-all: $(VENV)/warm  ## the test suite with the slow tests, but for those of many seeds (three quarters of an hour)
	@sh scripts/in_memory.sh $(BIN)/python -m pytest $(PATIENT) -m "not seeds and (not cluster or not slow)" -n 2 --dist worksteal
	@sh scripts/in_memory.sh $(BIN)/python -m pytest $(PATIENT) -m "cluster and slow and not seeds"

test-seeds: $(VENV)/warm  ## a hundred seeded runs: processes killed at random, hosts killed and cut off in handovers (90 minutes)
	@sh scripts/in_memory.sh $(BIN)/python -m pytest $(PATIENT) -m "seeds"

test-random: $(VENV)/ready  ## the property tests with other examples each time, and more of them
	$(BIN)/python -m pytest -m "hypothesis" --hypothesis-profile=random

wheel: $(VENV)/ready  ## build the wheel; install it into an empty environment, and run the README's first example there
	@sh scripts/wheel.sh $(BIN)/python

hooks: $(VENV)/ready  ## have git run the linters before each commit
	$(BIN)/pre-commit install

lint: $(VENV)/ready  ## formatting, lint rules and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/ready  ## format the code and apply the lint rules' fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/ready  ## the site in build/site; warnings are errors
	$(BIN)/python -m mkdocs build --strict

clean:  ## remove what was made
	rm -rf $(VENV) .venv-flink .venv-peers demo bench build .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/ready: pyproject.toml requirements.lock
	@sh scripts/setup.sh $(VENV)
	@touch $@

$(VENV)/warm: $(VENV)/ready
	@echo "compiling, and keeping Spark's classes, once on this machine:" && $(BIN)/forebay warmup
	@touch $@
