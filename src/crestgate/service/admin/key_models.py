"""The OpenAPI models of `/api/v1/keys`."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from crestgate.service.admin.models import Model, Next, Timestamp
from crestgate.service.auth.keys import MAX_NAME, Scope

__all__ = ["KEY_MODELS", "KeyBody", "KeyPage", "KeyRotation", "NewKey", "RotatedKey"]

ExpiresAt = Annotated[
    str | float | None,
    Field(description="RFC 3339 or unix seconds, in the future, and no later than the expiry of the key that is used."),
]


class KeyBody(Model):
    """A key in a request."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"name": "ci", "scope": "write", "expires_at": "2030-01-31T12:00:00Z"}]},
    )

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME, description="Printable characters.")]
    scope: Annotated[Scope, Field(description="Each includes those before.")] = "check"
    expires_at: ExpiresAt = None


class KeyRotation(Model):
    """How a key is replaced."""

    grace_seconds: Annotated[float, Field(ge=0, description="How long the old token still works.")] = 3600
    expires_at: ExpiresAt = None


class KeyEntry(Model):
    """A key without its token."""

    key_id: Annotated[str, Field(description="12 hexadecimal digits; they are also in the token.")]
    name: str
    scope: Scope
    created_at: Timestamp
    expires_at: Annotated[Timestamp | None, Field(description="null: never. An expired key is removed a day later.")]


class NewKey(KeyEntry):
    """A key with its token."""

    token: Annotated[str, Field(description="Shown this once: only a digest of it is stored.")]


class RotatedKey(NewKey):
    """A key that replaces another."""

    replaces: KeyEntry


class KeyPage(Model):
    keys: list[KeyEntry]
    next: Next


KEY_MODELS: Final[tuple[type[BaseModel], ...]] = (KeyBody, KeyRotation)
