# Three commands for everybody: `make serve` shows it, `make quick` tells within two minutes whether a change is sound,
# `make test` proves it. Each does its own set-up, with the programs in tools/.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= python3
PORT ?= 8080
GRPC_PORT ?= 8081
VENV := .venv
BIN := $(VENV)/bin
SERVE_VENV := .venv-serve
DOCS_VENV := .docs-venv

FORMATTED := src tests examples benchmarks chaos proto tools setup.py
FROM_SOURCE := PYTHONPATH=src $(BIN)/python -m pytest -q -o cache_dir=.pytest_cache/source
TESTS := tests
LAST :=
COMPILED := yes

# Hundreds of processes are started: without their bytecode on disk, each would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: serve compile test quick check doctest source compiled compile-for-tests servers bench chaos h2spec limits-suite \
	clients-check package docs pictures clean python FORCE

# The service on loopback, until Ctrl-C: from the source at once, or compiled if `make compile` was run since the last
# change. Its environment has what the service needs and nothing else. Its counters and rules stay in .crestgate, which
# git does not look at.
serve: $(SERVE_VENV)/.ready
	@$(PYTHON) -m tools.serve $(SERVE_VENV) 127.0.0.1:$(PORT) 127.0.0.1:$(GRPC_PORT)

compile: $(SERVE_VENV)/.ready
	@$(PYTHON) -m tools.compile $(SERVE_VENV)

# Everything, on both builds: check, doctest and source beside the compiler, then compiled. COMPILED=no is for machines
# without a C compiler: everything from the source.
test: python
	@$(PYTHON) -m tools.run_tests $(MAKE_COMMAND) $(VENV) $(if $(filter no,$(COMPILED)),--without-compiled)

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

# What is never compiled, what has classes in place of compiled ones, what waits for proxies and databases more than it
# computes, and what stops at every line: tested once, from the source.
SOURCE_ONLY := tests/servers tests/model \
	$(addprefix tests/unit/,benchmarks chaos cli config deploy history locks loader retry rules/storage service/admin service/auth \
		service/dashboard stores/migrating stores/test_memory_chains.py tools) \
	$(addprefix tests/integration/,deploy proxies rules service/dashboard test_chaos_short.py test_migration_kills.py \
		test_locks.py test_locks_faults.py test_retry_http.py test_shared_killed_lines.py)

# Tested once, compiled: floods of a million keys, processes that are killed and forked, the programs of the pages, and
# what is asked over sockets. Both builds would tell the same. Checks over a socket are also made from the source.
COMPILED_ONLY := tests/examples tests/migration_guides tests/packaging tests/security \
	$(addprefix tests/integration/,frameworks network service/processes test_flood.py test_fresh_clients.py \
		test_sqlite_forks.py test_in_flight_kills.py test_lease_kills.py test_reservation_kills.py) \
	$(filter-out %/test_checks_http.py,$(wildcard tests/integration/service/test_*.py)) \
	$(addprefix tests/integration/test_shared_,fork.py killed.py processes.py stopped.py) \
	$(addprefix tests/integration/test_sql_,processes.py faults.py concurrent_retries.py upgrade.py) \
	$(addprefix tests/conformance/,test_redis.py test_redis_versions.py test_sql.py test_twins.py)

$(foreach path,$(SOURCE_ONLY) $(COMPILED_ONLY),$(if $(wildcard $(path)),,$(error $(path) was moved: change the Makefile)))

# Tests wait a lot, so there are more workers than cores: two beside the compiler, three after it.
source: servers $(VENV)/.ready
	CRESTGATE_EXPECT="pure Python" $(FROM_SOURCE) -n 2 --dist loadfile --durations=10 $(TESTS) \
		$(addprefix --ignore=,$(COMPILED_ONLY)) $(LAST)

compiled: servers compile-for-tests
	CRESTGATE_EXPECT=compiled $(BIN)/python -m pytest -q -o cache_dir=.pytest_cache/compiled -n 3 --dist loadfile \
		--durations=10 $(TESTS) $(addprefix --ignore=,$(SOURCE_ONLY)) $(LAST)

# The servers that the tests start for themselves, on free ports and with data of their own; those of the machine are
# left alone. None is installed in place of one that is named, such as CRESTGATE_TEST_REDIS_URL=redis://127.0.0.1:6379/0.
servers: python
	@$(PYTHON) -m tools.system_packages servers

# Side by side with other libraries and services; writes docs/benchmarks*.md and their charts. BENCH="--only network" runs
# one part, BENCH=--install only installs what is compared. wrk and h2load ask the service; where they cannot be installed,
# the other parts do without, and their own say so. Services in Go are installed where there is Go.
bench: servers
	@$(PYTHON) -m tools.system_packages load
	$(PYTHON) benchmarks/run.py $(BENCH)
	@case "$(BENCH)" in ""|*"--only rpc"*) $(MAKE) --no-print-directory h2spec ;; esac

# Every store under every fault, checked against the bounds that docs/reliability.md states; writes its results there. Takes
# hours: CHAOS="--all --store redis --seconds 5" runs some of it, CHAOS="--all --resume --soak 600" goes on after an interruption.
CHAOS := --all --seconds 30 --soak 600
chaos: servers $(VENV)/.ready
	@$(PYTHON) -m tools.system_packages chaos
	PYTHONPATH=src $(BIN)/python -m chaos $(CHAOS)

# The gRPC listener against h2spec, a conformance suite for HTTP/2 in Go.
h2spec: $(VENV)/.ready $(BIN)/h2spec
	H2SPEC=$(abspath $(BIN))/h2spec $(FROM_SOURCE) tests/integration/service/h2spec.py

$(BIN)/h2spec: | $(VENV)/.ready
	@$(PYTHON) -m tools.system_packages go
	GOBIN=$(abspath $(BIN)) go install github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible

# What a release uploads, built and checked as far as this machine can; then the tests of each extra on the oldest versions
# that it allows. Takes long. PACKAGE="--only pure" runs one part.
package: python
	@$(PYTHON) -m tools.environment .package-venv --group package
	.package-venv/bin/python -m tools.package $(PACKAGE)

# openapi.json and proto/ in dist; clients generated from them in Go, TypeScript and Java compile, and call a service.
clients-check: $(VENV)/.ready
	$(BIN)/python -m tools.clients_check

# Before anything is created.
python:
	@tools/check_python "$(PYTHON)" "$(MAKECMDGOALS)"

# Both are looked at each time, and changed only if pyproject.toml or the interpreter has.
$(VENV)/.ready: FORCE | python
	@$(PYTHON) -m tools.environment $(VENV) --group test

$(SERVE_VENV)/.ready: FORCE | python
	@$(PYTHON) -m tools.environment $(SERVE_VENV) --extra server

compile-for-tests: $(VENV)/.ready
	@$(PYTHON) -m tools.compile $(VENV) --for-tests

# The test-suite of the limits library, from PyPI, on crestgate.compat.limits: see docs/migrate-from-limits.md.
limits-suite: servers $(VENV)/.ready
	$(BIN)/python tests/compat/limits_suite.py

# The pages of docs/ as a site in build/site; warnings are errors. DOCS="--publish FOLDER" adds this version to a folder of
# several: see CONTRIBUTING.md.
docs: python
	@$(PYTHON) -m tools.environment $(DOCS_VENV) --group docs
	@$(DOCS_VENV)/bin/python -m tools.docs build/site $(DOCS)

# The pictures of docs/algorithms.md and README.md, drawn anew: seeded and on virtual time, so always the same.
pictures: $(VENV)/.ready
	PYTHONPATH=src $(BIN)/python -m tools.pictures

clean:
	rm -rf $(VENV) $(SERVE_VENV) $(DOCS_VENV) .bench-venv .package-venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
