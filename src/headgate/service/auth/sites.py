"""Requests that a web page makes without its visitor's knowledge: refused, whatever key they carry.

A browser sends requests to any address that a page names, also to services that only this machine can reach. Such a
page cannot read the answer, but what it asks for is done. There are two ways, and each leaves a mark:

- The page calls the service from its own site. The browser then says so, in `Sec-Fetch-Site`, or else in `Origin`,
  which is not the host that was called. These are refused everywhere. `server.allowed_origins` names exceptions.
- The page's own name is made to resolve to this machine (DNS rebinding). For the browser it is then the same site, and
  the page may read answers; but `Host` has the page's name. So a service on loopback answers for loopback addresses,
  `localhost`, the name it listens on and `server.allowed_hosts`. Elsewhere `Host` is checked where that setting is
  given; addresses and `localhost` always pass there, since probes use them and a rebound name is neither.

Programs send neither `Origin` nor `Sec-Fetch-Site`, and call the service by the name that they know it by. A link to a
page of the service may stand anywhere: top-level navigation to PAGES passes.

`/api/v1/authorize` is called by proxies with the headers of their own clients, `Host` and `Origin` among them, which
say nothing about who calls. They are not looked at where a header says that a proxy forwards a request: pages of other
sites cannot set any of FORWARDING. A page with a rebound name could; what it gains is to spend limits that it names.

A request without exactly one well-formed `Host` is malformed, except that HTTP/1.0 does not need one, and no browser
speaks that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from headgate.config.hosts import ANY_LABEL
from headgate.http.host import host_address, host_name, read_origin, same_origin
from headgate.service.asgi import BadRequest, Call
from headgate.service.auth.guard import is_loopback

if TYPE_CHECKING:
    from headgate.config.server import Server

__all__ = ["SiteGuard"]

PAGES: Final = frozenset({"/", "/docs"})
FORWARDING: Final = frozenset(
    {
        b"x-original-uri",
        b"x-original-method",
        b"x-forwarded-uri",
        b"x-forwarded-method",
        b"x-forwarded-for",
        b"x-real-ip",
        b"forwarded",
        b"x-headgate-key",
    }
)
MAX_KNOWN: Final = 256
"""Hosts that are remembered as right."""
MAX_SHOWN: Final = 100
"""Characters of a header that are shown in an error."""


@final
class SiteGuard:
    """Checks `Host`, `Origin` and `Sec-Fetch-Site` of the requests of one worker."""

    def __init__(self, server: Server) -> None:
        self._loopback = is_loopback(server.http.host)
        self._restricted = self._loopback or bool(server.allowed_hosts)
        self._names = {name for name in server.allowed_hosts if not name.startswith(ANY_LABEL)}
        self._below = tuple([name[1:] for name in server.allowed_hosts if name.startswith(ANY_LABEL)])
        own = host_name(f"[{server.http.host}]" if ":" in server.http.host else server.http.host)
        if own is not None:
            self._names.add(own)
        self._origins = frozenset(server.allowed_origins)
        self._known: set[bytes] = set()

    def check(self, call: Call, forwarded: bool = False) -> None:
        """BadRequest for a request that is refused. `forwarded`: proxies call this path about others' requests."""
        fields = call.fields
        if (
            fields.get(b"host") in self._known
            and b"origin" not in fields
            and b"sec-fetch-site" not in fields
            and len(fields) == len(call.scope["headers"])
        ):
            return
        self._check(call, forwarded)

    def _check(self, call: Call, forwarded: bool) -> None:
        hosts = [value for name, value in call.scope["headers"] if name == b"host"]
        if len(hosts) > 1:
            raise BadRequest(400, f"the header Host is there {len(hosts)} times: send it once")
        if not hosts and call.scope.get("http_version", "1.1") != "1.0":
            raise BadRequest(400, "the header Host is missing: send the name or address that was called")
        host = hosts[0].decode("latin-1") if hosts else ""
        name = host_name(host)
        if name is None:
            raise BadRequest(400, f"the header Host is malformed: {_shown(host)} is no host, nor host:port")
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
        shown = _shown(name)
        raise BadRequest(421, f"this service does not answer for the host {shown}: server.allowed_hosts may name it")

    def _check_site(self, call: Call, host: str) -> None:
        fields = call.fields
        origin = fields.get(b"origin")
        site = fields.get(b"sec-fetch-site")
        if origin is None and site is None:
            return
        text = origin.decode("latin-1") if origin is not None else None
        if text is not None and self._origins and read_origin(text) in self._origins:
            return
        if site is not None:
            if site in (b"same-origin", b"none") or _is_visit(call):
                return
            kind = site.decode("latin-1")
            shown = f"Sec-Fetch-Site: {_shown(kind)}" if text is None else f"from the origin {_shown(text)}"
        elif text is not None and not same_origin(text, host):
            shown = f"from the origin {_shown(text)}"
        else:
            return
        raise BadRequest(
            403, f"web pages of other sites may not call this ({shown}): server.allowed_origins may name their origin"
        )


def _is_visit(call: Call) -> bool:
    """Whether somebody has followed a link to a page: nothing but what is in the address bar is asked for."""
    scope, fields = call.scope, call.fields
    return (
        scope["path"] in PAGES
        and scope["method"] in ("GET", "HEAD")
        and fields.get(b"sec-fetch-mode") == b"navigate"
        and fields.get(b"sec-fetch-dest") == b"document"
    )


def _shown(text: str) -> str:
    return repr(text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…")
