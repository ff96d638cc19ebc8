"""Settings of more than one store: a migration, and stores that rules name.

migrate: {from: mysql://…, to: redis://…, percent: 25}     # or rules: [orders-per-user], endpoints: [/api/v1/orders/*]
stores: {hot: redis://…}                                   # for rules with `store: hot`
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from crestgate.config.section import section
from crestgate.config.urls import read_store
from crestgate.core.store_names import STORE_NAME, unknown_store
from crestgate.errors import ConfigError, Problem
from crestgate.loader.fields import Fields, describe
from crestgate.stores.spec import Migration, NamedStores, StoreSpec, Urls

__all__ = ["MIGRATE", "read_stores", "unknown_stores"]

MIGRATE = ("from", "to", "percent", "rules", "endpoints")
MAX_STORES = 32


def read_stores(fields: Fields, default: str) -> StoreSpec:
    """The store of `store` or `migrate`, and those of `stores`."""
    urls = read_store(fields, "store", default)
    migration = _migration(fields, urls)
    named = _named(fields)
    return NamedStores(migration or urls, named) if named else migration or urls


def unknown_stores(used: Iterable[tuple[str, Problem]], fields: Fields) -> list[Problem]:
    """The problems of rules that name a store which there is not."""
    stores = fields.values.get("stores")
    names = [str(name) for name in stores] if isinstance(stores, dict) else []
    return [problem._replace(message=unknown_store(name, names)) for name, problem in used if name not in names]


def _migration(fields: Fields, store: Urls) -> Migration | None:
    if fields.values.get("migrate") is None:
        return None
    before = len(fields.problems.entries)
    inner = section(fields, "migrate", MIGRATE)
    if not isinstance(fields.values["migrate"], dict):
        return None
    for name in ("from", "to"):
        if not inner.has(name):
            inner.report(name, "is missing: write the URL of a store, such as redis://host:6379/0")
    source, to = (read_store(inner, name, "memory://") for name in ("from", "to"))
    if fields.has("store") and inner.has("from") and store != source:
        fields.report("store", "must be the same as migrate.from, or left out: migrate says where counters are")
    if not any(inner.has(name) for name in ("percent", "rules", "endpoints")):
        inner.report("percent", "is missing: write 0 to begin with, or rules or endpoints to move those alone")
    rules, endpoints = (_names(inner, name) for name in ("rules", "endpoints"))
    percent = inner.values["percent"] if inner.has("percent") else 100
    if len(fields.problems.entries) > before:
        return None
    try:
        return Migration(source, to, percent, rules, endpoints)
    except ConfigError as error:
        inner.report({"source": "from"}.get(error.field or "", error.field or "to"), error.reason)
        return None


def _names(inner: Fields, name: str) -> Sequence[str]:
    value = inner.values.get(name)
    if value is None:
        return ()
    if not isinstance(value, list) or not value or not all(isinstance(one, str) and one for one in value):
        example = "[orders-per-user]" if name == "rules" else "[/api/v1/orders/*]"
        inner.report(name, f"must be a list such as {example}, not {describe(value)}")
        return ()
    return tuple(value)


def _named(fields: Fields) -> dict[str, Urls]:
    value = fields.values.get("stores")
    if value is None:
        return {}
    if not isinstance(value, dict):
        fields.report("stores", f"must be a mapping such as {{hot: redis://host:6379/0}}, not {describe(value)}")
        return {}
    if len(value) > MAX_STORES:
        fields.report("stores", f"has {len(value)} stores; the maximum is {MAX_STORES}")
        return {}
    inner = Fields(value, fields.path("stores"), fields.problems, value)
    named: dict[str, Urls] = {}
    for name, url in value.items():
        if not isinstance(name, str) or not re.fullmatch(STORE_NAME, name):
            fields.report("stores", f"{describe(name)} is no name: write letters, digits, '_' and '-', such as hot")
        elif url is None:
            inner.report(name, "is missing: write the URL of a store, such as redis://host:6379/0")
        else:
            named[name] = read_store(inner, name, "memory://")
    return named
