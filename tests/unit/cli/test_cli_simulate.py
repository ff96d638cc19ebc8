"""`crestgate simulate`: tables, JSON, pictures, suggestions, and errors with exit code 2."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from crestgate.cli.app import run
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
