"""Settings in environment variables: CRESTGATE_ and the field's name, with `__` between nested names.

    CRESTGATE_STORE=redis://localhost:6379/0
    CRESTGATE_STORE=[redis://one:6379, redis://other:6379]
    CRESTGATE_SERVER__HTTP=127.0.0.1:9000
    CRESTGATE_SERVER__LIMITS__READS=500/minute
    CRESTGATE_PLANS__GOLD=10/second burst 20
    CRESTGATE_RULES=[{rule_id: all, dimension: ip, limit: 100, window_seconds: 60}]

Variables override the file. An empty variable counts as unset. Text fields take the variable as it is; others are
parsed as YAML.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from crestgate.config.envoy import Envoy
from crestgate.config.observability import PRESSURE, Logs, Metrics, Tracing, Traffic
from crestgate.config.section import field_names
from crestgate.config.server import ServerLimits, ServerSettings, Tls
from crestgate.config.stores import MIGRATE
from crestgate.envoy.xds.settings import Xds, XdsTls
from crestgate.errors import Problem
from crestgate.http.header_options import HeaderStyle
from crestgate.loader.overlay import Variable
from crestgate.loader.parser import parse, scalar
from crestgate.rules.storage.file_sections import SECTIONS
from crestgate.rules.storage.rule_files import INCLUDE, SETTINGS

__all__ = ["OTHER_VARIABLES", "PREFIX", "read_environment"]

PREFIX = "CRESTGATE_"
SEPARATOR = "__"
OTHER_VARIABLES = (
    "CRESTGATE_CONFIG",
    "CRESTGATE_URL",
    "CRESTGATE_ADMIN_KEY",
    "CRESTGATE_PURE",
    "CRESTGATE_OPT_LEVEL",
    "CRESTGATE_EXPECT",
)
"""Variables that are not settings: the settings file, the service URL of commands, the first admin key; build options,
and the build that tests expect. Those that begin with CRESTGATE_TEST_ belong to the tests."""
_KUBERNETES = re.compile(r"CRESTGATE_(?:PORT_[0-9]+_(?:TCP|UDP)|SERVICE_(?:HOST|PORT))(?:_.*)?")
_KUBERNETES_PORT = re.compile(r"(?:tcp|udp)://.*")
"""Set by Kubernetes in every container of a namespace that has a Service called crestgate."""
NESTED_FIELDS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("server",): field_names(ServerSettings),
    ("server", "tls"): field_names(Tls),
    ("server", "limits"): field_names(ServerLimits),
    ("headers",): field_names(HeaderStyle),
    ("metrics",): field_names(Metrics),
    ("logs",): field_names(Logs),
    ("tracing",): field_names(Tracing),
    ("traffic",): field_names(Traffic),
    ("pressure",): PRESSURE,
    ("envoy",): field_names(Envoy),
    ("envoy", "xds"): field_names(Xds),
    ("envoy", "xds", "tls"): field_names(XdsTls),
    ("migrate",): MIGRATE,
    ("default_policy",): ("type", "capacity", "refillRate", "windowSeconds"),
}
"""Fields that are mappings, and their fields."""
WHOLE = ("default_policy",)
"""Those that may also be set as a whole, as `{…}`."""
LISTS = ("rules", "policies", "clients", "deprecated")
TEXTS = {
    *(("rules_store",), ("on_store_error",), ("mode",)),
    *(("server", name) for name in ("http", "grpc", "resp", "checks")),
    *(("server", "tls", name) for name in field_names(Tls)),
    *(("server", "limits", name) for name in field_names(ServerLimits)),
    *(("logs", name) for name in field_names(Logs)),
    *(("migrate", "from"), ("migrate", "to")),
    *(("headers", "reset"), ("metrics", "prefix"), ("pressure", "webhook"), ("envoy", "config")),
    *(("envoy", "xds", name) for name in ("server", "node_id", "cluster", "cache")),
    *(("envoy", "xds", "tls", name) for name in field_names(XdsTls) if name != "enabled"),
}
TEXT_OR_LIST = ("store", INCLUDE)


def read_environment(environ: Mapping[str, str]) -> tuple[list[Variable], list[Problem]]:
    """The settings, and the problems, which name the variable as their file."""
    variables = []
    problems: list[Problem] = []
    for name in sorted(environ):
        text = environ[name].strip()
        if not name.startswith(PREFIX) or not text or _is_other(name, text):
            continue
        path = _path(name)
        message = _name_error(name, path)
        if message is not None:
            problems.append(Problem("", message, name))
            continue
        value, value_problems = _value(path, text)
        problems += [Problem(".".join(path), problem.message, name) for problem in value_problems]
        if not value_problems:
            variables.append(Variable(name, path, value))
    return variables, problems


def _is_other(name: str, text: str) -> bool:
    """Whether it is a known variable that is not a setting."""
    if name in OTHER_VARIABLES or name.startswith("CRESTGATE_TEST_"):
        return True
    if name == "CRESTGATE_PORT":  # a mistyped setting would be a number
        return _KUBERNETES_PORT.fullmatch(text) is not None
    return _KUBERNETES.fullmatch(name) is not None


def _path(name: str) -> tuple[str, ...]:
    """The field that a variable sets, as it is spelled in a file."""
    first, *rest = name[len(PREFIX) :].lower().split(SEPARATOR)
    path: tuple[str, ...] = (first,)
    for part in rest:
        spellings = {_plain(inner): inner for inner in NESTED_FIELDS.get(path, ())}
        path += (spellings.get(_plain(part), part),)
    return path


def _plain(word: str) -> str:
    return word.lower().replace("_", "")


def _name_error(name: str, path: tuple[str, ...]) -> str | None:
    """The error in the name of a variable, if any."""
    first, *rest = path
    if first not in (*SETTINGS, INCLUDE, *SECTIONS):
        return _unknown(name)
    sectioned = (first,) in NESTED_FIELDS
    if sectioned and rest and path[-1] not in NESTED_FIELDS.get(path[:-1], ()):
        return _unknown(name)
    if path in NESTED_FIELDS and first not in WHOLE:
        return f"sets a mapping: set its fields, such as {_variable(*path, NESTED_FIELDS[path][0])}"
    if rest and first in LISTS:
        return f"sets a part of a list: set the whole list, as {PREFIX}{first.upper()}=[…], or write it in a file"
    plain = ("policy_key", "default_client_limits", INCLUDE, *SETTINGS)
    if rest and first in plain and not sectioned and first != "stores":
        return f"{first!r} has no fields: set {PREFIX}{first.upper()}"
    if not all(path):
        return "a name is missing between or after '__': write it, or remove the '__'"
    return None


def _unknown(name: str) -> str:
    fields: list[tuple[str, ...]] = [(field,) for field in (*SETTINGS, INCLUDE, *SECTIONS)]
    fields += [(*path, inner) for path, names in NESTED_FIELDS.items() for inner in names]
    known = [_variable(*path) for path in fields if path not in NESTED_FIELDS or path[0] in WHOLE]
    close = [longer for longer in known if longer.startswith(name)] or get_close_matches(name, known, n=1)
    close = close or get_close_matches(name.partition(SEPARATOR)[0], known, n=1)
    return f"unknown variable: did you mean {close[0]}?" if close else f"unknown variable: there are {', '.join(known)}"


def _variable(*path: str) -> str:
    return PREFIX + SEPARATOR.join(path).upper()


def _value(path: tuple[str, ...], text: str) -> tuple[Any, list[Problem]]:
    if path in TEXTS or (path[0] in TEXT_OR_LIST and not text.startswith("[")):
        return text, []
    if text[0] not in "[{\"'":
        return scalar(text), []
    parsed = parse(text)
    return parsed.data, parsed.problems
