"""The pages about the service: their commands are run against a real service, and must print what is shown.

A fenced `sh` block with a `text` block right behind it is run by a shell, in order, one service for each page, and must
print what the second block shows. JSON may be broken into lines there, and some of its numbers and times are of the
moment: they are held to their kind alone. An ellipsis stands for any text. Blocks without an answer are not run.
"""

from __future__ import annotations

import doctest
import json
import os
import re
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import crestgate
from crestgate.rules.matching.paths import MAX_PATH
from crestgate.service.checks.forms import MAX_CHECKS
from crestgate.service.checks.json_body import MAX_DEPTH
from crestgate.service.http.asgi import MAX_BODY_BYTES
from crestgate.service.http.protocol import MAX_HEAD_BYTES, MAX_REQUEST_SECONDS, MAX_UNREAD_SECONDS
from crestgate.service.worker import KEEP_ALIVE

ROOT = Path(__file__).parent.parent.parent
SOURCE_FOLDER = str(Path(crestgate.__file__).parent.parent)
RUN = re.compile(r"^```sh\n((?:(?!```).*\n)*)```\n\n```text\n((?:(?!```).*\n)*)```$", re.MULTILINE)
STARTS = {"make serve\n", "crestgate serve\n"}
"""Their output is what the service prints when it starts."""
SHOWN = ("localhost:8080", "127.0.0.1:8080")
SHOWN_RPC = "127.0.0.1:8081"
OF_THE_MOMENT = {
    *("at", "created_at", "updated_at", "expires_at", "reset_at", "since", "until", "timestamp"),
    *("reset", "reset_after", "retry_after", "tick", "token", "lastRequestTimeStamp", "uptimeSeconds"),
    "durationUntilReset",
}
HEADERS_OF_THE_MOMENT = ("ratelimit", "x-ratelimit-reset")
"""Headers that end with the remaining seconds."""
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
TOKEN = re.compile(r"cg_[0-9a-f]{12}_[\w-]{43}")


@dataclass(frozen=True, slots=True)
class Running:
    """A running service, its addresses, and its output."""

    address: str
    rpc: str
    token: str
    output: str
    folder: Path


@contextmanager
def running(folder: Path, **more: str) -> Iterator[Running]:
    """A service with default settings, on free ports."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith("CRESTGATE_")}
    ports = {"CRESTGATE_SERVER__HTTP": "127.0.0.1:0", "CRESTGATE_SERVER__GRPC": "127.0.0.1:0"}
    around = {**outside, "PYTHONPATH": SOURCE_FOLDER, **ports, **more}
    log = (folder / "log").open("w")
    program = [sys.executable, "-m", "crestgate", "serve"]
    with log, subprocess.Popen(program, cwd=folder, env=around, stdout=subprocess.PIPE, stderr=log, text=True) as one:
        try:
            assert one.stdout is not None
            output = ""
            while "/docs" not in output:
                line = one.stdout.readline()
                assert line, f"it exited after printing {output!r}: {(folder / 'log').read_text()}"
                output += line
            address = re.search(r"http://(127\.0\.0\.1:\d+) ", output)
            token = TOKEN.search(output)
            rpc = re.search(r"^  gRPC       (\S+)$", output, re.MULTILINE)
            assert address is not None
            assert rpc is not None
            assert token is not None
            urllib.request.urlopen(f"http://{address[1]}/healthz", timeout=300).close()  # it accepts before it serves
            yield Running(address[1], rpc[1], token[0], output, folder)
        finally:
            one.terminate()
        assert one.wait(60) == 0


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        ("README.md", 6),
        ("docs/quickstart.md", 3),
        ("docs/service.md", 5),
        ("docs/http-api.md", 24),
        ("docs/explain.md", 4),
    ],
)
def test_page_shows_what_is_answered(name: str, blocks: int, tmp_path: Path) -> None:
    text = (ROOT / name).read_text()
    if name == "docs/http-api.md":  # it continues after the section "Start"
        text = section("docs/service.md", "## Start") + text
    runs = RUN.findall(text)
    mine = [
        (script, expected_output)
        for script, expected_output in runs
        if script in STARTS or "curl " in script or "crestgate " in script
    ]
    assert len(mine) == blocks
    around = {}
    limits = re.search(r"^```text\n(domain: .*?)^```$", text, re.MULTILINE | re.DOTALL)
    if limits is not None:
        (tmp_path / "ratelimit.yaml").write_text(limits[1])
        around["CRESTGATE_ENVOY__CONFIG"] = "ratelimit.yaml"
    with running(tmp_path, **around) as service:
        around = commands(service)
        for script, expected_output in mine:
            if script in STARTS:
                # At the top of a page there are no limits on descriptors yet.
                printed = re.sub(r"^  envoy .*\n", "", service.output, flags=re.MULTILINE)
            else:
                script = script.replace(SHOWN[0], service.address).replace(SHOWN[1], service.address)
                # One shell for each block; exported variables are in the environment.
                done = subprocess.run(
                    ["bash", "-c", script], cwd=tmp_path, env=around, capture_output=True, text=True, timeout=300
                )
                printed = done.stdout + done.stderr
            compare(script, expected_output, printed.replace(service.address, SHOWN[1]).replace(service.rpc, SHOWN_RPC))


def section(name: str, title: str) -> str:
    return (ROOT / name).read_text().partition(f"\n{title}\n")[2].partition("\n## ")[0]


def commands(service: Running) -> dict[str, str]:
    """An environment with the command `crestgate` and the key."""
    command = service.folder / "bin" / "crestgate"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nPYTHONPATH="{SOURCE_FOLDER}" exec "{sys.executable}" -m crestgate "$@"\n')
    command.chmod(0o755)
    outside = {name: value for name, value in os.environ.items() if not name.startswith("CRESTGATE_")}
    return {**outside, "PATH": f"{command.parent}:{os.environ['PATH']}", "KEY": service.token}


def compare(script: str, expected_output: str, printed: str) -> None:
    expected, found = values(expected_output), values(printed)
    if expected is None or found is None:
        assert doctest.OutputChecker().check_output(expected_output, printed, FLAGS), f"{script}\n{printed}"
    else:
        assert [settled(value) for value in found] == [settled(value) for value in expected], f"{script}\n{printed}"


def values(text: str) -> list[Any] | None:
    """The JSON values that follow each other in a text; None if there is anything else."""
    found = []
    decoder = json.JSONDecoder()
    rest = text.strip()
    while rest:
        try:
            value, end = decoder.raw_decode(rest)
        except ValueError:
            return None
        found.append(value)
        rest = rest[end:].strip()
    return found or None


def settled(value: Any) -> Any:
    """A value with its time-dependent parts replaced by their kind."""
    if isinstance(value, list):
        return [settled(item) for item in value]
    if isinstance(value, dict):
        if value.get("key") in HEADERS_OF_THE_MOMENT:
            value = {**value, "value": re.sub(r"\d+$", "seconds", value["value"])}
        return {name: kind(item) if name in OF_THE_MOMENT else settled(item) for name, item in value.items()}
    return value


def kind(value: Any) -> Any:
    if isinstance(value, list | dict):
        return settled(value)  # named like a time, but not one
    return "number" if isinstance(value, int | float) else type(value).__name__


def test_times_of_the_moment_are_held_to_their_kind() -> None:
    assert settled({"retry_after": 19.9, "limit": 3}) == settled({"retry_after": 20, "limit": 3})
    assert settled({"retry_after": None}) != settled({"retry_after": 20})
    assert settled({"reset": 1}) == settled({"reset": 2})
    header = {"key": "ratelimit", "value": '"shop";r=59;t=1843'}
    assert settled([header]) == settled([{**header, "value": '"shop";r=59;t=9'}])
    for expected_output, printed in (
        ('{"limit": 3}', '{"limit": 4}'),
        ('{"reset": [{"key": "a"}]}', '{"reset": [{"key": "b"}]}'),
        ('{"key": "ratelimit", "value": "r=59;t=7"}', '{"key": "ratelimit", "value": "r=58;t=7"}'),
        ('{"key": "x-ratelimit-limit", "value": "60"}', '{"key": "x-ratelimit-limit", "value": "61"}'),
    ):
        with pytest.raises(AssertionError):
            compare("", expected_output, printed)


# -- the table of calls -----------------------------------------------------------------------------------------------


def test_table_has_every_call_and_the_scope_it_needs(tmp_path: Path) -> None:
    """Compared with /openapi.json of the service."""
    page = (ROOT / "docs" / "http-api.md").read_text()
    rows = re.findall(r"^\| `([A-Z]+) (/\S*)` \| (\w+) \|", page, re.MULTILINE)
    with running(tmp_path) as service:
        reply = urllib.request.urlopen(f"http://{service.address}/openapi.json", timeout=30)
        with reply:
            paths = json.load(reply)["paths"]
    described = {
        (method.upper(), path): needed(operation)
        for path, operations in paths.items()
        for method, operation in operations.items()
    }
    assert {(method, path): scope for method, path, scope in rows} == described
    assert len(rows) == len(described), "a call is listed twice"


def needed(operation: dict[str, Any]) -> str:
    """The scope that an operation needs, as the table names it."""
    security = operation["security"]
    if not security:
        return "none"
    match = re.search(r"Needs scope `(\w+)`", operation["description"])
    if match is not None:
        return match[1]
    return "check" if {} in security else "write"  # the only one that is not a check: a reset


def test_bounds_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "service.md").read_text()
    rows = dict(re.findall(r"^\| ([^|`]+) \| ([^|]+) \|$", page.partition("### Bounds")[2], re.MULTILINE))
    assert {what: rows[what].partition(":")[0] for what in rows if what in BOUNDS} == BOUNDS


BOUNDS = {
    "a body": f"{MAX_BODY_BYTES // 1024**2} MiB",
    "its first line and headers": f"{MAX_HEAD_BYTES // 1024} KiB",
    "nesting of its JSON": f"{MAX_DEPTH} levels",
    "checks in a batch": f"{MAX_CHECKS:,}",
    "the path of a check": f"{MAX_PATH:,} characters",
    "from the first byte of a request to its last": f"{MAX_REQUEST_SECONDS:.0f} seconds",
    "a response that the client does not read": f"{MAX_UNREAD_SECONDS:.0f} seconds, then the connection is closed",
    "an idle connection": f"{KEEP_ALIVE} seconds",
}


@pytest.mark.parametrize(("default", "limited"), [({}, True), ({"CRESTGATE_DEFAULT_CLIENT_LIMITS": "off"}, False)])
def test_limits_of_unknown_clients_hold_for_proxies_unless_switched_off(
    default: dict[str, str], limited: bool, tmp_path: Path
) -> None:
    with running(tmp_path, **default) as service:
        request = urllib.request.Request(f"http://{service.address}/api/v1/authorize", headers={"X-Original-URI": "/"})
        with urllib.request.urlopen(request, timeout=30) as reply:
            assert ("RateLimit" in reply.headers) is limited


# -- the client -------------------------------------------------------------------------------------------------------

CLIENT = """
    made: parcels-per-user, 3 in 60 s
    1: allowed, 2 left
    2: allowed, 1 left
    3: allowed, 0 left
    4: denied by parcels-per-user
    used by 42: 3 of 3
    """


STORE = """
    5/minute: 4 of 5 left
    gold: 1 of 3, 5/minute: 2 of 5
    by the rules of the service: no_rule
    there is no plan 'golf': make it with POST /api/v1/plans
    100 of 1000 allowed, in a few calls
    """


def test_store_of_the_examples(tmp_path: Path) -> None:
    with running(tmp_path, CRESTGATE_PLANS__GOLD="3/minute using fixed_window") as service:
        around = {**commands(service), "PYTHONPATH": SOURCE_FOLDER}
        around["CRESTGATE_STORE"] = f"crestgate://:{service.token}@{service.address}?timeout_ms=10000"
        program = [sys.executable, str(ROOT / "examples" / "service_store.py")]
        done = subprocess.run(program, env=around, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == textwrap.dedent(STORE).lstrip("\n")


def test_client_of_the_examples(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        around = {**commands(service), "CRESTGATE_URL": f"http://{service.address}"}
        around["CRESTGATE_ADMIN_KEY"] = service.token
        program = [sys.executable, str(ROOT / "examples" / "service_client.py")]
        readme = "".join(script for script, _ in RUN.findall((ROOT / "README.md").read_text()) if "/rules" in script)
        subprocess.run(["bash", "-c", readme.replace(SHOWN[0], service.address)], env=around, check=True, timeout=120)
        first = subprocess.run(program, env=around, capture_output=True, text=True, timeout=120)
        again = subprocess.run(program, env=around, capture_output=True, text=True, timeout=120)
        around["CRESTGATE_ADMIN_KEY"] = "cg_wrong"
        wrong = subprocess.run(program, env=around, capture_output=True, text=True, timeout=120)
    assert (first.returncode, first.stderr) == (0, "")
    assert [line.split(", retry after")[0].strip() for line in first.stdout.splitlines()] == [
        line.strip() for line in CLIENT.strip().splitlines()
    ]
    assert (again.returncode, again.stdout) == (0, first.stdout), "it removes what it created"
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert wrong.stderr.startswith("401: unknown API key"), "the problem's detail, in one line"
    assert wrong.stderr.count("\n") == 1


RPC_CLIENT = """
    1: allowed, 2 left
    2: allowed, 1 left
    3: allowed, 0 left
    4: denied, 0 left
    in one call: 100 of 100 allowed
    user:43 has 3 of 3
    forgotten: gold of user:42
    """


def test_grpc_client_of_the_examples(tmp_path: Path) -> None:
    with running(tmp_path, CRESTGATE_PLANS__GOLD="3/hour using fixed_window") as service:
        around = {**commands(service), "CRESTGATE_ADMIN_KEY": service.token}
        program = [sys.executable, str(ROOT / "examples" / "grpc_client.py"), service.rpc]
        first = subprocess.run(program, env=around, capture_output=True, text=True, timeout=120)
        around["CRESTGATE_ADMIN_KEY"] = "cg_wrong"
        wrong = subprocess.run(program, env=around, capture_output=True, text=True, timeout=120)
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout == textwrap.dedent(RPC_CLIENT).lstrip("\n")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert wrong.stderr.startswith("UNAUTHENTICATED: unknown API key")
    assert wrong.stderr.count("\n") == 1
    expected_output = "".join(f"{line}\n" for line in first.stdout.splitlines()[:4])
    assert f"```text\n{expected_output}```" in (ROOT / "docs" / "grpc.md").read_text()
