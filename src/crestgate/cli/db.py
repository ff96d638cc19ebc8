"""`crestgate db upgrade`: create or upgrade the tables of SQL databases."""

from __future__ import annotations

from crestgate.cli.groups import command_group
from crestgate.cli.locations import ConfigOption, RulesStoreOption, StoreOption, default_rules_store, load_settings_for
from crestgate.cli.output import print_line
from crestgate.config.settings import DEFAULT_STORE
from crestgate.errors import ConfigError, install_hint
from crestgate.runtime.url_options import SQL_SCHEMES, Options, redact_url
from crestgate.stores.spec import store_urls
from crestgate.stores.sql.factory import open_driver

__all__ = ["db_app"]

db_app = command_group("Create and migrate the tables of SQL databases.")


@db_app.command()
def upgrade(store: StoreOption = None, rules_store: RulesStoreOption = None, config: ConfigOption = None) -> None:
    """Create the tables, or migrate them to the version of this Crestgate.

    Of the databases that the options name; without any, of all SQL databases in the environment and the settings.
    Safe to run at any time, also concurrently; does nothing if the tables are up to date.
    """
    named = [url for url in (store, rules_store) if url]
    for url in _databases(named or _configured(config)):
        print_line(_upgrade(url))


def _configured(config: str | None) -> list[str]:
    """The SQL databases of the settings; all stores, if none is one."""
    settings = load_settings_for(config)
    stores = store_urls(settings.store)
    rules_store = default_rules_store(settings)
    urls = [*stores, *([] if rules_store is None else [rules_store])]
    if urls == [DEFAULT_STORE]:
        raise ConfigError("which store? Write --store URL, or set CRESTGATE_STORE")
    return [url for url in urls if _is_sql(url)] or urls


def _databases(urls: list[str]) -> list[str]:
    """The URLs without duplicates. ConfigError for a URL that is not a SQL database."""
    for url in urls:
        if not _is_sql(url):
            names = ", ".join(f"{scheme}://" for scheme in SQL_SCHEMES)
            raise ConfigError(
                f"store URL {redact_url(url)!r} is not a SQL database, so it has no tables: write {names}"
            )
    by_address: dict[str, str] = {}
    for url in urls:
        by_address.setdefault(Options(url).address(), url)
    return list(by_address.values())


def _is_sql(url: str) -> bool:
    return url.partition("://")[0].lower() in SQL_SCHEMES


def _upgrade(url: str) -> str:
    """Upgrade one database; the message to print."""
    from crestgate.stores.sql.version import VERSION

    driver = open_driver(Options(url))
    try:
        from crestgate.stores.sql.upgrade import upgrade_database
    except ModuleNotFoundError as error:
        raise ConfigError(f"the package {error.name!r} is missing: {install_hint('sqlite')}") from None
    before = upgrade_database(driver)
    if before == VERSION:
        return f"{driver.name}: the schema is at version {VERSION} already"
    if before:
        return f"{driver.name}: the schema was upgraded from version {before} to {VERSION}"
    return f"{driver.name}: the tables were created, schema version {VERSION}"
