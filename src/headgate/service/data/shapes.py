"""The shapes of the data plane's JSON. Apart from what is done with them, which is compiled, as these cannot be."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

__all__ = ["Answer", "BatchBody", "CheckBody", "ContextBody", "VerifyBody"]

Name = Annotated[str, msgspec.Meta(min_length=1)]


class ContextBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """The request that a check is about, in the words of the library's RequestContext."""

    ip: Name | None = None
    user: Name | None = None
    api_key: Name | None = None
    client: Name | None = None
    path: str | None = None
    method: Name | None = None
    tier: Name | None = None
    key: Name | None = None


class CheckBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One check. Which of its fields belong together is for `prepare` to say."""

    dimension: str | None = None
    identifier: str | None = None
    endpoint: str | None = None
    method: str | None = None
    context: ContextBody | None = None
    key: str | None = None
    plans: list[str] | None = None
    cost: int = 1
    timestamp: float | None = None


class BatchBody(msgspec.Struct, forbid_unknown_fields=True):
    checks: list[CheckBody]


class VerifyBody(msgspec.Struct, forbid_unknown_fields=True):
    """A check in the words of the client family."""

    clientId: Name  # noqa: N815 - as it is spelled
    apiName: str | None = None  # noqa: N815
    methodName: Name | None = None  # noqa: N815


class Answer(msgspec.Struct):
    """The numbers of one decision, or of one of its parts."""

    allowed: bool
    limit: int
    remaining: int
    current_count: int
    reset_at: int
    """Unix seconds, rounded up."""
    reset_after: float
    retry_after: float | None
    """Seconds; null when allowed, and when no waiting helps."""
    reason: str
    rule: str | None
    state: str
    delay: float
    queue_position: int | UnsetType = UNSET
    parts: list[Answer] | UnsetType = UNSET
    shadows: list[Answer] | UnsetType = UNSET
