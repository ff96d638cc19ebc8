"""Small logs and rules for the tests of simulate."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from crestgate.rules.rule import Rule
from crestgate.rules.ruleset import RuleSet

START = 1_700_000_000
PER_USER = {"rule_id": "per-user", "dimension": "user", "limit": 3, "window_seconds": 60, "algorithm": "fixed_window"}


def combined(at: int, user: str = "-", path: str = "/", ip: str = "10.0.0.1", method: str = "GET") -> str:
    when = time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime(at))
    return f'{ip} - {user} [{when}] "{method} {path} HTTP/1.1" 200 12 "-" "curl/8.0"\n'


def write_log(folder: Path, lines: Iterable[str], name: str = "access.log") -> str:
    path = folder / name
    path.write_text("".join(lines))
    return str(path)


def rule_set(*rules: dict[str, object]) -> RuleSet:
    return RuleSet.empty().edited([Rule.read(one) for one in rules])
