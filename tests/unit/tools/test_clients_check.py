"""tools/clients_check.py without the tools of other languages: what it publishes, and what it says about missing ones.

`make clients-check` runs it whole.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent.parent
PAGE = (ROOT / "docs" / "clients.md").read_text()
CLIENTS = ROOT / "examples" / "clients"


def run_tool(output: Path, *arguments: str, path: str = os.environ["PATH"]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tools.clients_check", "--output", str(output), *arguments]
    env = {**os.environ, "PATH": path}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)


def test_publishes_both_descriptions(tmp_path: Path) -> None:
    done = run_tool(tmp_path / "dist", "--publish")
    assert (done.returncode, done.stderr) == (0, "")
    printed = subprocess.run(
        [sys.executable, "-m", "crestgate", "openapi"], capture_output=True, check=True, timeout=60
    )
    assert json.loads((tmp_path / "dist" / "openapi.json").read_text()) == json.loads(printed.stdout)
    with zipfile.ZipFile(tmp_path / "dist" / "crestgate-proto.zip") as packed:
        files = {name: packed.read(name) for name in packed.namelist()}
    sources = {str(path.relative_to(ROOT / "proto")): path.read_bytes() for path in ROOT.glob("proto/**/*.proto")}
    assert "crestgate/v1/rate_limiter.proto" in sources
    assert files == sources


def test_missing_tools_are_named(tmp_path: Path) -> None:
    done = run_tool(tmp_path, path=str(tmp_path))
    assert done.returncode == 1
    assert done.stdout.splitlines()[2:] == [
        "go: FAILED: go not found: install Go 1.24 or later",
        "typescript: FAILED: node and npm not found: install Node.js 20 or later, with npm",
        "java: FAILED: javac and mvn not found: install a JDK, 17 or later, and Maven",
    ]


def test_unknown_language_is_a_usage_error(tmp_path: Path) -> None:
    done = run_tool(tmp_path, "--only", "go,cobol")
    assert done.returncode == 2
    assert "no language 'cobol'; there are go, typescript, java" in done.stderr


def test_page_has_commands_for_every_example() -> None:
    sections = dict(re.findall(r"^## (.+)\n((?:(?!## ).*\n)*)", PAGE, re.MULTILINE))
    assert {title.lower() for title in sections} == {path.name for path in CLIENTS.iterdir()}
    for section in sections.values():
        assert section.count("```sh\n") >= 2
        assert re.search(r"127\.0\.0\.1:8081\"?\n```\n$", section), "the last block calls the service"


def test_examples_have_no_generated_code() -> None:
    files = {str(path.relative_to(CLIENTS)) for path in CLIENTS.rglob("*") if path.is_file()}
    assert files == {
        "go/go.mod",
        "go/main.go",
        "java/pom.xml",
        "java/src/main/java/Main.java",
        "typescript/main.ts",
        "typescript/package.json",
        "typescript/tsconfig.json",
    }
