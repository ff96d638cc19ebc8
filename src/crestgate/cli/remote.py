"""HTTP client of a running service: `--url`, or CRESTGATE_URL.

Its problem documents become the exceptions that the same error raises without a service, so that messages and exit
codes are the same. The key is sent to the given address and nowhere else: redirects are errors.
"""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Mapping
from typing import Any, NoReturn
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from crestgate.errors import ConfigError, ConflictError, CrestgateError, NotFoundError, StaleVersionError, StoreError

__all__ = ["ServiceClient", "remote_service"]

TIMEOUT = 10.0
"""Seconds for a connection, and for each read."""
MAX_BYTES = 64 * 1024 * 1024
MAKE_KEY = (
    "to create a key, run `crestgate keys create NAME --scope read` on the service's machine, in its folder, without "
    "CRESTGATE_URL"
)
EXAMPLE = "http://127.0.0.1:8080"
_ERRORS: Mapping[int, type[CrestgateError]] = {404: NotFoundError, 409: ConflictError, 412: StaleVersionError}


class _NoRedirects(HTTPRedirectHandler):
    """Redirects are errors: following one would send the key to another server."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class ServiceClient:
    """Sends requests with a key."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.title = _check_url(url)
        self._token = token
        self._open = build_opener(_NoRedirects).open

    def get(self, path: str, **query: str | int) -> dict[str, Any]:
        return self._request("GET", f"{path}?{urlencode(query, quote_via=quote)}" if query else path)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._request("POST", path, body)

    def put(self, path: str, body: Mapping[str, Any], version: int | None = None) -> dict[str, Any]:
        """With a version: StaleVersionError if the current one is another."""
        return self._request("PUT", path, body, version)

    def delete(self, path: str, version: int | None = None) -> None:
        self._request("DELETE", path, version=version)

    def unexpected(self, what: str) -> StoreError:
        """The error for a response that no Crestgate service sends."""
        return StoreError(f"{self.title}: {what}: is this the address of a Crestgate service?")

    def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, version: int | None = None
    ) -> dict[str, Any]:
        headers = {"Accept": "application/json", "User-Agent": "crestgate-cli"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        if version is not None:
            headers["If-Match"] = f'"{version}"'
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = json.dumps(body).encode()
        # The scheme was checked: http or https.
        request = Request(self.title + path, data, headers, method=method)  # noqa: S310
        try:
            with self._open(request, timeout=TIMEOUT) as response:
                text, status = response.read(MAX_BYTES), response.status
        except HTTPError as error:
            with error:
                self._raise_error(error)
        except URLError as error:
            raise StoreError(f"{self.title} cannot be reached: {_reason(error.reason)}") from None
        except (OSError, http.client.HTTPException) as error:
            raise StoreError(f"{self.title} did not respond: {_reason(error)}") from None
        if status == 204:
            return {}
        document = _parse(text)
        if document is None:
            raise self.unexpected("its response is not a JSON object")
        return document

    def _raise_error(self, error: HTTPError) -> NoReturn:
        """Raise the exception for a problem document."""
        try:
            problem = _parse(error.read(MAX_BYTES))
        except (OSError, http.client.HTTPException):
            problem = None
        detail = None if problem is None else problem.get("detail")
        if not isinstance(detail, str):
            raise self.unexpected(f"it responded {error.code} {error.reason}") from None
        status = error.code
        kind = _ERRORS.get(status)
        if kind is not None:
            raise kind(detail) from None
        if status == 401:
            remedy = "set CRESTGATE_ADMIN_KEY" if self._token is None else "see CRESTGATE_ADMIN_KEY, or --token"
            raise ConfigError(f"{self.title}: {detail} ({remedy}; {MAKE_KEY})") from None
        if status >= 500 or status == 429:
            raise StoreError(f"{self.title}: {detail}") from None
        raise ConfigError(f"{self.title}: {detail}") from None


def remote_service(url: str | None, token: str | None, **local_options: str | None) -> ServiceClient | None:
    """The service of --url, else of CRESTGATE_URL unless an option names a local store or file."""
    others = [f"--{name.replace('_', '-')}" for name, value in local_options.items() if value]
    if url and others:
        raise ConfigError(f"--url uses a service, which has its own stores and settings: leave {others[0]} out")
    address = url or ("" if others else os.environ.get("CRESTGATE_URL", "").strip())
    if not address:
        if token:
            raise ConfigError("--token is the key of a service: write its --url, or set CRESTGATE_URL")
        return None
    return ServiceClient(address, _key(token))


def _key(option: str | None) -> str | None:
    """The key to send."""
    token = (option or os.environ.get("CRESTGATE_ADMIN_KEY", "")).strip()
    if not token.isascii() or not token.isprintable() or " " in token:
        where = "--token" if option else "CRESTGATE_ADMIN_KEY"
        raise ConfigError(f"{where} is not a key: a key is printable ASCII without spaces")
    return token or None


def _check_url(url: str) -> str:
    """The address without a trailing slash; ConfigError if it is invalid."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), 0
    if "@" in parts.netloc:
        raise ConfigError("the URL of a service must not have a user or password: set CRESTGATE_ADMIN_KEY to its key")
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or parts.query or parts.fragment:
        given = url if "@" not in url and url.isprintable() else "this text"
        raise ConfigError(f"the URL of a service must be such as {EXAMPLE}, not {given!r}")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigError(f"the URL of a service must be ASCII without spaces, such as {EXAMPLE}")
    return url.rstrip("/")


def _parse(text: bytes) -> dict[str, Any] | None:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _reason(error: object) -> str:
    if isinstance(error, TimeoutError):
        return f"no response within {TIMEOUT:g} s"
    reason = error.strerror if isinstance(error, OSError) else None
    return reason or str(error) or type(error).__name__
