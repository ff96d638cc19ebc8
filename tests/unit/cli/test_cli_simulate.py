"""`crestgate simulate`: tables, JSON, pictures, suggestions, and errors with exit code 2."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from crestgate.cli.app import run
from unit.cli.fake_service import TOKEN, fake_service
from unit.simulate.logs import START, combined

RULES = "rules: [{rule_id: per-user, dimension: user, limit: 3, window_seconds: 60, algorithm: fixed_window}]\n"
LOOSE = RULES.replace("limit: 3", "limit: 5")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rules.yaml").write_text(RULES)
    (tmp_path / "loose.yaml").write_text(LOOSE)
    lines = [combined(START, user) for user in "aaaaabbbb"] + ["broken\n"]
    (tmp_path / "access.log.gz").write_bytes(gzip.compress("".join(lines).encode()))
    return tmp_path


def simulate(folder: Path, *more: str) -> int:
    return run(["simulate", "--log", str(folder / "access.log.gz"), "--rules", str(folder / "rules.yaml"), *more])


def test_tables(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(folder, "--against", str(folder / "loose.yaml")) == 0
    out = capsys.readouterr().out
    assert "3 of 9 requests would be denied (33.33%)" in out
    assert "3 requests are newly denied, 0 newly allowed" in out
    assert "1 lines were skipped; the first is line 10: not the combined log format" in out
    assert "user:a" in out


def test_json_with_suggestion(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(folder, "--json", "--suggest", "per-user", "--deny-at-most", "12%", "--of", "requests") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["requests"], report["denied"], report["bad_lines"]["count"]) == (9, 3, 1)
    assert (report["suggestion"]["limit"], report["suggestion"]["denied_requests"]) == (4, 1)


def test_pictures_load_nothing_from_elsewhere(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, picture = folder / "report.html", folder / "picture.svg"
    hostile = folder / "hostile.log"
    hostile.write_text("".join(combined(START, "<script>alert(1)</script>") for _ in range(5)))
    rules = str(folder / "rules.yaml")
    arguments = ["--log", str(hostile), "--rules", rules, "--against", rules]
    assert run(["simulate", *arguments, "--html", str(page), "--svg", str(picture)]) == 0
    text = page.read_text()
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "default-src 'none'" in text
    assert "prefers-color-scheme:dark" in text
    for content in (text, picture.read_text()):
        assert "src=" not in content
        assert "href=" not in content
        assert "url(" not in content
        assert "@import" not in content
    assert ET.fromstring(picture.read_text()).tag.endswith("svg")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--format", "csv"), "--format is one of auto, combined, json, envoy"),
        (("--field", "user=x"), "--field is only valid with JSON lines"),
        (("--suggest", "nothing"), "there is no rule 'nothing'"),
        (("--suggest", "per-user", "--deny-at-most", "many"), "--deny-at-most is a share"),
        (("--of", "lines"), "--of is one of requests, subjects"),
        (("--html", "/nowhere/x.html"), "cannot write '/nowhere/x.html'"),
        (("--against", "/nowhere.yaml"), "nowhere.yaml"),
    ],
)
def test_wrong_use(folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str) -> None:
    assert simulate(folder, *arguments) == 2
    assert message in capsys.readouterr().err


def test_missing_log(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "--log", "/nowhere/log", "--rules", str(folder / "rules.yaml")]) == 2
    assert "cannot read the log" in capsys.readouterr().err


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "--help"]) == 0
    assert "crestgate simulate --log access.log.gz --rules new.yaml --against" in " ".join(
        capsys.readouterr().out.split()
    )


def newly_denied(capsys: pytest.CaptureFixture[str]) -> int:
    """In a report as JSON, by the rules of this file instead of LOOSE."""
    report = json.loads(capsys.readouterr().out)
    assert report["against"]["rules"][0]["limit"].startswith("5/")
    return int(report["against"]["newly_denied"])


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    for name in [name for name in os.environ if name.startswith("CRESTGATE_") and "_TEST_" not in name]:
        monkeypatch.delenv(name)
    return folder


def test_rules_of_a_database(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{here}/mine.db?timeout_ms=30000"
    assert run(["rules", "apply", "-f", "loose.yaml", "--rules-store", url]) == 0
    capsys.readouterr()
    assert simulate(here, "--against", url, "--json") == 0
    assert newly_denied(capsys) == 3
    assert run(["simulate", "--log", "access.log.gz", "--rules", f"sqlite:///{here}/nothing.db"]) == 2
    assert "there is no such file" in capsys.readouterr().err
    assert not (here / "nothing.db").exists()


@pytest.mark.parametrize("where", ["database", "settings", "option", "both"])
def test_current_rules_of_this_folder(here: Path, capsys: pytest.CaptureFixture[str], where: str) -> None:
    options: tuple[str, ...] = ()
    if where in ("database", "both"):
        assert run(["rules", "apply", "-f", "loose.yaml"]) == 0
    if where == "both":
        other = LOOSE.replace("per-user", "other").replace("user", "ip").replace("limit: 5", "limit: 100")
        (here / "crestgate.yaml").write_text(other.replace("other", "per-address"))
    elif where == "settings":
        (here / "crestgate.yaml").write_text(LOOSE)
    elif where == "option":
        options = ("--config", "loose.yaml")
    capsys.readouterr()
    assert simulate(here, "--against", "current", "--json", *options) == 0
    out = capsys.readouterr().out
    report = json.loads(out)
    limits = {rule["rule_id"]: rule["limit"].partition("/")[0] for rule in report["against"]["rules"]}
    assert limits == {"per-user": "5"} | ({"per-address": "100"} if where == "both" else {})
    assert report["against"]["newly_denied"] == 3


def test_current_rules_of_a_service(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRESTGATE_ADMIN_KEY", TOKEN)
    rule = {"dimension": "user", "limit": 5, "window_seconds": 60, "algorithm": "fixed_window"}
    with fake_service() as service:
        service.put({"rule_id": "per-user", **rule})
        assert simulate(here, "--against", "current", "--url", service.url, "--json") == 0
        assert newly_denied(capsys) == 3
        service.put({"rule_id": "gold", **rule, "tier": "gold"})
        monkeypatch.setenv("CRESTGATE_URL", service.url)
        assert simulate(here, "--against", "current") == 0
        assert "tiers of users are not known here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--against", "current"), "which rules are current? There is no ./.crestgate/rules.db here"),
        (("--url", "http://127.0.0.1:1"), "--url says whose rules are current: write --against current"),
        (("--config", "rules.yaml"), "--config says whose rules are current"),
        (("--against", "current", "--url", "http://127.0.0.1:1"), "http://127.0.0.1:1 cannot be reached"),
    ],
)
def test_wrong_use_of_current(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert simulate(here, *arguments) == 2
    captured = capsys.readouterr()
    assert (captured.out, message in captured.err) == ("", True)
