# ruff: noqa: N815 - the field names of these APIs
"""OpenAPI models of `/admin` and `/ratelimiter`, whose field names are those of other programs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from crestgate.service.admin.models import Count, Model

__all__ = [
    "ClientLimits",
    "ClientOfLimits",
    "Configuration",
    "KeyMetrics",
    "LimitNames",
    "PolicyBody",
    "PolicyNumbers",
    "PolicyResponse",
    "Status",
    "WriteResult",
]

PolicyType = Literal["TOKEN_BUCKET", "SLIDING_WINDOW"]
LimitType = Literal["DEFAULT", "API", "METHOD"]
TimeUnit = Literal["SEC", "MIN", "HOUR", "DAY"]


# -- /admin ---------------------------------------------------------------------------------------------------------


class Status(Model):
    status: Annotated[Literal["OK", "DEGRADED"], Field(description="DEGRADED while there are problems.")]
    version: str
    uptimeSeconds: Annotated[int, Field(ge=0)]
    stores: Annotated[list[str], Field(description="The stores of counters and rules.")]
    problems: list[str]


class KeyMetrics(Model):
    key: str
    algorithm: Annotated[str, Field(description="TOKEN_BUCKET, SLIDING_WINDOW, or another algorithm of a rule.")]
    currentTokens: Annotated[Count, Field(description="Remaining quota.")]
    capacity: Count
    windowRequestCount: Annotated[Count, Field(description="capacity − currentTokens.")]
    windowSeconds: float
    status: Literal["OK", "WARNING", "THROTTLED"]


class PolicyNumbers(Model):
    """The numbers of a policy; its key is in the path."""

    key: str | None = None
    type: PolicyType | None = None
    capacity: Annotated[int | None, Field(ge=1)] = None
    refillRate: Annotated[int | None, Field(ge=1, description="Tokens per second (TOKEN_BUCKET).")] = None
    windowSeconds: Annotated[int | None, Field(ge=1, description="The window (SLIDING_WINDOW).")] = None


class PolicyBody(PolicyNumbers):
    """A policy in a request. Defaults: TOKEN_BUCKET, 100, 10, 60."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"key": "user-123", "type": "TOKEN_BUCKET", "capacity": 100, "refillRate": 10, "windowSeconds": 60}
            ]
        },
    )

    key: str


class PolicyResponse(Model):
    id: Count
    policyKey: str
    type: PolicyType
    capacity: int
    refillRate: int
    windowSeconds: int


# -- /ratelimiter ---------------------------------------------------------------------------------------------------


class Interval(Model):
    timeUnit: TimeUnit
    maxRequests: Count


class LimitName(Model):
    limitType: LimitType
    limitName: Annotated[
        str | None,
        Field(description="GLOBAL for DEFAULT; the API's name, or a path pattern such as `/web/*`; or the method."),
    ] = None


class LimitBody(LimitName):
    timeIntervalLimit: Interval


class Configuration(Model):
    """Limits of a client, each a token bucket. Others are not changed."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "clientId": "client123",
                    "limits": [
                        {
                            "limitType": "DEFAULT",
                            "limitName": "GLOBAL",
                            "timeIntervalLimit": {"timeUnit": "SEC", "maxRequests": 2},
                        },
                        {
                            "limitType": "API",
                            "limitName": "/web/test",
                            "timeIntervalLimit": {"timeUnit": "HOUR", "maxRequests": 60},
                        },
                    ],
                }
            ]
        },
    )

    clientId: str
    limits: list[LimitBody]


class LimitNames(Model):
    """Names of limits of a client."""

    clientId: str
    limits: list[LimitName]


class LimitResponse(Model):
    limitType: LimitType
    limitName: str
    timeIntervalLimit: Interval


class ClientOfLimits(Model):
    """A configured client."""

    clientId: str
    limits: list[LimitResponse]


class LiveLimit(Model):
    limitType: LimitType
    limitName: str
    timeIntervalLimit: Annotated[
        Interval | None, Field(description="null for a default limit whose period is not one of the units.")
    ]
    availablePermits: Count
    maxPermits: Count
    lastRequestTimeStamp: Annotated[
        int | None,
        Field(
            description="When this limit last counted a request of the client, in ms since 1970; null if not in the "
            "last 30 days."
        ),
    ]


class ClientLimits(Model):
    clientId: str
    limits: list[LiveLimit]


class WriteResult(Model):
    status: Literal["SUCCESS"]
    message: str
