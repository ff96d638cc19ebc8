"""The pages about proxies quote the files of deploy/."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from crestgate.config.settings import load_settings

ROOT = Path(__file__).parent.parent.parent.parent
PAGE = (ROOT / "docs" / "proxies.md").read_text()
DEPLOY = ROOT / "deploy"
PAGES = [DEPLOY / "nginx" / "README.md", DEPLOY / "envoy" / "README.md"]


def section(title: str) -> str:
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize(("title", "folder"), [("nginx", "nginx"), ("Envoy", "envoy")], ids=["nginx", "envoy"])
def test_quoted_lines_are_in_the_files(title: str, folder: str) -> None:
    written = {
        line.partition(" #")[0].strip()
        for file in (DEPLOY / folder).iterdir()
        if file.suffix in (".conf", ".yaml")
        for line in file.read_text().splitlines()
    }
    quoted = [
        line.partition(" #")[0].strip()
        for block in re.findall(r"^```text\n(.*?)^```$", section(title), re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
    ]
    assert quoted
    assert [line for line in quoted if line not in written] == []


def test_settings_in_the_table_of_variables_exist() -> None:
    rows = re.findall(r"^\| `[A-Z_…`, ]+.* \| (.+) \|$", section("Migrating from envoyproxy/ratelimit"), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([a-z_]+(?:\.[a-z_]+)*)`", row.partition(":")[0])}
    settings = re.findall(r"^\| `([a-z_.]+)` \|", (ROOT / "docs" / "configuration.md").read_text(), re.MULTILINE)
    assert len(named) > 10
    assert named <= {*settings}


@pytest.mark.parametrize("folder", ["nginx", "envoy"])
def test_settings_beside_a_proxy_are_read(folder: str) -> None:
    settings = load_settings(str(DEPLOY / folder / "crestgate.yaml"), {})
    assert str(settings.server.http) == "127.0.0.1:8080"
    assert str(settings.server.grpc) == "127.0.0.1:8081"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_links_and_commands_name_existing_files(page: Path) -> None:
    text = page.read_text()
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", text)
    commands = re.findall(r"(?:--config |-c )\"?(?:\$PWD/)?(\S+?)\"?(?:\s|$)", text)
    tests = re.findall(r"`(tests/\S+)`", text)
    assert links
    assert commands
    assert [link for link in links if not (page.parent / link).exists()] == []
    assert [path for path in (*commands, *tests) if not (ROOT / path).exists()] == []
