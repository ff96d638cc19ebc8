"""pyproject.toml, the tools and the workflows say the same: which Pythons, which version, which wheels."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import setuptools.build_meta
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from tools import archives, build_backend, floors, version
from tools.environments import supported

import crestgate
from unit.test_package import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_version_is_written_once() -> None:
    assert version.version() == crestgate.__version__
    assert "version" in PROJECT["project"]["dynamic"]
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    assignments = [
        name
        for name in tracked
        if Path(name).suffix in (".py", ".toml", ".cfg")
        and re.search(rf"(?m)^\s*_*version_*\s*=\s*[\"']{re.escape(crestgate.__version__)}", (ROOT / name).read_text())
    ]
    assert assignments == ["src/crestgate/__init__.py"]


def test_cibuildwheel_builds_for_the_pythons_of_the_classifiers() -> None:
    built = {pattern.removesuffix("-*").removeprefix("cp3") for pattern in PROJECT["tool"]["cibuildwheel"]["build"]}
    assert [f"3.{minor}" for minor in sorted(one for one in built if not one.endswith("t"))] == supported()
    experimental = {one for one in built if one.endswith("t")}
    free_threading = [line for line in PROJECT["project"]["classifiers"] if "Free Threading" in line]
    assert bool(experimental) == bool(free_threading)
    assert all(line.endswith("1 - Unstable") for line in free_threading)


def test_oldest_python_is_the_same_everywhere() -> None:
    required = SpecifierSet(PROJECT["project"]["requires-python"])
    oldest = supported()[0]
    assert oldest in required
    assert f"3.{int(oldest.partition('.')[2]) - 1}.99" not in required
    assert PROJECT["tool"]["ruff"]["target-version"] == f"py{oldest.replace('.', '')}"


def test_compiler_of_builds_is_the_one_of_the_tests() -> None:
    tested = {Requirement(text).name: text for text in PROJECT["dependency-groups"]["test"]}
    assert [tested["mypy"]] == build_backend.COMPILER
    assert tested["setuptools"] in PROJECT["build-system"]["requires"]


@pytest.mark.parametrize(
    ("variable", "value", "requires"),
    [("CRESTGATE_PURE", "1", []), ("CC", "/nonexistent/cc", []), ("CRESTGATE_PURE", "0", build_backend.COMPILER)],
    ids=["asked", "no compiler", "compiled"],
)
def test_mypy_is_required_only_to_compile(
    variable: str, value: str, requires: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    monkeypatch.setattr(setuptools.build_meta, "get_requires_for_build_wheel", lambda settings: [])
    assert build_backend.get_requires_for_build_wheel() == requires


def test_other_interpreters_are_not_compiled_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.implementation, "name", "pypy")
    assert "pypy" in build_backend.reason_for_pure_build()


def test_floors_of_every_extra_are_tested() -> None:
    extras = {*PROJECT["project"]["optional-dependencies"]} - {"all"}
    assert {extra for group in floors.GROUPS.values() for extra in group.extras} == extras


@pytest.mark.parametrize("name", floors.GROUPS)
def test_tests_of_floors_exist(name: str) -> None:
    assert [path for path in floors.GROUPS[name].tests if not (ROOT / path).exists()] == []


def test_extras_within_extras_are_resolved() -> None:
    found = floors.requirements(("server",))
    table: dict[str, Any] = PROJECT["project"]["optional-dependencies"]
    assert {*table["sqlite"], *table["config"]} <= {*found}
    assert not [requirement for requirement in found if requirement.startswith("crestgate")]


def test_floors_of_groups_are_those_of_extras() -> None:
    """What is tested is no older than what is installed, and no newer either."""
    named: dict[str, set[str]] = {}
    for requirement in floors.requirements(tuple(name for name in PROJECT["project"]["optional-dependencies"])):
        parsed = Requirement(requirement)
        named.setdefault(parsed.name.lower(), set()).add(str(parsed.specifier))
    tested = {
        Requirement(text).name.lower(): str(Requirement(text).specifier)
        for text in PROJECT["dependency-groups"]["test"]
    }
    assert {name: found for name, found in named.items() if len(found) > 1} == {}
    assert {name: tested[name] for name in named if name in tested and {tested[name]} != named[name]} == {}


def test_tag_must_be_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=f"the tag must be 'v{re.escape(crestgate.__version__)}'"):
        version.check_tag("v99.0.0")


def test_notes_are_the_part_of_the_changelog() -> None:
    text = "# Changelog\n\n## [2.0.0] - 2026-01-31\n\nNew.\n\n### Fixed\n\n- It.\n\n## [1.0.0] - 2025-01-01\n\nOld.\n"
    assert version.section("2.0.0", text) == ("2026-01-31", "New.\n\n### Fixed\n\n- It.")
    assert version.section("1.0.0", text) == ("2025-01-01", "Old.")
    with pytest.raises(SystemExit, match=r"no section `## \[3.0.0\] - DATE`"):
        version.section("3.0.0", text)
    assert version.section(crestgate.__version__, (ROOT / "CHANGELOG.md").read_text())[1]


def test_release_misses_what_is_not_built(tmp_path: Path) -> None:
    for name in (
        "crestgate-1.0.tar.gz",
        "crestgate-1.0-py3-none-any.whl",
        "crestgate-1.0-cp313-cp313-manylinux_2_28_x86_64.whl",
        "crestgate-1.0-cp314-cp314t-macosx_11_0_arm64.whl",
    ):
        (tmp_path / name).touch()
    there = ["cp313-manylinux_x86_64", "cp314t-macosx_arm64"]
    assert archives.release_faults(tmp_path, there) == []
    missing = ["cp313-musllinux_x86_64", "cp314-macosx_arm64", "cp313-manylinux_aarch64"]
    assert archives.release_faults(tmp_path, missing) == [f"no wheel for {name}" for name in missing]
    (tmp_path / "crestgate-1.0-py3-none-any.whl").unlink()
    assert archives.release_faults(tmp_path, there) == ["the pure wheel is missing"]
