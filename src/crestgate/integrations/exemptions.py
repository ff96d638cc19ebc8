"""Requests that a layer does not limit: by path, by address, or by a callable.

A path is exempt only if all its possible readings are: `/healthz/../admin` must not bypass a limit on `/admin`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from crestgate.errors import ConfigError
from crestgate.http.client_address import UNIX, Networks
from crestgate.integrations.keys import with_one_argument
from crestgate.integrations.request import Request
from crestgate.rules.matching.paths import readings
from crestgate.rules.matching.patterns import parse_pattern
from crestgate.rules.matching.trie import Trie, TrieEditor

__all__ = ["Exempt", "build_exemption", "is_preflight"]

Exempt: TypeAlias = "Callable[..., Any] | str | Iterable[str] | None"
"""The type of `exempt=`: paths and patterns (`/healthz`, `/static/*`), networks (`10.0.0.0/8`), or a callable."""


def build_exemption(exempt: Exempt) -> Callable[[Any], Any] | None:
    """A function that tells whether a request is exempt; None when none ever is."""
    if exempt is None:
        return None
    if callable(exempt):
        return with_one_argument(exempt)
    if not isinstance(exempt, Iterable):
        raise ConfigError(f"exempt must be a callable, or a list of paths and networks, not {exempt!r}")
    texts = [exempt] if isinstance(exempt, str) else list(exempt)
    for text in texts:
        if not isinstance(text, str):
            raise ConfigError(f"exempt lists paths such as /healthz and networks such as 10.0.0.0/8, not {text!r}")
        if text and text[0] != "/" and not text[0].isdigit() and ":" not in text and text != UNIX:
            raise ConfigError(f"exempt has {text!r}, which is not a network: if it is a path, write {'/' + text!r}")
    paths: TrieEditor[bool] = TrieEditor(Trie())
    for text in texts:
        if text.startswith("/"):
            paths.put(parse_pattern(text), True)
    trie = paths.done()
    networks = Networks([text for text in texts if not text.startswith("/")])

    def exempted(request: Request) -> bool:
        if networks and request.address in networks:
            return True
        paths_read = readings(request.path)  # empty for the * of OPTIONS, which is no path
        return bool(paths_read) and all(trie.matches(reading) for reading in paths_read)

    return exempted


def is_preflight(request: Request) -> bool:
    """Whether this is a CORS preflight request. No handler of the application answers it, and denying it would hide
    from the page why the actual request is denied."""
    if request.method != "OPTIONS":
        return False
    headers = request.headers
    return "origin" in headers and "access-control-request-method" in headers
