"""A running service, asked over HTTP instead of stores and databases: `--url`, or HEADGATE_URL.

Its answers are data, and its refusals (problem+json) become the errors that the same mistake has without a service, so
a command says them in the same words and ends with the same exit code. A key is sent to the address that was written
and nowhere else: redirects are errors.
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

from headgate.errors import ConfigError, Conflict, HeadgateError, NotFound, Stale, StoreError

__all__ = ["Service", "service_of"]

TIMEOUT = 10.0
"""Seconds for an answer to begin, and for each piece of it."""
MOST_BYTES = 64 * 1024 * 1024
MAKE_KEY = "to make a key, run `headgate keys create NAME --scope read` on the service's machine, in its folder"
EXAMPLE = "http://127.0.0.1:8080"
_ERRORS: Mapping[int, type[HeadgateError]] = {404: NotFound, 409: Conflict, 412: Stale}


class _NoRedirects(HTTPRedirectHandler):
    """Hands a redirect on as the error it is here: whoever it leads to would be sent the key."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class Service:
    """A service, and the key that is sent to it."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.title = _checked(url)
        self._token = token
        self._open = build_opener(_NoRedirects).open

    def get(self, path: str, **query: str | int) -> dict[str, Any]:
        return self._ask("GET", f"{path}?{urlencode(query, quote_via=quote)}" if query else path)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._ask("POST", path, body)

    def put(self, path: str, body: Mapping[str, Any], version: int | None = None) -> dict[str, Any]:
        """With a version: only what is at that version still is replaced, else Stale."""
        return self._ask("PUT", path, body, version)

    def delete(self, path: str, version: int | None = None) -> None:
        self._ask("DELETE", path, version=version)

    def odd(self, what: str) -> StoreError:
        """An answer that is none of Headgate's."""
        return StoreError(f"{self.title}: {what}: is this the address of a Headgate service?")

    def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, version: int | None = None
    ) -> dict[str, Any]:
        headers = {"Accept": "application/json", "User-Agent": "headgate-cli"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        if version is not None:
            headers["If-Match"] = f'"{version}"'
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = json.dumps(body).encode()
        # The scheme was looked at: it is http or https.
        request = Request(self.title + path, data, headers, method=method)  # noqa: S310
        try:
            with self._open(request, timeout=TIMEOUT) as response:
                text, status = response.read(MOST_BYTES), response.status
        except HTTPError as error:
            with error:
                self._refused(error)
        except URLError as error:
            raise StoreError(f"{self.title} cannot be reached: {_reason(error.reason)}") from None
        except (OSError, http.client.HTTPException) as error:
            raise StoreError(f"{self.title} did not answer: {_reason(error)}") from None
        if status == 204:
            return {}
        answer = _parsed(text)
        if answer is None:
            raise self.odd("what it answered is no JSON object")
        return answer

    def _refused(self, error: HTTPError) -> NoReturn:
        """What the service says is wrong, as an error of ours."""
        try:
            problem = _parsed(error.read(MOST_BYTES))
        except (OSError, http.client.HTTPException):
            problem = None
        detail = None if problem is None else problem.get("detail")
        if not isinstance(detail, str):
            raise self.odd(f"it answered {error.code} {error.reason}") from None
        status = error.code
        kind = _ERRORS.get(status)
        if kind is not None:
            raise kind(detail) from None
        if status == 401:
            advice = "set HEADGATE_ADMIN_KEY" if self._token is None else "see HEADGATE_ADMIN_KEY, or --token"
            raise ConfigError(f"{self.title}: {detail} ({advice}; {MAKE_KEY})") from None
        if status >= 500 or status == 429:
            raise StoreError(f"{self.title}: {detail}") from None
        raise ConfigError(f"{self.title}: {detail}") from None


def service_of(url: str | None, token: str | None, **places: str | None) -> Service | None:
    """The service to ask, if one is: by --url, else by HEADGATE_URL unless an option names another place."""
    others = [f"--{name.replace('_', '-')}" for name, value in places.items() if value]
    if url and others:
        raise ConfigError(f"--url asks a service, which has stores and settings of its own: leave {others[0]} out")
    address = url or ("" if others else os.environ.get("HEADGATE_URL", "").strip())
    if not address:
        if token:
            raise ConfigError("--token is the key of a service: write its --url, or set HEADGATE_URL")
        return None
    return Service(address, _key(token))


def _key(option: str | None) -> str | None:
    """The key to send, which is never shown."""
    token = (option or os.environ.get("HEADGATE_ADMIN_KEY", "")).strip()
    if not token.isascii() or not token.isprintable() or " " in token:
        where = "--token" if option else "HEADGATE_ADMIN_KEY"
        raise ConfigError(f"{where} is no key: a key is of ASCII letters, digits and signs, without blanks")
    return token or None


def _checked(url: str) -> str:
    """The address without a slash at its end; ConfigError for what is none."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), 0
    if "@" in parts.netloc:
        raise ConfigError("the URL of a service has no user and no password: set HEADGATE_ADMIN_KEY to its key")
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or parts.query or parts.fragment:
        told = url if "@" not in url and url.isprintable() else "what was given"
        raise ConfigError(f"the URL of a service is one such as {EXAMPLE}, not {told!r}")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigError(f"the URL of a service is of ASCII characters without blanks, such as {EXAMPLE}")
    return url.rstrip("/")


def _parsed(text: bytes) -> dict[str, Any] | None:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _reason(error: object) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {TIMEOUT:g} s"
    words = error.strerror if isinstance(error, OSError) else None
    return words or str(error) or type(error).__name__
