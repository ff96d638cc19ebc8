"""Load test of a Crestgate service, or of an application behind its middleware.

    locust -f deploy/load/locustfile.py --headless -H http://127.0.0.1:8080 -u 20 -r 20 --run-time 10s ServiceUser
    locust -f deploy/load/locustfile.py --headless -H http://127.0.0.1:8000 -u 20 -r 20 --run-time 10s ApplicationUser

A denied request is not a failure: limits are meant to deny. Failures are all other errors, and responses of another
form. README.md has the options, and how to read the result.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from typing import Any

from locust import FastHttpUser, constant, events, task

DECIDED = ("allowed", "denied")
WITHOUT_STORE = ("fail_open", "fail_closed", "fallback")
"""Reasons of decisions that the store did not make."""
NUMBERS = ("limit", "remaining", "current_count", "reset_at", "reset_after")
FROM_WORKER = "crestgate_decisions"
"""Under which name a worker of locust sends its counts to the master."""

decisions: Counter[str] = Counter()
"""What was decided, in this process; on a master, in all of its workers."""


# -- options ----------------------------------------------------------------------------------------------------------


@events.init_command_line_parser.add_listener
def add_options(parser: Any) -> None:
    def add(name: str, default: Any, help_text: str, kind: Any = str, **options: Any) -> None:
        variable = "CRESTGATE_LOAD_" + name.lstrip("-").replace("-", "_").upper()
        parser.add_argument(name, env_var=variable, default=default, type=kind, help=help_text, **options)

    add("--api-key", "", "key of the service with scope check, where checks need one", is_secret=True)
    add("--subjects", 10_000, "how many different subjects send requests [10000]", _positive)
    add("--hot-subjects", 10, "how many of them send more than the others [10]", _positive)
    add("--hot-share", 0.2, "share of the requests that these send, from 0 to 1 [0.2]", _share)
    add("--plans", "", "plans that limit a key, such as gold,daily [none: the key's policy]")
    add("--endpoint", "/api/v1/orders", "path of checks by user and endpoint [/api/v1/orders]")
    add("--batch-size", 20, "checks in one batch, up to 1000 [20]", _positive)
    add("--app-path", "/", "path that ApplicationUser requests [/]")
    add("--min-rps", 0.0, "exit with 1 if fewer requests a second were answered [0: any]", float)
    add("--max-p99-ms", 0.0, "exit with 1 if 1 % of the responses took longer [0: any]", float)


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, not {text!r}")
    return int(text)


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 1, not {text!r}")
    return share


# -- users ------------------------------------------------------------------------------------------------------------


class CrestgateUser(FastHttpUser):
    """Sends requests one after another, as fast as they are answered."""

    abstract = True
    wait_time = constant(0)

    def on_start(self) -> None:
        self.options = self.environment.parsed_options
        self.auth = {"Authorization": f"Bearer {self.options.api_key}"} if self.options.api_key else {}

    def subject(self) -> int:
        """The number of the next subject: a hot one, or any."""
        options = self.options
        hot = random.random() < options.hot_share  # noqa: S311 - no secret
        return random.randrange(min(options.hot_subjects, options.subjects) if hot else options.subjects)  # noqa: S311


class ServiceUser(CrestgateUser):
    """A program that asks the service: mostly single checks, of both kinds."""

    @task(10)
    def check_key(self) -> None:
        self.post("/api/v1/check", "by key", self.key_body(), is_decision)

    @task(10)
    def check_request(self) -> None:
        body = {
            "dimension": "user",
            "identifier": f"user-{self.subject()}",
            "endpoint": self.options.endpoint,
            "method": "GET",
        }
        self.post("/api/v1/check", "by user and endpoint", body, is_decision)

    @task(1)
    def check_batch(self) -> None:
        checks = [self.key_body() for _ in range(self.options.batch_size)]

        def is_answer(data: Any) -> bool:
            answers = data.get("decisions") if isinstance(data, dict) else None
            return isinstance(answers, list) and len(answers) == len(checks) and all(map(is_decision, answers))

        self.post("/api/v1/check/batch", "batch", {"checks": checks}, is_answer)

    @task(2)
    def quota(self) -> None:
        self.post("/api/v1/quota", "quota", self.key_body(), is_decision, counts=False)

    def key_body(self) -> dict[str, Any]:
        body: dict[str, Any] = {"key": f"load:{self.subject()}"}
        if self.options.plans:
            body["plans"] = self.options.plans.split(",")
        return body

    def post(self, path: str, kind: str, body: Any, is_answer: Any, counts: bool = True) -> None:
        request = self.client.post(path, json=body, headers=self.auth, name=f"{path} ({kind})", catch_response=True)
        with request as response:
            if response.status_code != 200:
                response.failure(failure_of(response))
                return
            try:
                data = response.json()
            except ValueError:
                data = None
            if not is_answer(data):
                response.failure(f"unexpected response: {str(response.text)[:200]}")
            elif counts:
                for decision in data.get("decisions", [data]):
                    count(decision["allowed"], decision["reason"])


class ApplicationUser(CrestgateUser):
    """A client of an application that is limited by the middleware, or by a proxy that asks the service."""

    @task
    def get(self) -> None:
        headers = {**self.auth, "X-User-Id": f"user-{self.subject()}"}
        with self.client.get(self.options.app_path, headers=headers, catch_response=True) as response:
            if response.status_code == 429:
                response.success()
                count(False, "limited")
            elif 200 <= response.status_code < 400:
                count(True, "ok")
            else:
                response.failure(failure_of(response))


def failure_of(response: Any) -> str:
    """Why a response is a failure, without what differs from one to the next: locust groups failures by it."""
    if response.status_code == 429:
        return "429: the service's own limit on callers (server.limits.checks), no decision"
    return f"status {response.status_code}" if response.status_code else f"no response: {response.error}"


def is_decision(data: Any) -> bool:
    return (
        isinstance(data, dict)
        and isinstance(data.get("allowed"), bool)
        and isinstance(data.get("reason"), str)
        and all(isinstance(data.get(name), int | float) for name in NUMBERS)
    )


def count(allowed: bool, reason: str) -> None:
    decisions["allowed" if allowed else "denied"] += 1
    if reason in WITHOUT_STORE or reason == "no_rule":
        decisions[reason] += 1


# -- the run ----------------------------------------------------------------------------------------------------------


@events.init.add_listener
def choose_users(environment: Any, **_: Any) -> None:
    """Without a class on the command line, test the service: locust would run both classes against one host."""
    options = environment.parsed_options
    if options is not None and not options.user_classes and not options.class_picker:
        environment.user_classes = [ServiceUser]


@events.test_start.add_listener
def start_counting(**_: Any) -> None:
    decisions.clear()


@events.report_to_master.add_listener
def send_counts(data: dict[str, Any], **_: Any) -> None:
    data[FROM_WORKER] = dict(decisions)
    decisions.clear()


@events.worker_report.add_listener
def add_counts(data: dict[str, Any], **_: Any) -> None:
    decisions.update(data.get(FROM_WORKER, {}))


@events.quitting.add_listener
def report(environment: Any, **_: Any) -> None:
    """Print the decisions, and let the run fail where it missed what was asked for."""
    options = environment.parsed_options
    if options is None or options.worker:
        return
    names = (*DECIDED, *WITHOUT_STORE, "no_rule")
    show("Crestgate: " + ", ".join(f"{name} {decisions[name]}" for name in names))
    if any(decisions[name] for name in WITHOUT_STORE):
        show("Crestgate: the store did not decide all of them: see on_store_error, and the log of the service")
    total = environment.stats.total
    missed = []
    if options.min_rps and total.total_rps < options.min_rps:
        missed.append(f"{total.total_rps:.0f} requests a second, fewer than {options.min_rps:g}")
    p99 = total.get_response_time_percentile(0.99)
    if options.max_p99_ms and p99 > options.max_p99_ms:
        missed.append(f"the 99th percentile is {p99:g} ms, more than {options.max_p99_ms:g}")
    if not sum(decisions[name] for name in DECIDED):
        missed.append("there was no decision")
    for line in missed:
        show(f"Crestgate: missed: {line}")
    if missed:
        environment.process_exit_code = 1


def show(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - the report of a command-line program
