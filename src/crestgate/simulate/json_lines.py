"""Logs of JSON objects, one to a line, with a mapping of fields; among them Envoy's access log.

Each field of a request has names that it is known by in common logs, tried in order; `--field user=request.user_id`
names another. A name with dots is looked up as it is, then level by level. `--field attributes.org=request.org` maps an
own dimension.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from crestgate.core.bounds import MAX_COST
from crestgate.core.dimensions import is_attribute_name
from crestgate.errors import ConfigError
from crestgate.simulate.bad_lines import BadLines, LineError
from crestgate.simulate.combined import split_request_line, strip_query
from crestgate.simulate.log_times import parse_time
from crestgate.simulate.logged_request import LoggedRequest

__all__ = ["ENVOY_FIELDS", "FIELDS", "JSON_FIELDS", "JsonReader", "read_mapping"]

FIELDS: Final = ("time", "ip", "user", "api_key", "client", "tier", "key", "path", "method", "request", "cost")
"""What a request has; `request` is a request line, for logs without path and method."""
JSON_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "time": ("time", "timestamp", "@timestamp", "ts", "time_iso8601", "msec", "time_local", "start_time"),
    "ip": ("ip", "client_ip", "clientip", "remote_addr", "remote_ip", "remote_host", "client.ip"),
    "user": ("user", "user_id", "remote_user", "user.id"),
    "api_key": ("api_key", "apikey", "x_api_key"),
    "client": ("client_id",),
    "tier": ("tier",),
    "key": (),
    "path": ("path", "uri", "request_uri", "url", "request.uri", "request.path", "url.path"),
    "method": ("method", "request_method", "verb", "request.method", "http.request.method"),
    "request": ("request",),
    "cost": ("cost",),
}
ENVOY_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    **JSON_FIELDS,
    "time": ("start_time", "timestamp", "time"),
    "ip": (
        *("downstream_remote_address_without_port", "downstream_remote_address", "downstream_direct_remote_address"),
        *("x_forwarded_for", "x-forwarded-for"),
    ),
    "user": ("user_id", "x_user_id", "x-user-id", "user"),
    "api_key": ("x_api_key", "x-api-key", "api_key"),
    "client": ("x_client_id", "x-client-id", "client_id"),
    "path": ("path", "x_envoy_original_path", "x-envoy-origin-path", "x-envoy-original-path", ":path"),
    "method": ("method", ":method"),
    "request": (),
}
ATTRIBUTES: Final = "attributes."
"""Prefix of the fields that are attributes."""
Lookup = tuple[str, tuple[str, ...]]
"""A name, and its levels."""


class JsonReader:
    """Reads lines of JSON. `fields` maps fields of a request to names in the log."""

    def __init__(self, bad: BadLines, name: str, fields: Mapping[str, Sequence[str]]) -> None:
        self.name = name
        self._bad = bad
        self._lookups = {field: [_lookup(one) for one in fields.get(field, ())] for field in FIELDS}
        self._texts = [(field, self._lookups[field]) for field in ("user", "api_key", "client", "tier", "key")]
        self._attributes = [
            (field.removeprefix(ATTRIBUTES), [_lookup(one) for one in names])
            for field, names in fields.items()
            if field.startswith(ATTRIBUTES)
        ]

    def read(self, first: int, lines: list[str]) -> list[LoggedRequest]:
        """The requests of some lines; `first` is the number of the first line."""
        requests: list[LoggedRequest] = []
        number = first - 1
        loads = json.loads
        for line in lines:
            number += 1
            if not line or line.isspace():
                continue
            try:
                data = loads(line)
                if not isinstance(data, dict):
                    raise LineError("not a JSON object")
                requests.append(self._request(number, data))
            except LineError as error:
                self._bad.add(number, str(error))
            except (ValueError, RecursionError):
                self._bad.add(number, "not JSON")
        return requests

    def _request(self, number: int, data: dict[str, Any]) -> LoggedRequest:
        lookups = self._lookups
        when = _find(data, lookups["time"])
        if when is None:
            raise LineError(f"no time: looked for {_names(lookups['time'])}")
        path, method = _text(data, "path", lookups["path"]), _text(data, "method", lookups["method"])
        if path is None or method is None:
            line = _text(data, "request", lookups["request"])
            if line is not None:
                found_method, found_path = split_request_line(line)
                path, method = path or found_path, method or found_method
        ip = _text(data, "ip", lookups["ip"])
        request = LoggedRequest(
            parse_time(when),
            number,
            None if ip is None else client_address(ip),
            path=None if path is None else strip_query(path),
            method=method,
        )
        known = path is not None or ip is not None
        for field, names in self._texts:
            if names:
                value = _text(data, field, names)
                if value is not None:
                    setattr(request, field, value)
                    known = True
        for field, names in self._attributes:
            value = _text(data, field, names)
            if value is not None:
                request.attributes = {**(request.attributes or {}), field: value}
                known = True
        if not known:
            raise LineError(f"nothing to match: no path ({_names(lookups['path'])}), no ip, user or key")
        cost = _find(data, lookups["cost"])
        if cost is not None:
            request.cost = _cost(cost)
        return request


def read_mapping(options: Sequence[str], defaults: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """The fields with those of `--field NAME=PATH` options. ConfigError for an invalid option."""
    fields = dict(defaults)
    for option in options:
        field, equals, path = option.partition("=")
        field = field.strip().lower().replace("-", "_")
        own = field.startswith(ATTRIBUTES) and is_attribute_name(field.removeprefix(ATTRIBUTES))
        if (field not in FIELDS and not own) or not equals or not path.strip():
            raise ConfigError(
                f"--field is NAME=PATH, such as user=request.user_id, with NAME one of {', '.join(FIELDS)}, "
                f"attributes.NAME, not {option!r}"
            )
        fields[field] = (path.strip(),)
    return fields


def client_address(text: str) -> str:
    """The address of a client, without a port; of a list (X-Forwarded-For) the last one, which the proxy itself saw.

    >>> client_address("10.0.0.1:4711"), client_address("[2001:db8::1]:80"), client_address("1.2.3.4, 10.0.0.9")
    ('10.0.0.1', '2001:db8::1', '10.0.0.9')
    """
    if "," in text:
        text = text.rpartition(",")[2].strip() or text
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


def _lookup(name: str) -> Lookup:
    return name, tuple(name.split(".")) if "." in name else ()


def _find(data: dict[str, Any], lookups: list[Lookup]) -> Any:
    for name, levels in lookups:
        value = data.get(name)
        if value is None and levels:
            value = data
            for level in levels:
                value = value.get(level) if isinstance(value, dict) else None
        if value is not None and value != "-" and value != "":  # noqa: PLR1714 - a dict or a list has no hash
            return value
    return None


def _text(data: dict[str, Any], field: str, lookups: list[Lookup]) -> str | None:
    value = _find(data, lookups)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if field in {"user", "client"}:  # an object with the details of it: its own names are tried next
        return None
    raise LineError(f"{field} is neither text nor a number")


def _cost(value: Any) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 10:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_COST:
        raise LineError(f"cost is no whole number from 0 to {MAX_COST}")
    return value


def _names(lookups: list[Lookup]) -> str:
    return ", ".join(name for name, _ in lookups) or "nothing"
