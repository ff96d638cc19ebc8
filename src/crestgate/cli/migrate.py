"""`crestgate migrate status`: how far a migration of counters is."""

from __future__ import annotations

from typing import Any

import typer

from crestgate.cli.groups import command_group
from crestgate.cli.locations import ConfigOption, JsonOption, TokenOption, UrlOption, load_settings_for
from crestgate.cli.output import print_error, print_json, print_line
from crestgate.cli.remote import remote_service
from crestgate.databases.migration_report import migration_of, migration_report
from crestgate.errors import ConfigError

__all__ = ["migrate_app"]

FAILED = 2
migrate_app = command_group("Move counters from one store to another.")


@migrate_app.command()
def status(
    config: ConfigOption = None, url: UrlOption = None, token: TokenOption = None, as_json: JsonOption = False
) -> None:
    """Print the stores of a migration, what it moves, and how many counters are in each store.

    Reads the stores of the settings, or asks a running service (--url), which also knows what its workers carried.
    Exits with 2 if a store does not answer.
    """
    service = remote_service(url, token, config=config)
    report = service.get("/api/v1/migration") if service is not None else _local_report(config)
    if as_json:
        print_json(report)
    else:
        _print_report(report)
    errors = [report[side]["error"] for side in ("from", "to") if report[side]["error"] is not None]
    for error in errors:
        print_error(error)
    if errors:
        raise typer.Exit(FAILED)


def _local_report(config: str | None) -> dict[str, Any]:
    migration = migration_of(load_settings_for(config).store)
    if migration is None:
        raise ConfigError(
            "the settings have no migration: write migrate: {from: mysql://…, to: redis://…, percent: 0} into "
            "crestgate.yaml, or name the settings with --config FILE"
        )
    return migration_report(migration)


def _print_report(report: dict[str, Any]) -> None:
    rows = [("from", report["from"]["store"]), ("to", report["to"]["store"]), ("percent", f"{report['percent']:g}")]
    rows += [(name, ", ".join(report[name])) for name in ("rules", "endpoints") if report[name]]
    rows += [
        ("in from", _count(report["from"]["counters"])),
        ("  to move", _count(report["from"]["to_move"])),
        ("in to", _count(report["to"]["counters"])),
        ("  to move back", _count(report["to"]["to_move"])),
    ]
    carried = report.get("carried")
    if carried is not None:
        rows += [
            ("carried", f"{carried['to']} to the new store, {carried['back']} back"),
            ("failed", f"{carried['from_errors']} by the old store, {carried['to_errors']} by the new one"),
        ]
    for name, value in rows:
        print_line(f"{name:<14}  {value}")


def _count(counters: int | None) -> str:
    return "unknown" if counters is None else f"{counters} counter{'' if counters == 1 else 's'}"
