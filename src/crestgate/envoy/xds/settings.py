"""What a client of a control plane needs to know: where it is, how to reach it, and as whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Xds", "XdsTls"]


@dataclass(frozen=True, slots=True)
class XdsTls:
    """TLS to the control plane. Paths are of PEM files, which are read at every connect."""

    enabled: bool = True
    ca: str | None = None
    """The authorities that may have signed the server's certificate; None: those of the system."""
    certificate: str | None = None
    key: str | None = None
    """For mTLS, both."""
    server_name: str | None = None
    """The name in the server's certificate, if it is not the host."""


@dataclass(frozen=True, slots=True)
class Xds:
    """A control plane."""

    server: str
    """host:port."""
    node_id: str = "default"
    """By which it chooses the configuration. The default is that of envoyproxy/ratelimit."""
    cluster: str = ""
    node_metadata: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """gRPC metadata of the stream, which may be secret."""
    tls: XdsTls | None = None
    """None: plain text."""
    cache: str | None = None
    """The path of the file with the last good configuration; None: in the default folder."""
