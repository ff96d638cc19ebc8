"""`headgate db upgrade`: make the tables of SQL databases, or bring them to the version that this Headgate needs."""

from __future__ import annotations

from headgate.cli.groups import command_group
from headgate.cli.places import ConfigOption, RulesStoreOption, StoreOption, default_rules_store, settings_of
from headgate.cli.showing import say
from headgate.config.settings import DEFAULT_STORE
from headgate.errors import ConfigError
from headgate.stores.options import Options, masked
from headgate.stores.sql.opening import SCHEMES, open_driver

__all__ = ["db_app"]

db_app = command_group("Look after the tables of SQL databases.")


@db_app.command()
def upgrade(store: StoreOption = None, rules_store: RulesStoreOption = None, config: ConfigOption = None) -> None:
    """Make the tables, or bring them to the version this Headgate needs.

    Of the databases that the options name; without any, of all SQL databases in the environment and the settings.
    Safe to run at any time, from several machines at once; does nothing when there is nothing to do.
    """
    given = [url for url in (store, rules_store) if url]
    for url in _databases(given or _configured(config)):
        say(_upgrade(url))


def _configured(config: str | None) -> list[str]:
    """The SQL databases of the settings; what is none has no tables, and is left out as long as there is one."""
    settings = settings_of(config)
    stores = [settings.store] if isinstance(settings.store, str) else list(settings.store)
    rules_store = default_rules_store(settings)
    urls = [*stores, *([] if rules_store is None else [rules_store])]
    if urls == [DEFAULT_STORE]:
        raise ConfigError("which store? Write --store URL, or set HEADGATE_STORE")
    return [url for url in urls if _is_sql(url)] or urls


def _databases(urls: list[str]) -> list[str]:
    """The URLs, each database once. A URL of something else is an error."""
    for url in urls:
        if not _is_sql(url):
            names = ", ".join(f"{scheme}://" for scheme in SCHEMES)
            raise ConfigError(f"store URL {masked(url)!r} names no SQL database, so there are no tables: write {names}")
    found: dict[str, str] = {}
    for url in urls:
        found.setdefault(Options(url).address(), url)
    return list(found.values())


def _is_sql(url: str) -> bool:
    return url.partition("://")[0].lower() in SCHEMES


def _upgrade(url: str) -> str:
    """Do it; what was done, in words."""
    from headgate.stores.sql.version import VERSION

    driver = open_driver(Options(url))
    try:
        from headgate.stores.sql.upgrade import upgrade_database
    except ModuleNotFoundError as error:
        raise ConfigError(f"the package {error.name!r} is missing: pip install 'headgate[sqlite]'") from None
    before = upgrade_database(driver)
    if before == VERSION:
        return f"{driver.name}: the schema is at version {VERSION} already"
    if before:
        return f"{driver.name}: the schema was brought from version {before} to {VERSION}"
    return f"{driver.name}: the tables were made, schema version {VERSION}"
