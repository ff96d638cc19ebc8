"""`crestgate keys` by the HTTP API of a running service."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from crestgate.cli.remote import ServiceClient
from crestgate.rules.timestamps import format_timestamp

__all__ = ["ServiceKeys"]

PATH = "/api/v1/keys"
MAX_PAGE = 1000
TEXTS = ("key_id", "name", "scope", "created_at")


class ServiceKeys:
    """The keys of a service, as its API returns them."""

    def __init__(self, service: ServiceClient) -> None:
        self._service = service

    def create(self, name: str, scope: str, expires_us: int | None) -> dict[str, Any]:
        body = {"name": name, "scope": scope, "expires_at": format_timestamp(expires_us)}
        return self._checked(self._service.post(PATH, body), "token")

    def list(self) -> list[dict[str, Any]]:
        """The oldest first."""
        found: list[dict[str, Any]] = []
        after: str | None = ""
        while after is not None:
            page = self._service.get(PATH, limit=MAX_PAGE, after=after)
            keys = page.get("keys")
            if not isinstance(keys, list):
                raise self._service.unexpected("its response does not list keys")
            found += [self._checked(key) for key in keys]
            after = page.get("next")
        return sorted(found, key=lambda key: (key["created_at"], key["key_id"]))

    def revoke(self, key_id: str) -> None:
        self._service.delete(f"{PATH}/{quote(key_id, safe='')}")

    def rotate(self, key_id: str, grace_us: int, expires_us: int | None) -> dict[str, Any]:
        body = {"grace_seconds": grace_us / 1_000_000, "expires_at": format_timestamp(expires_us)}
        return self._checked(self._service.post(f"{PATH}/{quote(key_id, safe='')}/rotate", body), "token", "replaces")

    def _checked(self, data: Any, *more: str) -> dict[str, Any]:
        if (
            not isinstance(data, dict)
            or not data.keys() >= {*TEXTS, "expires_at", *more}
            or not all(isinstance(data[name], str) for name in TEXTS)
            or not isinstance(data["expires_at"], str | None)
        ):
            raise self._service.unexpected("its response is not a key")
        return data
