"""The Prometheus rules of deploy/prometheus, and promtool, which ships with Debian's package `prometheus`."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import yaml

from servers.machine import find

__all__ = ["ALERTS", "FOLDER", "RECORDING", "metric_names", "promtool", "rules_of", "selectors"]

FOLDER = Path(__file__).parent.parent.parent.parent / "deploy" / "prometheus"
ALERTS, RECORDING = FOLDER / "alerts.yaml", FOLDER / "recording.yaml"
_NAME = re.compile(r"(?<![\w:$\"])((?:crestgate|job:crestgate|rule:crestgate|up\b)[\w:]*)")


def promtool(*words: str) -> str:
    """Its output; AssertionError if it finds an error."""
    done = subprocess.run(
        [find("promtool", "prometheus"), *words], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rules_of(path: Path) -> list[dict[str, Any]]:
    """All rules of a file."""
    return [rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def metric_names(expression: str) -> set[str]:
    """The metrics that an expression reads: those of Crestgate and of recording rules, and `up`."""
    return set(_NAME.findall(re.sub(r'"[^"]*"', '""', expression)))


def selectors(expression: str) -> list[tuple[str, set[str]]]:
    """The metrics with label matchers in an expression, and the names of those labels."""
    found = re.findall(r"([a-z_:]\w*)\{([^}]*)\}", expression)
    return [(name, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))) for name, matchers in found]
