"""Settings of a control plane that has the limits on Envoy's descriptors.

envoy:
  xds:
    server: control-plane:18001
    node_id: crestgate
    tls: {ca: ca.pem, certificate: client.pem, key: client.key}
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from crestgate.config.section import field_names, section
from crestgate.config.tls import find_unreadable
from crestgate.envoy.xds.settings import Xds, XdsTls
from crestgate.loader.fields import Fields, describe

__all__ = ["read_xds"]

_SERVER = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):([0-9]{1,5})")
_HEADER = re.compile(r"[0-9a-zA-Z_.-]+")


def read_xds(fields: Fields, name: str) -> Xds | None:
    """The section; None if it is absent or has no server."""
    if not fields.has(name):
        return None
    inner = section(fields, name, field_names(Xds))
    server: str | None = inner.text("server")
    node_id: str | None = inner.text("node_id")
    cluster: str | None = inner.text("cluster")
    cache: str | None = inner.text("cache")
    metadata, headers = _texts(inner, "node_metadata"), _texts(inner, "headers")
    for header in headers:
        if not _HEADER.fullmatch(header) or header.lower().startswith("grpc-"):
            inner.report("headers", f"{describe(header)} cannot be sent as a header: write another name")
    tls = _read_tls(inner)
    if server is None:
        if inner.is_mapping and not inner.has("server"):
            inner.report("server", "is missing: write the host and port of the control plane, such as 'xds:18001'")
        return None
    match = _SERVER.fullmatch(server)
    if match is None or not 0 < int(match[1]) < 65536:
        inner.report("server", f"must be a host and a port, such as 'xds:18001', not {describe(server)}")
    return Xds(server, node_id or "default", cluster or "", metadata, headers, tls, cache)


def _read_tls(fields: Fields) -> XdsTls | None:
    if not fields.has("tls"):
        return None
    inner = section(fields, "tls", field_names(XdsTls))
    files = {name: inner.text(name) for name in ("ca", "certificate", "key")}
    server_name: str | None = inner.text("server_name")
    given = {name: path for name, path in files.items() if path is not None}
    for name, message in find_unreadable(given):
        inner.report(name, message)
    for name, other in (("certificate", "key"), ("key", "certificate")):
        if name in given and other not in given and not inner.has(other):
            inner.report(other, f"is missing: {name} needs it")
    enabled = inner.boolean("enabled", True)
    return XdsTls(enabled, files["ca"], files["certificate"], files["key"], server_name)


def _texts(fields: Fields, name: str) -> dict[str, str]:
    """A mapping of texts to texts."""
    value = fields.values.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(text, str) for pair in value.items() for text in pair):
        fields.report(name, f"must be a mapping of texts, 'name: …' for each, not {describe(value)}")
        return {}
    return dict(value)
