"""What a store is given as: a URL, a list of URLs, a migration between two, or several by name. Nothing is opened.

`open_store` of factory.py opens any of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from crestgate.errors import ConfigError
from crestgate.runtime.url_options import Options, redact_url

if TYPE_CHECKING:
    from crestgate.stores.migrating.share import Share

__all__ = ["Migration", "NamedStores", "StoreSpec", "Urls", "store_urls"]

Urls: TypeAlias = "str | Sequence[str]"
"""A store URL, or a list of them for a sharded store."""
SERVICES = ("crestgate://", "crestgates://")


@dataclass(frozen=True, slots=True, repr=False)
class Migration:
    """Counters move from one store to another, `percent` of the subjects so far, with what they have used.

    Of certain rules only, if `rules` (each by its rule_id) or `endpoints` (rules with these endpoint patterns, or below
    them) are given. See docs/migration.md for how to change the percentage of several instances.

    >>> Migration("mysql://app:secret@db/limits", "redis://cache:6379/0", percent=25)
    Migration('mysql://app:***@db/limits', 'redis://cache:6379/0', percent=25)
    """

    source: Urls
    to: Urls
    percent: float = 100
    rules: Sequence[str] = ()
    endpoints: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("source", "to"):
            urls = store_urls(getattr(self, name))
            if not urls or not all(isinstance(url, str) for url in urls):
                raise ConfigError.of(name, "must be a store URL such as redis://host:6379/0, or a list of them")
            for url in urls:
                if url.lower().startswith(SERVICES):
                    raise ConfigError.of(
                        name, f"{redact_url(url)!r} is a service, which can move its counters itself: set migrate there"
                    )
        if _addresses(self.source) & _addresses(self.to):
            raise ConfigError.of("to", "is the store that counters are moved from: name another")
        self.share  # noqa: B018 - validated now

    @property
    def share(self) -> Share:
        """The subjects and limits that are moved."""
        from crestgate.stores.migrating.share import Share  # only with a migration: every limiter imports this module

        return Share(self.percent, tuple(self.rules), tuple(self.endpoints))

    def __repr__(self) -> str:
        source, to = (_redacted(urls) for urls in (self.source, self.to))
        extra = f", rules={list(self.rules)!r}" if self.rules else ""
        extra += f", endpoints={list(self.endpoints)!r}" if self.endpoints else ""
        return f"Migration({source!r}, {to!r}, percent={self.percent!r}{extra})"


@dataclass(frozen=True, slots=True)
class NamedStores:
    """A default store, and others for the rules that name them."""

    default: Urls | Migration = field(repr=False)
    named: Mapping[str, Urls] = field(repr=False)


StoreSpec: TypeAlias = "Urls | Migration | NamedStores"


def store_urls(spec: StoreSpec) -> tuple[str, ...]:
    """All URLs of a store."""
    if isinstance(spec, str):
        return (spec,)
    if isinstance(spec, Migration):
        return (*store_urls(spec.source), *store_urls(spec.to))
    if isinstance(spec, NamedStores):
        return (*store_urls(spec.default), *(url for urls in spec.named.values() for url in store_urls(urls)))
    return tuple(spec)


def _addresses(urls: Urls) -> set[str]:
    """Of what can be the same store. Each memory store is one of its own."""
    return {Options(url).address() for url in store_urls(urls) if not url.lower().startswith("memory:")}


def _redacted(urls: Urls) -> str | list[str]:
    return redact_url(urls) if isinstance(urls, str) else [redact_url(url) for url in urls]
