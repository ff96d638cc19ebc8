"""Validation of store URLs, without connecting."""

from __future__ import annotations

from crestgate.errors import ConfigError
from crestgate.loader.fields import Fields, describe
from crestgate.runtime.file_locks import NEEDS_LINUX, has_shared_memory
from crestgate.runtime.url_options import REDIS_SCHEMES, SQL_SCHEMES, Options, redact_url
from crestgate.stores.factory import is_store_scheme, open_store
from crestgate.stores.spec import StoreSpec, store_urls

__all__ = ["check_service_store", "read_rules_store", "read_store"]

SERVICES = ("crestgate:", "crestgates:")
_DATABASES = (
    "sqlite:///file, redis://host:6379/0, mysql://user:password@host/database or "
    "postgresql://user:password@host/database"
)


def read_store(fields: Fields, name: str, default: str) -> str | tuple[str, ...]:
    """A URL, or a list of them for a sharded store."""
    value = fields.values.get(name)
    if value is None:
        return default
    if not isinstance(value, list):
        return value if _is_valid(fields, name, value) else default
    if not value:
        fields.report(name, "is an empty list: write a URL, or leave it out")
        return default
    addresses: dict[str, str] = {}
    for index, url in enumerate(value):
        path = f"{name}[{index}]"
        if _is_valid(fields, path, url) and not url.lower().startswith("memory:"):  # each is a separate store
            first = addresses.setdefault(Options(url).address(), path)
            if first != path:
                fields.report(path, f"is the same store as {first}: list it once")
    return tuple(value)


def check_service_store(store: StoreSpec) -> None:
    """ConfigError if a store is another service, which stores no idempotency records."""
    for url in store_urls(store):
        if url.lower().startswith(SERVICES):
            raise ConfigError(
                f"store: {redact_url(url)!r} is a service itself, which clients should call directly: name the store "
                "that it uses (redis://…, mysql://…), or write mode: embedded if the limiter runs inside a program"
            )


def read_rules_store(fields: Fields, name: str) -> str | None:
    """The URL of a database for rules, or None."""
    value = fields.values.get(name)
    if value is None:
        return None
    if isinstance(value, str) and not is_store_scheme(value.partition("://")[0]):
        fields.report(name, f"rules cannot be stored in {redact_url(value)!r}: write {_DATABASES}")
        return None
    if not _is_valid(fields, name, value):
        return None
    if value.partition(":")[0].lower() not in (*SQL_SCHEMES, *REDIS_SCHEMES):
        fields.report(name, f"rules cannot be stored in {redact_url(value)!r}: write {_DATABASES}")
        return None
    return str(value)


def _is_valid(fields: Fields, name: str, url: object) -> bool:
    if not isinstance(url, str):
        fields.report(name, f"must be a store URL such as redis://host:6379/0, not {describe(url)}")
        return False
    try:
        _check(url)
    except ConfigError as error:
        fields.report(name, str(error))
        return False
    return True


def _check(url: str) -> None:
    if not url.lower().startswith("shared:"):
        open_store(url).close()  # opens nothing: remote stores connect on first use
        return
    if not has_shared_memory():
        raise ConfigError(NEEDS_LINUX)
    options = Options(url)  # opening this one would create its file
    options.allow("max_keys")
    options.integer("max_keys", None, 10**8)
    options.prefix()
    options.timeout_ms(100)
    options.pool_size()
