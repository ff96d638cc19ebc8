"""deploy/load/locustfile.py, run by locust for a moment: against a service, an application, and a broken server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from crestgate.integrations.wsgi import RateLimitMiddleware
from integration.frameworks.servers import serve_wsgi
from integration.service.service_process import Service

ROOT = Path(__file__).parent.parent.parent.parent
FILE = ROOT / "deploy" / "load" / "locustfile.py"
PAGES = (ROOT / "docs" / "operations.md", FILE.parent / "README.md")
CONFIG = """\
plans: {few: 1/hour}
rules:
  - {rule_id: orders, dimension: user, endpoint_pattern: /api/v1/orders, limit: 1, window_seconds: 3600}
"""
REPORT = re.compile(
    r"^Crestgate: allowed (\d+), denied (\d+), fail_open (\d+), fail_closed (\d+), fallback (\d+), no_rule (\d+)$",
    re.MULTILINE,
)
KINDS = ("check (by key)", "check (by user and endpoint)", "check/batch (batch)", "quota (quota)")
Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Run(NamedTuple):
    code: int
    output: str

    @property
    def counts(self) -> tuple[int, ...]:
        found = REPORT.search(self.output)
        assert found is not None, self.output
        return tuple(map(int, found.groups()))


def run_locust(host: str, *arguments: str, seconds: int = 2) -> Run:
    """Five users; each makes at least one request, since those under way are waited for."""
    command = [sys.executable, "-m", "locust", "-f", str(FILE), "--headless", "--host", host]
    command += ["--users", "5", "--spawn-rate", "5", "--run-time", f"{seconds}s", "--stop-timeout", "20s", *arguments]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("CRESTGATE_", "LOCUST_"))}
    done = subprocess.run(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=180, check=False
    )
    return Run(done.returncode, done.stdout)


def answering(status: str, body: bytes) -> Application:
    """An application that always gives the same response."""

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        start_response(status, [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
        return [body]

    return application


def counted(service: Service, metric: str) -> int:
    with service.client() as client:
        lines = client.get("/metrics").text.splitlines()
    return int(sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{metric}{{")))


def test_service_decides_all_kinds_of_checks(tmp_path: Path) -> None:
    with Service(tmp_path, CONFIG) as service:
        for seconds in (2, 10, 60):  # few requests are batches: a busy machine may make none in a short run
            run = run_locust(
                service.url, "--subjects", "2", "--plans", "few", "--batch-size", "7", "ServiceUser", seconds=seconds
            )
            assert run.code == 0, run.output
            if all(f"/api/v1/{kind}" in run.output for kind in KINDS):
                break
        else:
            pytest.fail(f"not all kinds of checks were made:\n{run.output}")
        allowed, denied, *without_store, no_rule = run.counts
        assert (without_store, no_rule) == ([0, 0, 0], 0)
        # What was under way when the time was over is decided, and may not be in the report.
        assert 0 < allowed + denied <= sum(counted(service, f"crestgate_{one}_total") for one in ("allowed", "blocked"))
        assert denied > 0


def test_denial_by_an_application_is_not_a_failure() -> None:
    limited = RateLimitMiddleware(answering("200 OK", b"{}"), limiter="memory://", limits="3/hour")
    with serve_wsgi(limited) as host:
        run = run_locust(host, "--app-path", "/items", "ApplicationUser")
        assert run.code == 0, run.output
        assert run.counts[0] == 3
        assert run.counts[1] > 0
        assert "GET      /items" in run.output

        run = run_locust(host, "--min-rps", "1e9", "--max-p99-ms", "1e-9", "ApplicationUser")
        assert run.code == 1
        assert "missed: " in run.output
        assert "fewer than 1e+09" in run.output


@pytest.mark.parametrize(
    ("status", "body", "failure"),
    [
        ("200 OK", b'{"allowed": true}', 'unexpected response: {"allowed": true}'),
        ("200 OK", b"fine", "unexpected response: fine"),
        ("503 Service Unavailable", b"{}", "status 503"),
        ("429 Too Many Requests", b"{}", "429: the service's own limit on callers"),
    ],
    ids=["wrong-shape", "no-json", "error", "callers-limit"],
)
def test_what_is_no_decision_is_a_failure(status: str, body: bytes, failure: str) -> None:
    with serve_wsgi(answering(status, body)) as host:
        run = run_locust(host)
    assert run.code == 1
    assert failure in run.output
    assert run.counts == (0, 0, 0, 0, 0, 0)
    assert "missed: there was no decision" in run.output


@pytest.mark.parametrize(("option", "value"), [("--subjects", "0"), ("--hot-share", "1.5"), ("--batch-size", "many")])
def test_invalid_option_is_a_usage_error(option: str, value: str) -> None:
    run = run_locust("http://127.0.0.1:9", option, value)
    assert run.code == 2
    assert f"argument {option}: must be a" in run.output


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_name_existing_options_and_classes(page: Path) -> None:
    source = FILE.read_text()
    commands = re.findall(r"^locust (?:.*\\\n)*.*$", page.read_text(), re.MULTILINE)
    assert commands
    for command in commands:
        assert f"-f {FILE.relative_to(ROOT)}" in command
        own = set(re.findall(r"--(?!headless|host|users|spawn-rate|run-time|processes|csv)[a-z0-9-]+", command))
        assert own <= set(re.findall(r'add\("(--[a-z0-9-]+)"', source)), command
        assert re.search(r"\b(ServiceUser|ApplicationUser)$", command), command


def test_readme_lists_every_option() -> None:
    listed = re.findall(r"^\| `(--[a-z0-9-]+)` \|", PAGES[1].read_text(), re.MULTILINE)
    assert listed == re.findall(r'add\("(--[a-z0-9-]+)"', FILE.read_text())
