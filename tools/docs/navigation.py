"""The order of the pages in the site: tasks first, then reference.

Pages say nothing about it, because a code host would show the directives. Every page of docs/ must be named here once:
`make docs` and a test fail otherwise.
"""

from __future__ import annotations

__all__ = ["NAVIGATION", "REPOSITORY_PAGES"]

NAVIGATION: dict[str, list[str]] = {
    "Start": ["quickstart.md", "why.md", "comparison.md"],
    "Tasks": [
        "tasks/limit-an-api.md",
        "tasks/protect-a-login.md",
        "tasks/several-workers.md",
        "tasks/several-machines.md",
        "tasks/token-budgets.md",
        "tasks/behind-a-proxy.md",
        "tasks/background-jobs.md",
        "explain.md",
        "simulate.md",
        "migration.md",
        "testing.md",
    ],
    "Migrate from": [
        "migrate-from-limits.md",
        "migrating/flask-limiter.md",
        "migrating/slowapi.md",
        "migrating/fastapi-limiter.md",
        "migrating/django-ratelimit.md",
        "migrating/throttled-py.md",
        "migrating/services.md",
    ],
    "Concepts": [
        "algorithms.md",
        "in-flight.md",
        "leases.md",
        "rules.md",
        "own-dimensions.md",
        "priorities.md",
        "stores.md",
        "failure.md",
        "glossary.md",
    ],
    "Library": [
        "library.md",
        "library-reference.md",
        "reservations.md",
        "frameworks.md",
        "frameworks-options.md",
        "retry.md",
        "locks.md",
    ],
    "Service": [
        "service.md",
        "configuration.md",
        "cli.md",
        "http-api.md",
        "grpc.md",
        "resp.md",
        "clients.md",
        "proxies.md",
        "rules-storage.md",
    ],
    "Stores": ["stores-shared.md", "stores-redis.md", "stores-sql.md", "layouts.md"],
    "Operations": [
        "dashboard.md",
        "runbook.md",
        "operations.md",
        "managed-services.md",
        "observability.md",
        "reliability.md",
        "security.md",
        "platforms.md",
    ],
    "Benchmarks": [
        "benchmarks.md",
        "benchmarks-machine.md",
        "benchmarks-network.md",
        "benchmarks-service.md",
        "benchmarks-rpc.md",
        "benchmarks-resp.md",
        "benchmarks-latency.md",
        "benchmarks-peers.md",
        "benchmarks-growth.md",
        "benchmarks-frameworks.md",
        "benchmarks-imports.md",
        "benchmarks-leases.md",
    ],
    "Project": [
        "CHANGELOG.md",
        "stability.md",
        "architecture.md",
        "decisions/README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "release.md",
        "files/index.md",
    ],
}
"""Captions of the sidebar, and their pages: paths in docs/, or names of REPOSITORY_PAGES."""

REPOSITORY_PAGES = ["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
"""Pages at the root of the repository that are part of the site."""
