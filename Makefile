# Two commands for everybody: `make serve` shows it, `make test` proves it. Each does its own set-up.
PYTHON ?= python3
PORT ?= 8080
GRPC_PORT ?= 8081
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(shell find src -name '*.py') setup.py pyproject.toml

.PHONY: serve test check compiled pure early sockets doctest servers bench clean

# The service on loopback, until Ctrl-C. Its counters and rules stay in .headgate, which git does not look at.
serve: $(VENV)/.compiled
	env HEADGATE_SERVER__HTTP=127.0.0.1:$(PORT) HEADGATE_SERVER__GRPC=127.0.0.1:$(GRPC_PORT) $(BIN)/headgate serve

# Lint, types and imports, and the tests on the compiled and on the pure build, and those over sockets, all at once:
# they wait a lot, and what is not compiled need not wait for the compiler.
test: servers $(VENV)/.ready
	$(MAKE) -j4 --keep-going --output-sync=target doctest check early pure compiled sockets

check: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check src tests examples benchmarks proto setup.py
	$(BIN)/mypy
	PYTHONPATH=src $(BIN)/lint-imports --no-cache
	$(BIN)/python tests/vectors/make_vectors.py --check
	$(BIN)/python proto/compile.py --check

doctest: $(VENV)/.ready
	DJANGO_SETTINGS_MODULE=django.conf.global_settings PYTHONPATH=src \
		$(BIN)/python -m pytest -q --doctest-modules src/headgate

# What is never compiled is tested once, and so is what waits for servers more than it computes.
NEVER_COMPILED := tests/servers tests/model \
	$(addprefix tests/unit/,cli config deploy history locks reading retry rules/repositories) \
	tests/unit/service/auth \
	tests/integration/test_locks.py tests/integration/test_locks_faults.py
# Floods of a million keys tell the same of both builds, and so do processes that are killed and forked, and the programs
# of the pages: the compiled one is done sooner.
MOSTLY_WAITING := tests/examples tests/unit/test_package.py \
	tests/integration/test_flood.py tests/integration/test_fresh_clients.py tests/integration/test_sqlite_forks.py \
	$(addprefix tests/integration/test_shared_,fork.py killed.py processes.py stopped.py) \
	$(addprefix tests/integration/test_sql_,processes.py faults.py racing_repeats.py changing.py) \
	$(addprefix tests/conformance/,test_redis.py test_redis_kinds.py test_sql.py test_twins.py)

# What waits for others most of the time, from the source: it need not wait for the compiler, too.
EARLY := tests/unit/service/control $(addprefix tests/integration/,proxies rules test_retry_http.py)

# Whatever else talks to servers, services and web applications over sockets, with the compiled build; checks over a
# socket also from the source.
SOCKETS := tests/examples/test_service_pages.py tests/integration/service/processes tests/security \
	$(addprefix tests/integration/,frameworks network) \
	$(filter-out %/test_checks_http.py,$(wildcard tests/integration/service/test_*.py))

compiled: servers $(VENV)/.compiled-for-tests
	HEADGATE_EXPECT=compiled $(BIN)/python -m pytest -q --durations=10 tests \
		$(addprefix --ignore=,$(NEVER_COMPILED) $(EARLY) $(SOCKETS))

early: servers $(VENV)/.ready
	HEADGATE_EXPECT="pure Python" PYTHONPATH=src $(BIN)/python -m pytest -q --durations=10 $(EARLY)

pure: servers $(VENV)/.ready
	HEADGATE_EXPECT="pure Python" PYTHONPATH=src $(BIN)/python -m pytest -q --durations=10 tests \
		$(addprefix --ignore=,$(MOSTLY_WAITING) $(EARLY) $(SOCKETS))

sockets: servers $(VENV)/.compiled-for-tests
	HEADGATE_EXPECT=compiled $(BIN)/python -m pytest -q --durations=10 $(SOCKETS)

# The servers that the tests start for themselves, on free ports and with data of their own; those of the machine are
# left alone. None is installed in place of one that is named, such as HEADGATE_TEST_REDIS_URL=redis://127.0.0.1:6379/0.
servers:
	@PATH="$$PATH:/usr/local/sbin:/usr/sbin:$$(echo /usr/lib/postgresql/*/bin | tr ' ' ':')"; missing=""; \
	need() { [ -n "$$3" ] || command -v "$$1" >/dev/null || missing="$$missing $$2"; }; \
	need redis-server redis-server "$$HEADGATE_TEST_REDIS_URL"; \
	need openssl openssl "$$HEADGATE_TEST_REDIS_URL"; \
	need mariadbd mariadb-server "$$HEADGATE_TEST_MYSQL_URL"; \
	need postgres postgresql "$$HEADGATE_TEST_POSTGRES_URL"; \
	need nginx nginx ""; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if ! command -v apt-get >/dev/null; then \
		echo "The tests need what is not installed here, and there is no apt-get to install it with:$$missing."; \
		echo "Install it, or name servers that run already: HEADGATE_TEST_REDIS_URL, HEADGATE_TEST_MYSQL_URL,"; \
		echo "HEADGATE_TEST_POSTGRES_URL."; \
		exit 1; \
	fi; \
	apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $$missing

# Side by side with other libraries; writes docs/benchmarks.md and its charts. BENCH="--only network" runs one part.
# wrk and h2load ask the service; where they cannot be installed, the other parts do without, and its own say so.
bench: servers
	@missing=""; command -v wrk >/dev/null || missing="wrk"; command -v h2load >/dev/null || missing="$$missing nghttp2-client"; \
	[ -z "$$missing" ] || ! command -v apt-get >/dev/null || \
		(apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $$missing)
	$(PYTHON) benchmarks/run.py $(BENCH)

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
	$(BIN)/headgate --version
	touch $@

# The same modules, optimised less by the C compiler: that takes 40 % less time, and the tests measure nothing. What
# `make serve` compiled will do, too.
$(VENV)/.compiled-for-tests: $(VENV)/.ready $(SOURCES)
	@if $(MAKE) -q $(VENV)/.compiled; then touch $@; else \
		rm -rf build $(VENV)/.compiled && \
		echo "compiling the hot parts for the tests; this takes some minutes" && \
		HEADGATE_OPT_LEVEL=1 $(BIN)/python -m pip install -q --force-reinstall --no-deps --no-build-isolation . && \
		$(BIN)/headgate --version && touch $@; \
	fi

clean:
	rm -rf $(VENV) .bench-venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
