"""docs/resp.md: its commands are run by redis-cli against a real service, and must print what is shown."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from crestgate.service.resp import listener
from crestgate.service.resp.commands import MAX_LIMITS, USAGES
from crestgate.service.resp.connection import MAX_UNSENT
from crestgate.service.resp.encoder import DECISION_FIELDS
from crestgate.service.resp.parser import MAX_ARGUMENT_BYTES, MAX_ARGUMENTS, MAX_COMMAND_BYTES, MAX_LINE_BYTES
from crestgate.service.resp.session import SESSION_COMMANDS
from crestgate.service.resp.turn import CODES, MAX_TURN_COMMANDS
from integration.service.service_process import Service

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "resp.md").read_text()
RUN = re.compile(r"^```sh\n((?:redis-cli .*\n)+)```\n\n```text\n((?:(?!```).*\n)*)```$", re.MULTILINE)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("page"), environment={"CRESTGATE_SERVER__RESP": "127.0.0.1:0"}) as started:
        yield started


def test_page_shows_what_is_answered(service: Service) -> None:
    runs = RUN.findall(PAGE)
    assert len(runs) == 5
    environment = {**os.environ, "KEY": service.key}
    for script, expected in runs:
        script = script.replace("-p 6380", f"-p {service.resp.rpartition(':')[2]}")
        done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=300)
        printed = "\n".join(line for line in (done.stdout + done.stderr).splitlines() if line) + "\n"
        printed = re.sub(r"\b35\d\d$", "3600", printed, flags=re.MULTILINE)  # of an hour that a slow run has shortened
        assert doctest.OutputChecker().check_output(expected, printed, FLAGS), f"{script}\n{printed}"


def test_example_prints_what_the_page_shows(service: Service) -> None:
    program = [sys.executable, str(ROOT / "examples" / "resp_client.py"), service.resp]
    done = subprocess.run(program, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == (
        "CL.THROTTLE: limited=0, 15 of 16 left, retry_after=-1\n"
        "RL.CHECK: allowed, 2 left\nRL.CHECK: allowed, 1 left\nRL.CHECK: allowed, 0 left\n"
        "RL.CHECK: denied, 0 left, retry within 20 s\n"
    )
    assert done.stdout.partition("\n")[2] in PAGE


def test_every_command_is_in_the_table() -> None:
    table = PAGE.partition("\n## ")[0]
    assert re.findall(r"^\| \[`((?:CL|RL)\..*?)`\]\(#", table, re.MULTILINE) == list(USAGES.values())
    row = next(line for line in table.splitlines() if line.startswith("| `AUTH`"))
    assert {name.split()[0] for name in re.findall("`([A-Z 0]+)`", row)} == set(SESSION_COMMANDS)


def test_every_field_and_error_is_in_a_table() -> None:
    assert tuple(re.findall(r"^\| \d \| `(\w+)` \|", PAGE, re.MULTILINE)) == DECISION_FIELDS
    codes = set(re.findall(r"^\| `([A-Z]+)` \| \d{3}", PAGE, re.MULTILINE))
    assert codes == {"ERR", "WRONGPASS", "NOPROTO", *CODES.values()}


def test_bounds_are_those_of_the_listener() -> None:
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", PAGE.partition("## Limits and bounds")[2], re.MULTILINE))
    bounds = {
        "arguments of a command": f"{MAX_ARGUMENTS}",
        "an argument": f"{MAX_ARGUMENT_BYTES // 1024} KiB",
        "a command": f"{MAX_COMMAND_BYTES // 1024} KiB",
        "a line, as typed": f"{MAX_LINE_BYTES // 1024} KiB",
        "limits of a command": f"{MAX_LIMITS}, else an error",
        "commands of a connection in one iteration of the event loop": f"{MAX_TURN_COMMANDS}",
        "unread replies before no further command is handled": f"{MAX_UNSENT // 1024} KiB",
        "from the first byte of a command to its last": f"{listener.COMMAND_TIMEOUT:.0f} seconds",
        "replies that the client does not read": f"{listener.UNREAD_TIMEOUT:.0f} seconds",
        "a connection without commands": f"{listener.IDLE_TIMEOUT:.0f} seconds",
    }
    assert {what: rows[what] for what in bounds} == bounds
