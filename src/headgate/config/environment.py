"""Settings in the environment: HEADGATE_ and the field's name, with `__` between a field and one inside of it.

    HEADGATE_STORE=redis://localhost:6379/0
    HEADGATE_STORE=[redis://one:6379, redis://other:6379]
    HEADGATE_SERVER__HTTP=127.0.0.1:9000
    HEADGATE_SERVER__LIMITS__READS=500/minute
    HEADGATE_PLANS__GOLD=10/second burst 20
    HEADGATE_RULES=[{rule_id: all, dimension: ip, limit: 100, window_seconds: 60}]

The environment comes before the file. An empty variable is as good as none. Where a field is text, the variable is
that text; elsewhere it is read as YAML.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from headgate.config.envoy import Envoy
from headgate.config.observing import PRESSURE, Logs, Metrics, Tracing
from headgate.config.section import names_of
from headgate.config.server import Ceilings, Server, Tls
from headgate.errors import Problem
from headgate.http.style import HeaderStyle
from headgate.reading.parsing import parse, scalar
from headgate.reading.variables import Variable
from headgate.rules.rule_files import INCLUDE, SETTINGS
from headgate.rules.sections import SECTIONS

__all__ = ["OTHER_VARIABLES", "PREFIX", "read_environment"]

PREFIX = "HEADGATE_"
BETWEEN = "__"
OTHER_VARIABLES = (
    "HEADGATE_CONFIG",
    "HEADGATE_URL",
    "HEADGATE_ADMIN_KEY",
    "HEADGATE_PURE",
    "HEADGATE_OPT_LEVEL",
    "HEADGATE_EXPECT",
)
"""Variables that are no settings: the path of the settings, the service that commands talk to, its first key; how to
build Headgate, and what the tests expect of the build. Those that begin with HEADGATE_TEST_ are the tests' own."""
_SERVICE = re.compile(r"HEADGATE_(?:PORT_[0-9]+_(?:TCP|UDP)|SERVICE_(?:HOST|PORT))(?:_.*)?")
_SERVICE_PORT = re.compile(r"(?:tcp|udp)://.*")
"""What Kubernetes puts into every container of a namespace in which a Service is called headgate: nobody wrote it."""
INSIDE: dict[tuple[str, ...], tuple[str, ...]] = {
    ("server",): names_of(Server),
    ("server", "tls"): names_of(Tls),
    ("server", "limits"): names_of(Ceilings),
    ("headers",): names_of(HeaderStyle),
    ("metrics",): names_of(Metrics),
    ("logs",): names_of(Logs),
    ("tracing",): names_of(Tracing),
    ("pressure",): PRESSURE,
    ("envoy",): names_of(Envoy),
    ("default_policy",): ("type", "capacity", "refillRate", "windowSeconds"),
}
"""Fields with fixed fields inside, as these are spelled."""
WHOLE = ("default_policy",)
"""Of these, what may also be set as a whole, as `{…}`."""
LISTS = ("rules", "policies", "clients", "deprecated")
TEXTS = {
    *(("rules_store",), ("on_store_error",), ("mode",), ("server", "http"), ("server", "grpc"), ("server", "checks")),
    *(("server", "tls", name) for name in names_of(Tls)),
    *(("server", "limits", name) for name in names_of(Ceilings)),
    *(("logs", name) for name in names_of(Logs)),
    *(("headers", "reset"), ("metrics", "prefix"), ("pressure", "webhook"), ("envoy", "config")),
}
TEXT_OR_LIST = ("store", INCLUDE)


def read_environment(environ: Mapping[str, str]) -> tuple[list[Variable], list[Problem]]:
    """The settings that the environment has, and the problems, each with the variable's name in place of a file's."""
    variables = []
    problems: list[Problem] = []
    for name in sorted(environ):
        text = environ[name].strip()
        if not name.startswith(PREFIX) or not text or _is_other(name, text):
            continue
        path = _path(name)
        wrong = _wrong(name, path)
        if wrong is not None:
            problems.append(Problem("", wrong, name))
            continue
        value, found = _value(path, text)
        problems += [Problem(".".join(path), problem.message, name) for problem in found]
        if not found:
            variables.append(Variable(name, path, value))
    return variables, problems


def _is_other(name: str, text: str) -> bool:
    """Whether it is no setting, and not meant as one."""
    if name in OTHER_VARIABLES or name.startswith("HEADGATE_TEST_"):
        return True
    if name == "HEADGATE_PORT":  # as a slip, it would have a number
        return _SERVICE_PORT.fullmatch(text) is not None
    return _SERVICE.fullmatch(name) is not None


def _path(name: str) -> tuple[str, ...]:
    """The field that a variable sets, as it is spelled in a file."""
    first, *rest = name[len(PREFIX) :].lower().split(BETWEEN)
    path: tuple[str, ...] = (first,)
    for part in rest:
        spellings = {_plain(inner): inner for inner in INSIDE.get(path, ())}
        path += (spellings.get(_plain(part), part),)
    return path


def _plain(word: str) -> str:
    return word.lower().replace("_", "")


def _wrong(name: str, path: tuple[str, ...]) -> str | None:
    """What is wrong with a variable's name."""
    first, *rest = path
    if first not in (*SETTINGS, INCLUDE, *SECTIONS):
        return _unknown(name)
    sectioned = (first,) in INSIDE
    if sectioned and rest and path[-1] not in INSIDE.get(path[:-1], ()):
        return _unknown(name)
    if path in INSIDE and first not in WHOLE:
        return f"sets a mapping: set the fields inside of it, such as {_variable(*path, INSIDE[path][0])}"
    if rest and first in LISTS:
        return f"sets a part of a list: set all of it, as {PREFIX}{first.upper()}=[…], or write it in a file"
    if rest and first in ("policy_key", "default_client_limits", INCLUDE, *SETTINGS) and not sectioned:
        return f"{first!r} has no fields inside: set {PREFIX}{first.upper()}"
    if not all(path):
        return "a name is missing between or after '__': write it, or take the '__' away"
    return None


def _unknown(name: str) -> str:
    fields: list[tuple[str, ...]] = [(field,) for field in (*SETTINGS, INCLUDE, *SECTIONS)]
    fields += [(*path, inner) for path, names in INSIDE.items() for inner in names]
    known = [_variable(*path) for path in fields if path not in INSIDE or path[0] in WHOLE]
    close = [longer for longer in known if longer.startswith(name)] or get_close_matches(name, known, n=1)
    close = close or get_close_matches(name.partition(BETWEEN)[0], known, n=1)
    return f"unknown variable: did you mean {close[0]}?" if close else f"unknown variable: there are {', '.join(known)}"


def _variable(*path: str) -> str:
    return PREFIX + BETWEEN.join(path).upper()


def _value(path: tuple[str, ...], text: str) -> tuple[Any, list[Problem]]:
    if path in TEXTS or (path[0] in TEXT_OR_LIST and not text.startswith("[")):
        return text, []
    if text[0] not in "[{\"'":
        return scalar(text), []
    parsed = parse(text)
    return parsed.data, parsed.problems
