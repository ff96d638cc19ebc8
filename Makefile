# Three commands for everybody: `make serve` shows it, `make quick` tells within two minutes whether a change is sound,
# `make test` proves it. Each does its own set-up.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= python3
PORT ?= 8080
GRPC_PORT ?= 8081
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(shell find src -name '*.py') setup.py pyproject.toml

FORMATTED := src tests examples benchmarks proto setup.py
FROM_SOURCE := PYTHONPATH=src $(BIN)/python -m pytest -q -o cache_dir=.pytest_cache/source
LOGS := $(VENV)/logs
TESTS := tests
LAST :=

# Hundreds of processes are started: without their bytecode on disk, each would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: serve test quick check doctest source compiled servers bench h2spec clean

# The service on loopback, until Ctrl-C. Its counters and rules stay in .crestgate, which git does not look at.
serve: $(VENV)/.compiled
	env CRESTGATE_SERVER__HTTP=127.0.0.1:$(PORT) CRESTGATE_SERVER__GRPC=127.0.0.1:$(GRPC_PORT) $(BIN)/crestgate serve

# Everything, on both builds. The compiler works beside the checks and the tests from the source.
test: servers $(VENV)/.ready
	@mkdir -p $(LOGS) && rm -f $(LOGS)/*
	@status=0; \
	$(MAKE) --no-print-directory $(VENV)/.compiled-for-tests > $(LOGS)/compile 2>&1 & compile=$$!; \
	for part in check doctest source; do \
		$(MAKE) --no-print-directory $$part 2>&1 | tee $(LOGS)/$$part || status=1; \
	done; \
	if wait $$compile; then \
		$(MAKE) --no-print-directory compiled 2>&1 | tee $(LOGS)/compiled || status=1; \
	else \
		cat $(LOGS)/compile; status=1; \
	fi; \
	for part in check doctest source compile compiled; do \
		failed=$$(grep -hE '^(FAILED|ERROR) |^make.*Error' $(LOGS)/$$part 2>/dev/null) && \
			printf '\n%s:\n%s\nRun it again with `make %s`, and what failed with `make %s LAST=--last-failed`.\n' \
				$$part "$$failed" $$part $$part; \
	done; \
	exit $$status

# The fast loop: lint, types and the unit tests from the source, without servers.
quick: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check $(FORMATTED)
	$(BIN)/mypy
	PYTHONPATH=src $(BIN)/lint-imports
	CRESTGATE_EXPECT="pure Python" $(FROM_SOURCE) --no-servers -r fE -n 2 --dist loadfile tests/unit $(LAST)

check: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check $(FORMATTED)
	$(BIN)/mypy
	PYTHONPATH=src $(BIN)/lint-imports --no-cache
	$(BIN)/python tests/vectors/make_vectors.py --check
	$(BIN)/python proto/compile.py --check

doctest: $(VENV)/.ready
	DJANGO_SETTINGS_MODULE=django.conf.global_settings $(FROM_SOURCE) --doctest-modules src/crestgate $(LAST)

# What is never compiled, what waits for proxies and databases more than it computes, and what stops at every line:
# tested once, from the source.
SOURCE_ONLY := tests/servers tests/model \
	$(addprefix tests/unit/,cli config deploy history locks loader retry rules/storage service/admin service/auth) \
	$(addprefix tests/integration/,proxies rules test_locks.py test_locks_faults.py test_retry_http.py \
		test_shared_killed_lines.py)

# Tested once, compiled: floods of a million keys, processes that are killed and forked, the programs of the pages, and
# what is asked over sockets. Both builds would tell the same. Checks over a socket are also made from the source.
COMPILED_ONLY := tests/examples tests/packaging tests/security \
	$(addprefix tests/integration/,frameworks network service/processes test_flood.py test_fresh_clients.py \
		test_sqlite_forks.py) \
	$(filter-out %/test_checks_http.py,$(wildcard tests/integration/service/test_*.py)) \
	$(addprefix tests/integration/test_shared_,fork.py killed.py processes.py stopped.py) \
	$(addprefix tests/integration/test_sql_,processes.py faults.py concurrent_retries.py upgrade.py) \
	$(addprefix tests/conformance/,test_redis.py test_redis_versions.py test_sql.py test_twins.py)

$(foreach path,$(SOURCE_ONLY) $(COMPILED_ONLY),$(if $(wildcard $(path)),,$(error $(path) was moved: change the Makefile)))

# Tests wait a lot, so there are more workers than cores: two beside the compiler, three after it.
source: servers $(VENV)/.ready
	CRESTGATE_EXPECT="pure Python" $(FROM_SOURCE) -n 2 --dist loadfile --durations=10 $(TESTS) \
		$(addprefix --ignore=,$(COMPILED_ONLY)) $(LAST)

compiled: servers $(VENV)/.compiled-for-tests
	CRESTGATE_EXPECT=compiled $(BIN)/python -m pytest -q -o cache_dir=.pytest_cache/compiled -n 3 --dist loadfile \
		--durations=10 $(TESTS) $(addprefix --ignore=,$(SOURCE_ONLY)) $(LAST)

# The servers that the tests start for themselves, on free ports and with data of their own; those of the machine are
# left alone. None is installed in place of one that is named, such as CRESTGATE_TEST_REDIS_URL=redis://127.0.0.1:6379/0.
servers:
	@PATH="$$PATH:/usr/local/sbin:/usr/sbin:$$(echo /usr/lib/postgresql/*/bin | tr ' ' ':')"; missing=""; \
	need() { [ -n "$$3" ] || command -v "$$1" >/dev/null || missing="$$missing $$2"; }; \
	need redis-server redis-server "$$CRESTGATE_TEST_REDIS_URL"; \
	need openssl openssl "$$CRESTGATE_TEST_REDIS_URL"; \
	need mariadbd mariadb-server "$$CRESTGATE_TEST_MYSQL_URL"; \
	need postgres postgresql "$$CRESTGATE_TEST_POSTGRES_URL"; \
	need nginx nginx ""; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if ! command -v apt-get >/dev/null; then \
		echo "The tests need what is not installed here, and there is no apt-get to install it with:$$missing."; \
		echo "Install it, or name servers that run already: CRESTGATE_TEST_REDIS_URL, CRESTGATE_TEST_MYSQL_URL,"; \
		echo "CRESTGATE_TEST_POSTGRES_URL."; \
		exit 1; \
	fi; \
	apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $$missing

# Side by side with other libraries; writes docs/benchmarks*.md and their charts. BENCH="--only network" runs one part.
# wrk and h2load ask the service; where they cannot be installed, the other parts do without, and its own say so.
bench: servers
	@missing=""; command -v wrk >/dev/null || missing="wrk"; command -v h2load >/dev/null || missing="$$missing nghttp2-client"; \
	[ -z "$$missing" ] || ! command -v apt-get >/dev/null || \
		(apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $$missing)
	$(PYTHON) benchmarks/run.py $(BENCH)
	@case "$(BENCH)" in ""|*"--only rpc"*) $(MAKE) --no-print-directory h2spec ;; esac

# The gRPC listener against h2spec, a conformance suite for HTTP/2 in Go.
h2spec: $(VENV)/.ready $(BIN)/h2spec
	H2SPEC=$(abspath $(BIN))/h2spec $(FROM_SOURCE) tests/integration/service/h2spec.py

$(BIN)/h2spec: | $(VENV)/.ready
	@command -v go >/dev/null || (apt-get update -q && apt-get install -y -q --no-install-recommends golang-go)
	GOBIN=$(abspath $(BIN)) go install github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible

$(VENV)/.ready: pyproject.toml
	@command -v cc >/dev/null || command -v gcc >/dev/null || (apt-get update -q && apt-get install -y -q gcc libc6-dev)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q --group test
	touch $@

$(VENV)/.compiled: $(VENV)/.ready $(SOURCES)
	rm -rf build  # what was compiled before may be of modules that no longer are
	@echo "compiling the hot parts; this takes some minutes"
	rm -f $(VENV)/.compiled-for-tests
	$(BIN)/python -m pip install -q --force-reinstall --no-deps --no-build-isolation .
	$(BIN)/crestgate --version
	touch $@

# The same modules, not optimised by the C compiler: that takes half of the time, and the tests measure nothing. What
# `make serve` compiled will do, too.
$(VENV)/.compiled-for-tests: $(VENV)/.ready $(SOURCES)
	@if $(MAKE) -q $(VENV)/.compiled; then touch $@; else \
		rm -rf build $(VENV)/.compiled && \
		echo "compiling the hot parts for the tests; this takes some minutes" && \
		CRESTGATE_OPT_LEVEL=0 $(BIN)/python -m pip install -q --force-reinstall --no-deps --no-build-isolation . && \
		$(BIN)/crestgate --version && touch $@; \
	fi

clean:
	rm -rf $(VENV) .bench-venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
