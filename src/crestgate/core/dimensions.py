"""The dimensions that a rule can limit by: one table for the reader, the resolver, the APIs and the documentation.

A new one is a row here, a field of `RequestContext` (core/context.py), the same field in rules/evaluator.py
(`context_fields`) and service/checks/schemas.py, and in proto/crestgate/v1/rate_limiter.proto (then run
`python proto/compile.py`). Frameworks and proxies fill it where they can.

Programs add dimensions of their own without a change here: the attributes of a request (`org`, `model`). A rule can
also count by several dimensions together, a *composite* one. It is written as a list, and its name here is the names of
its parts joined by commas: `org,model`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

__all__ = [
    "ATTRIBUTE_PATTERN",
    "DIMENSIONS",
    "DIMENSION_NAMES",
    "DIMENSION_SPELLINGS",
    "IDENTIFIED",
    "MAX_ATTRIBUTES",
    "MAX_PARTS",
    "Dimension",
    "dimension_order",
    "is_attribute_name",
    "join_parts",
    "parse_dimension",
    "parse_dimensions",
    "split_parts",
]

MAX_ATTRIBUTES: Final = 16
"""Of one request."""
MAX_PARTS: Final = 8
"""Of a composite dimension."""
ATTRIBUTE_PATTERN: Final = "[a-z][a-z0-9_]{0,31}"
SEPARATOR: Final = ","


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


def is_attribute_name(name: str) -> bool:
    """Whether it can be the name of an attribute. No spelling of a built-in dimension can.

    >>> is_attribute_name("org"), is_attribute_name("Org"), is_attribute_name("api_key")
    (True, False, False)
    """
    return re.fullmatch(ATTRIBUTE_PATTERN, name) is not None and parse_dimension(name) not in DIMENSION_NAMES


def dimension_order(name: str) -> tuple[int, str]:
    """Sorts the parts of a composite dimension: built-in ones first, in their order, then attributes by name."""
    return (DIMENSION_NAMES.index(name) if name in DIMENSION_NAMES else len(DIMENSION_NAMES)), name


def parse_dimensions(text: str) -> str:
    """A dimension's name as slots have it, from any spelling; several, separated by commas, are a composite one.

    >>> parse_dimensions("API_KEY"), parse_dimensions("org, Model"), parse_dimensions("model,user")
    ('apikey', 'model,org', 'user,model')
    """
    names = [name.strip() for name in text.split(SEPARATOR)]
    parsed = [parse_dimension(name) if parse_dimension(name) in DIMENSION_NAMES else name.lower() for name in names]
    return SEPARATOR.join(sorted(parsed, key=dimension_order))


def join_parts(parts: Iterable[str]) -> str:
    """The parts of a composite dimension or identifier as one text. Different parts never make the same text.

    >>> join_parts(["acme", "*"]), join_parts(["a,b", "100%"])
    ('acme,*', 'a%2Cb,100%25')
    """
    return SEPARATOR.join([part.replace("%", "%25").replace(SEPARATOR, "%2C") for part in parts])


def split_parts(text: str) -> tuple[str, ...]:
    """The parts of such a text.

    >>> split_parts("a%2Cb,100%25")
    ('a,b', '100%')
    """
    return tuple([part.replace("%2C", SEPARATOR).replace("%25", "%") for part in text.split(SEPARATOR)])
