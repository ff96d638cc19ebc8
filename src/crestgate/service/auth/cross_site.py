# mypyc: compile
"""Refuses cross-site requests of web pages (CSRF) and DNS rebinding, whatever API key they carry.

A browser sends requests to any address that a page names, also to services that only this machine can reach. The page
cannot read the response, but the request is executed. There are two ways, and each is detectable:

- The page calls the service from its own site. The browser says so in `Sec-Fetch-Site`, or else in `Origin`, which is
  not the host that was called. These are refused everywhere. `server.allowed_origins` lists exceptions.
- The page's own name resolves to this machine (DNS rebinding). For the browser it is the same site, and the page can
  read responses; but `Host` has the page's name. So a service on loopback accepts loopback addresses, `localhost`, the
  name it listens on and `server.allowed_hosts`. Elsewhere `Host` is checked only with that setting; addresses and
  `localhost` always pass there, since probes use them and a rebound name is neither.

Programs send neither `Origin` nor `Sec-Fetch-Site`, and call the service by a name they know. Links to pages of the
service may be anywhere: top-level navigation to PAGES passes. The dashboard's cookie is not sent with it.

`/api/v1/authorize` is called by proxies with the headers of their clients, `Host` and `Origin` among them, which say
nothing about the caller. They are ignored if a header shows that a proxy forwards a request: pages of other sites
cannot set any of FORWARDING. A page with a rebound name could; all it gains is to spend limits that it names.

A request without exactly one well-formed `Host` is malformed, except in HTTP/1.0, which no browser uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from crestgate.config.hosts import ANY_LABEL
from crestgate.http.host import host_address, host_name, read_origin, same_origin
from crestgate.service.auth.guard import is_loopback
from crestgate.service.context import CallContext
from crestgate.service.errors import ApiError

if TYPE_CHECKING:
    from crestgate.config.server import ServerSettings

__all__ = ["CrossSiteGuard"]

PAGES: Final = frozenset(
    {"/", "/audit", "/docs", "/docs/reference", "/explain", "/login", "/rules", "/system", "/what-if"}
)
BELOW_PAGES: Final = ("/rules/", "/subjects/")
FORWARDING: Final = frozenset(
    {
        b"x-original-uri",
        b"x-original-method",
        b"x-forwarded-uri",
        b"x-forwarded-method",
        b"x-forwarded-for",
        b"x-real-ip",
        b"forwarded",
        b"x-crestgate-key",
    }
)
MAX_KNOWN: Final = 256
"""Valid hosts that are cached."""
MAX_QUOTED: Final = 100
"""Characters of a header in an error message."""


@final
class CrossSiteGuard:
    """Checks `Host`, `Origin` and `Sec-Fetch-Site` of the requests of one worker."""

    def __init__(self, server: ServerSettings) -> None:
        self._loopback = is_loopback(server.http.host)
        self._restricted = self._loopback or bool(server.allowed_hosts)
        self._names = {name for name in server.allowed_hosts if not name.startswith(ANY_LABEL)}
        self._below = tuple([name[1:] for name in server.allowed_hosts if name.startswith(ANY_LABEL)])
        own = host_name(f"[{server.http.host}]" if ":" in server.http.host else server.http.host)
        if own is not None:
            self._names.add(own)
        self._origins = frozenset(server.allowed_origins)
        self._known: set[bytes] = set()

    def check(self, call: CallContext, forwarded: bool = False) -> None:
        """ApiError if the request is refused. `forwarded`: proxies call this path about requests of their clients."""
        fields = call.fields
        if (
            fields.get(b"host") in self._known
            and b"origin" not in fields
            and b"sec-fetch-site" not in fields
            and len(fields) == len(call.scope["headers"])
        ):
            return
        self._check(call, forwarded)

    def _check(self, call: CallContext, forwarded: bool) -> None:
        hosts = [value for name, value in call.scope["headers"] if name == b"host"]
        if len(hosts) > 1:
            raise ApiError(400, f"{len(hosts)} Host headers: send exactly one")
        if not hosts and call.scope.get("http_version", "1.1") != "1.0":
            raise ApiError(400, "the Host header is missing: send the name or address that was called")
        host = hosts[0].decode("latin-1") if hosts else ""
        name = host_name(host)
        if name is None:
            raise ApiError(400, f"the Host header is malformed: {_quoted(host)} is not a host or host:port")
        if forwarded and not FORWARDING.isdisjoint(call.fields):
            return
        if hosts and self._restricted:
            self._check_name(name)
        self._check_site(call, host)
        if hosts and len(self._known) < MAX_KNOWN:
            self._known.add(hosts[0])

    def _check_name(self, name: str) -> None:
        if name in self._names or name.endswith(self._below):
            return
        address = host_address(name)
        if address is not None:
            if address.is_loopback or not self._loopback:
                return
        elif name == "localhost":
            return
        quoted = _quoted(name)
        raise ApiError(421, f"the host {quoted} is not served here: see server.allowed_hosts")

    def _check_site(self, call: CallContext, host: str) -> None:
        fields = call.fields
        origin = fields.get(b"origin")
        site = fields.get(b"sec-fetch-site")
        if origin is None and site is None:
            return
        text = origin.decode("latin-1") if origin is not None else None
        if text is not None and self._origins and read_origin(text) in self._origins:
            return
        if site is not None:
            if site in (b"same-origin", b"none") or _is_navigation(call):
                return
            kind = site.decode("latin-1")
            source = f"Sec-Fetch-Site: {_quoted(kind)}" if text is None else f"from the origin {_quoted(text)}"
        elif text is not None and not same_origin(text, host):
            source = f"from the origin {_quoted(text)}"
        else:
            return
        raise ApiError(403, f"cross-site request refused ({source}): see server.allowed_origins")


def _is_navigation(call: CallContext) -> bool:
    """Whether the visitor has followed a link to a page: a top-level navigation."""
    scope, fields = call.scope, call.fields
    return (
        (scope["path"] in PAGES or scope["path"].startswith(BELOW_PAGES))
        and scope["method"] in ("GET", "HEAD")
        and fields.get(b"sec-fetch-mode") == b"navigate"
        and fields.get(b"sec-fetch-dest") == b"document"
    )


def _quoted(text: str) -> str:
    return repr(text if len(text) <= MAX_QUOTED else text[:MAX_QUOTED] + "…")
