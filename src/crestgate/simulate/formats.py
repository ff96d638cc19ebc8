"""The format of a log: named, or detected from its first lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, Protocol

from crestgate.errors import ConfigError
from crestgate.simulate.bad_lines import BadLines
from crestgate.simulate.combined import CombinedReader
from crestgate.simulate.json_lines import ENVOY_FIELDS, JSON_FIELDS, JsonReader, read_mapping
from crestgate.simulate.logged_request import LoggedRequest

__all__ = ["FORMATS", "LogReader", "open_reader"]

FORMATS: Final = ("auto", "combined", "json", "envoy")
DETECT_LINES: Final = 20
ENVOY_KEYS: Final = frozenset(
    {
        *("downstream_remote_address", "downstream_local_address", "upstream_cluster", "upstream_host"),
        *("response_flags", "response_code_details", "route_name", "x_forwarded_for", "x-forwarded-for"),
    }
)
"""Two of them beside `start_time` make a line Envoy's."""


class LogReader(Protocol):
    """Turns lines into requests."""

    @property
    def name(self) -> str: ...

    def read(self, first: int, lines: list[str]) -> list[LoggedRequest]: ...


def open_reader(name: str, fields: Sequence[str], sample: Sequence[str], bad: BadLines) -> LogReader:
    """The reader of a format; `auto` looks at the sample. `fields` are `--field` options."""
    if name not in FORMATS:
        raise ConfigError(f"--format is one of {', '.join(FORMATS)}, not {name!r}")
    if name == "auto":
        name = _detect(sample)
    if name == "combined":
        if fields:
            raise ConfigError("--field is only valid with JSON lines, and this log is in the combined format")
        return CombinedReader(bad)
    return JsonReader(bad, name, read_mapping(fields, ENVOY_FIELDS if name == "envoy" else JSON_FIELDS))


def _detect(sample: Sequence[str]) -> str:
    for line in [line for line in sample if line.strip()][:DETECT_LINES]:
        if not line.lstrip().startswith("{"):
            continue
        try:
            data = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(data, dict):
            return "envoy" if "start_time" in data and len(ENVOY_KEYS & data.keys()) >= 2 else "json"
    return "combined"
