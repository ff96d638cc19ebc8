"""`crestgate rules list` and `get`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from unit.cli.conftest import IDS, URL, Run

pytestmark = pytest.mark.usefixtures("rules_store")


def test_list(run: Run, applied: None) -> None:
    assert run("rules", "list").out == (
        "ID                          DIMENSION  IDENTIFIER  PATTERN    METHOD  TIER  LIMIT           "
        "ALGORITHM               MODE     EXPIRES               VERSION\n"
        "client:acme:DEFAULT:GLOBAL  client     acme        *          *       *     50/min          "
        "token_bucket            enforce  -                     1\n"
        "orders                      user       *           /orders/*  *       *     3/min           "
        "sliding_window_counter  enforce  -                     1\n"
        "policy:user-123             key        user-123    *          *       *     10/s burst 100  "
        "token_bucket            enforce  -                     1\n"
        "strategy:api                api        *           *          *       *     100/min         "
        "token_bucket            enforce  -                     1\n"
        "trial                       ip         *           *          *       *     1/500 ms        "
        "sliding_window_counter  shadow   2999-01-01T00:00:00Z  1\n"
    )


@pytest.mark.parametrize(
    ("filters", "ids"),
    [
        ("--dimension API", ["strategy:api"]),
        ("--dimension ip --mode enforce", []),
        ("--mode SHADOW", ["trial"]),
        ("", IDS),
    ],
)
def test_list_filters(filters: str, ids: list[str], run: Run, applied: None) -> None:
    code, out, _ = run("rules", "list", *filters.split(), "--json")
    assert code == 0
    assert [rule["rule_id"] for rule in json.loads(out)] == ids


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--dimension moon!", "--dimension is one of user, apikey, client, ip, key, api, global, not 'moon!'"),
        ("--dimension org,moon!", "--dimension is one of user, apikey, client, ip, key, api, global, not 'moon!'"),
        ("--mode loud", "--mode is one of enforce, shadow, disabled, not 'loud'"),
        ("--json --yaml", "--json or --yaml, not both"),
        ("--all", "--all requires --yaml, and excludes --dimension and --mode"),
        ("--all --yaml --mode shadow", "--all requires --yaml, and excludes --dimension and --mode"),
    ],
)
def test_list_without_matches(options: str, expected: str, run: Run, applied: None) -> None:
    assert run("rules", "list", *options.split()) == (2, "", f"crestgate: {expected}\n")


def test_listed_yaml_is_applied_elsewhere(run: Run, folder: Path, applied: None) -> None:
    (folder / "odd.yaml").write_text(
        "rules: [{rule_id: '1e3', name: 'on', dimension: user, identifier: '0x1F', limit: 1, window_seconds: 9}]\n"
    )
    run("rules", "apply", "-f", "odd.yaml")
    code, out, _ = run("rules", "list", "--yaml")
    assert code == 0
    (folder / "dump.yaml").write_text(out)
    assert run("rules", "diff", "-f", "dump.yaml") == (0, "no differences, 6 compared\n", "")
    assert run("rules", "apply", "-f", "dump.yaml", "--rules-store", "sqlite:///copy.db?timeout_ms=30000").code == 0


@pytest.mark.parametrize("limits", ["off", "[5/second, 100/day]"])
def test_list_all_prints_every_record(limits: str, run: Run, folder: Path, applied: None) -> None:
    (folder / "defaults.yaml").write_text(
        "tiers: {'42': basic}\ndefault_policy: {capacity: 7}\npolicy_key: [route, user]\n"
        f"default_client_limits: {limits}\nplans: {{hot: {{limits: 5/second, lease: true}}}}\n"
    )
    assert run("rules", "apply", "-f", "defaults.yaml").code == 0
    code, out, _ = run("rules", "list", "--yaml", "--all")
    assert code == 0
    (folder / "dump.yaml").write_text(out)
    copy = "sqlite:///copy.db?timeout_ms=30000"
    assert run("rules", "apply", "-f", "dump.yaml", "--rules-store", copy).code == 0
    for url in (URL, copy):
        for files in (["-f", "dump.yaml"], ["-f", "rules.yaml", "-f", "defaults.yaml"]):
            expected = run("rules", "diff", *files, "--rules-store", url)
            assert expected == (0, "no differences, 12 compared\n", "")


def test_list_all_of_an_empty_repository(run: Run) -> None:
    assert run("db", "upgrade", "--rules-store", URL).code == 0
    assert run("rules", "list", "--yaml", "--all") == (0, "{}\n", "")


def test_expired_rule_is_marked(run: Run, folder: Path) -> None:
    rule = "{rule_id: past, dimension: user, limit: 1, window_seconds: 1, expires_at: 2020-01-01T00:00:00Z}"
    (folder / "past.yaml").write_text(f"rules: [{rule}]\n")
    assert run("rules", "apply", "-f", "past.yaml").code == 0
    assert "2020-01-01T00:00:00Z (expired)" in run("rules", "list").out


def test_get(run: Run, applied: None) -> None:
    code, out, err = run("rules", "get", "trial")
    assert (code, err) == (0, "")
    data = yaml.safe_load(out)
    assert (data["rule_id"], data["limit"], data["expires_at"]) == ("trial", 1, "2999-01-01T00:00:00Z")
    assert json.loads(run("rules", "get", "trial", "--json").out) == data
    assert run("rules", "get", "x") == (2, "", "crestgate: there is no rule 'x'\n")


def test_table_fits_the_terminal(run: Run, applied: None, on_a_terminal: Callable[[int], None]) -> None:
    on_a_terminal(80)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", run("rules", "list").out)
    assert max(map(len, plain.splitlines())) <= 80
    assert plain.splitlines()[-1] == "omitted for lack of space: version, algorithm, expires"
    on_a_terminal(200)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", run("rules", "list").out)
    assert plain.split("\n")[0].split() == (
        "id dimension identifier pattern limit algorithm mode expires version".split()
    ), "columns without values are omitted"


def test_control_characters_in_ids_are_escaped(run: Run, folder: Path) -> None:
    identifier = "[red]x\\e[31m"
    (folder / "odd.yaml").write_text(
        f'rules: [{{rule_id: odd, dimension: user, identifier: "{identifier}", limit: 1, window_seconds: 1}}]\n'
    )
    run("rules", "apply", "-f", "odd.yaml")
    assert "[red]x\\x1b[31m" in run("rules", "list").out


def test_calendar_rule_is_applied_listed_and_written_out(run: Run, folder: Path) -> None:
    (folder / "calendar.yaml").write_text(
        "rules: [{rule_id: budget, dimension: user, limit: 1000, calendar: month, timezone: europe/berlin}]\n"
    )
    assert run("rules", "apply", "-f", "calendar.yaml").code == 0
    assert "1000/calendar month in Europe/Berlin" in run("rules", "list").out
    (folder / "dump.yaml").write_text(run("rules", "list", "--yaml").out)
    assert run("rules", "diff", "-f", "dump.yaml") == (0, "no differences, 1 compared\n", "")
    made = run("override", "acme", "budget", "5", "--for", "2h")
    assert "acme: 5 per calendar month in Europe/Berlin until" in made.out
    assert "calendar month in Europe/Berlin" in run("override", "list").out
