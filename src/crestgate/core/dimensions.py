"""The dimensions that a rule can limit by: one table for the reader, the resolver, the APIs and the documentation.

A new one is a row here, a field of `RequestContext` (core/context.py), the same field in rules/evaluator.py
(`context_fields`) and service/checks/schemas.py, and in proto/crestgate/v1/rate_limiter.proto (then run
`python proto/compile.py`). Frameworks and proxies fill it where they can.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["DIMENSIONS", "DIMENSION_NAMES", "DIMENSION_SPELLINGS", "IDENTIFIED", "Dimension", "parse_dimension"]


class Dimension(NamedTuple):
    """One dimension."""

    name: str
    """As rules, counters and metrics spell it."""
    attribute: str | None
    """The field of a RequestContext that holds its value; None if every request has it."""
    description: str
    no_identifier: str | None = None
    """Why no rule of this dimension has an identifier, and what to write instead; None where rules can have one."""

    @property
    def enum_name(self) -> str:
        """As checks and gRPC spell it: `API_KEY`."""
        return (self.name if self.no_identifier or self.attribute is None else self.attribute).upper()


DIMENSIONS: Final = (
    Dimension("user", "user", "A user, with a tier."),
    Dimension("apikey", "api_key", "An API key, which is a secret."),
    Dimension("client", "client", "A client application."),
    Dimension("ip", "ip", "An IP address; of IPv6 its /64 network."),
    Dimension("key", "key", "An opaque key that the caller names: policies."),
    Dimension("api", "path", "An endpoint, whoever calls it.", "write the path as endpoint_pattern"),
    Dimension("global", None, "All requests together.", "it counts all callers together"),
)
"""In the order in which a request's chain of limits has them."""
DIMENSION_NAMES: Final = tuple([dimension.name for dimension in DIMENSIONS])
DIMENSION_SPELLINGS: Final = {text: one.name for one in DIMENSIONS for text in (one.name, one.enum_name)}
"""Names by their usual spellings; `parse_dimension` knows all."""
IDENTIFIED: Final = tuple([dimension for dimension in DIMENSIONS if dimension.no_identifier is None])
"""Those whose rules can be for one identifier."""


def parse_dimension(text: str) -> str:
    """A dimension's name, from any spelling.

    >>> parse_dimension("API_KEY"), parse_dimension("User")
    ('apikey', 'user')
    """
    return text.lower().replace("_", "").replace("-", "")
