"""Lists the counters of a store, for reports. Only Redis and SQL can: others keep digests, or belong to one process."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import unquote_to_bytes

from crestgate.errors import StoreError
from crestgate.runtime.url_options import REDIS_SCHEMES, SQL_SCHEMES, Options

__all__ = ["list_counters"]

TIMEOUT = 10.0
"""Seconds for each answer."""
PAGE = 1000


def list_counters(url: str) -> Iterator[tuple[str, str]] | None:
    """The name and the key of each counter of a store URL; None if that store cannot list them. StoreError while it is
    read, if that fails."""
    options = Options(url)
    if options.scheme in REDIS_SCHEMES:
        return _redis(options)
    return _sql(options) if options.scheme in SQL_SCHEMES else None


def _redis(options: Options) -> Iterator[tuple[str, str]]:
    from crestgate.databases.redis_client import FAILURES, describe_error, open_client
    from crestgate.stores.redis.codec import escape

    client, address = open_client(options, TIMEOUT)
    prefix = escape(options.prefix()) + b":"
    pattern = b"".join(b"\\" + bytes([byte]) if byte in b"*?[]^\\" else bytes([byte]) for byte in prefix) + b"*"
    try:
        for key in client.scan_iter(match=pattern, count=PAGE):
            rest = key[len(prefix) :]
            if rest.startswith(b"{"):  # the hash tag of a cluster
                rest = rest.partition(b"}:")[2]
            name, colon, subject = rest.partition(b":")
            if colon and name != b"%once":
                yield _text(unquote_to_bytes(name)), _text(subject)
    except FAILURES as error:
        raise StoreError(f"{address}: {describe_error(error)}") from None
    finally:
        client.close()


def _sql(options: Options) -> Iterator[tuple[str, str]]:
    from sqlalchemy import select
    from sqlalchemy.exc import SQLAlchemyError

    from crestgate.databases.engines import clock_of, open_engine
    from crestgate.stores.sql.factory import open_driver
    from crestgate.stores.sql.schema import counters

    prefix = options.prefix().encode("utf-8", "surrogatepass")
    driver = open_driver(options)
    engine = open_engine(driver, TIMEOUT, 1)
    live = select(counters.c.id, counters.c.name, counters.c.subject).where(
        counters.c.prefix == prefix, counters.c.algorithm != "", counters.c.expires_us > clock_of(engine)
    )
    after = b""
    try:
        while True:
            with engine.connect() as connection:
                page = live.where(counters.c.id > after).order_by(counters.c.id).limit(PAGE)
                rows = connection.execute(page).fetchall()
            for row in rows:
                yield _text(row.name), _text(row.subject)
            if len(rows) < PAGE:
                return
            after = rows[-1].id
    except (SQLAlchemyError, OSError) as error:
        cause = getattr(error, "orig", None) or error
        raise StoreError(f"{driver.name}: {cause}") from None
    finally:
        engine.dispose()


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")
