"""Whether a store URL can be used, as far as that can be told without going there."""

from __future__ import annotations

from headgate.errors import ConfigError
from headgate.reading.fields import Fields, kind_of
from headgate.stores.options import Options, masked
from headgate.stores.url import is_store_scheme, open_store

__all__ = ["check_serving", "read_rules_store", "read_store"]

NO_DATABASES = ("memory", "shared", "headgate", "headgates")
SERVICES = ("headgate:", "headgates:")
_DATABASES = (
    "sqlite:///file, redis://host:6379/0, mysql://user:password@host/database or "
    "postgresql://user:password@host/database"
)


def read_store(fields: Fields, name: str, default: str) -> str | tuple[str, ...]:
    """A URL, or several: one store in as many places. What is wrong has the default, and is noted."""
    value = fields.values.get(name)
    if value is None:
        return default
    if not isinstance(value, list):
        return value if _good(fields, name, value) else default
    if not value:
        fields.wrong(name, "is an empty list: write a URL, or leave it out")
        return default
    addresses: dict[str, str] = {}
    for position, url in enumerate(value):
        way = f"{name}[{position}]"
        if _good(fields, way, url) and not url.lower().startswith("memory:"):  # each of those is its own
            first = addresses.setdefault(Options(url).address(), way)
            if first != way:
                fields.wrong(way, f"is the same store as {first}: list it once")
    return tuple(value)


def check_serving(store: str | tuple[str, ...]) -> None:
    """ConfigError for a store that a service cannot have: another service keeps no records of its callers' repeats."""
    for url in (store,) if isinstance(store, str) else store:
        if url.lower().startswith(SERVICES):
            raise ConfigError(
                f"store: {masked(url)!r} is a service itself, and clients are to ask it directly: name the store that "
                "it uses (redis://…, mysql://…), or write mode: embedded where the limiter is inside a program"
            )


def read_rules_store(fields: Fields, name: str) -> str | None:
    """The URL of a database for rules, or None."""
    value = fields.values.get(name)
    if value is None:
        return None
    if isinstance(value, str) and not is_store_scheme(value.partition("://")[0]):
        fields.wrong(name, f"rules cannot be kept in {masked(value)!r}: write {_DATABASES}")
        return None
    if not _good(fields, name, value):
        return None
    if value.partition(":")[0].lower() in NO_DATABASES:
        fields.wrong(
            name,
            f"rules are not kept in {masked(value)!r}: write {_DATABASES}",
        )
        return None
    return str(value)


def _good(fields: Fields, name: str, url: object) -> bool:
    if not isinstance(url, str):
        fields.wrong(name, f"must be a store URL such as redis://host:6379/0, not {kind_of(url)}")
        return False
    try:
        _check(url)
    except ConfigError as error:
        fields.wrong(name, str(error))
        return False
    return True


def _check(url: str) -> None:
    if not url.lower().startswith("shared:"):
        open_store(url).close()  # memory has nothing to open, and the others connect at their first use
        return
    options = Options(url)  # to open this one is to make its file
    options.allow("max_keys")
    options.whole("max_keys", None, 10**8)
    options.prefix()
    options.timeout_ms(100)
    options.pool_size()
