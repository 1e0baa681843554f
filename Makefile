# One short target per habit; `make` lists them.
.DEFAULT_GOAL := help
.PHONY: help setup demo fmt proto lint check test chaos bench clean
SHELL := /bin/sh
BIN := .venv/bin
SECONDS ?=
RATE ?=
JOBS ?= 3
MINUTES ?= 30
CODE := $(wildcard src tests bench)

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv with the pinned packages (quick when nothing changed)
	@PYTHON='$(PYTHON)' .ci/setup

demo: setup ## show changes moving; SECONDS=30 and RATE=500 set how long and how many
	@$(BIN)/penstock demo $(if $(SECONDS),--seconds $(SECONDS)) $(if $(RATE),--rate $(RATE))

fmt: setup ## format the code and sort its imports
	@$(BIN)/ruff check --quiet --fix --exit-zero $(CODE)
	@$(BIN)/ruff format $(CODE)

proto: setup ## write the code of the gRPC messages anew, after control.proto has changed
	@$(BIN)/python -m grpc_tools.protoc -I src --python_out=src --pyi_out=src src/penstock/rpc/control.proto

lint: setup ## style, types and the walls between rooms
	@$(BIN)/ruff format --check $(CODE)
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/mypy $(CODE)
	@$(BIN)/lint-imports --no-cache

check: lint ## lint and the fast tests, those without a server, in under two minutes
	@$(BIN)/pytest -q -n $(JOBS) --dist worksteal -m 'not slow and not server and not chaos'

test: setup ## every test but the long chaos runs
	@$(BIN)/pytest -n $(JOBS) --dist worksteal -m 'not chaos'

chaos: setup ## kill everything at every boundary and at random, under load; MINUTES=30 says how long
	@PENSTOCK_CHAOS_MINUTES=$(MINUTES) $(BIN)/pytest -s -m chaos

BENCHES := lanes capture decode backfill many_tables ledger path fanout disturbed latency memory idle toast postgres_sink http_sink chunk_read
bench: setup ## measure every part against its floor or a peer
	@for one in $(BENCHES); do echo "== bench/$$one"; $(BIN)/python -m bench.$$one || exit 1; done

clean: ## remove .venv and what tools have left
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist src/*.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
