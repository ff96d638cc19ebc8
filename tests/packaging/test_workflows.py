"""The GitHub workflows: of few rights, and of the Pythons that pyproject.toml names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools.environments import supported

from unit.test_package import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MAY_WRITE = {("release", "publish"): {"id-token": "write"}, ("release", "notes"): {"contents": "write"}}
"""The jobs with more rights than reading the source."""


def load(path: Path) -> dict[Any, Any]:
    loaded: dict[Any, Any] = yaml.safe_load(path.read_text())
    return loaded


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in load(path)["jobs"].values() for step in job.get("steps", [])]


def test_workflows_are_there() -> None:
    assert [path.stem for path in WORKFLOWS] == ["docs", "release", "test", "wheels"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_rights_are_the_fewest(path: Path) -> None:
    workflow = load(path)
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert job.get("permissions", {}) == MAY_WRITE.get((path.stem, name), {}), name
    assert "secrets" not in path.read_text(), "a release is published by who it is, not by what it knows"
    for step in steps(path):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
        assert "${{" not in step.get("run", ""), "texts of others must reach a shell as variables only"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_to_a_version(path: Path) -> None:
    for used in filter(None, (step.get("uses") for step in steps(path))):
        assert re.fullmatch(r"actions/[a-z-]+@v\d+|pypa/gh-action-pypi-publish@release/v1", used), used


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_runs_are_bounded(path: Path) -> None:
    workflow = load(path)
    assert workflow["concurrency"]["group"]
    for name, job in workflow["jobs"].items():
        assert "uses" in job or job["timeout-minutes"] <= 180, name
        assert not str(job.get("runs-on", "")).endswith("latest"), name


def test_suite_runs_on_every_supported_python() -> None:
    suite = load(ROOT / ".github" / "workflows" / "test.yml")["jobs"]["suite"]
    assert suite["strategy"]["matrix"]["python"] == supported()
    assert suite["steps"][-1]["run"] == ".ci/run"


def test_a_release_needs_tests_and_wheels() -> None:
    jobs = load(ROOT / ".github" / "workflows" / "release.yml")["jobs"]
    assert {*jobs["publish"]["needs"]} == {"test", "wheels"}
    assert jobs["publish"]["environment"]["name"] == "pypi"
    for name in jobs["publish"]["needs"]:
        called = ROOT / jobs[name]["uses"]
        assert jobs[name]["needs"] == "version"
        assert "workflow_call" in load(called)[True], "YAML reads the key `on` as true"


def test_wheels_are_built_on_every_kind_of_machine() -> None:
    jobs = load(ROOT / ".github" / "workflows" / "wheels.yml")["jobs"]
    runners = jobs["compiled"]["strategy"]["matrix"]["runner"]
    assert len([name for name in runners if name.startswith("ubuntu")]) == 2, "x86-64 and arm64"
    assert len([name for name in runners if name.startswith("macos")]) == 2, "x86-64 and arm64"
    assert {*jobs["check"]["needs"]} == {"pure", "compiled"}


def test_commands_name_files_that_exist() -> None:
    text = "".join(path.read_text() for path in WORKFLOWS)
    for name in re.findall(r"(?:tools/\w+\.py|\.ci/\w+)", text):
        assert (ROOT / name).is_file(), name
    for name in re.findall(r"-m tools\.(\w+)", text):
        assert (ROOT / "tools" / f"{name}.py").is_file(), name
