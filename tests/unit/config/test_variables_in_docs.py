"""Variables that the documentation tells people to set: none of them may be one that `config check` refuses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headgate.config.environment import read_environment

ROOT = Path(__file__).parents[3]
FRAMEWORKS = ROOT / "docs" / "frameworks.md"
"""Names of this page are keys in the settings of Flask and Django applications."""
PAGES = [ROOT / "README.md", *sorted(set((ROOT / "docs").glob("*.md")) - {FRAMEWORKS})]
SLIPS = {"HEADGATE_STOR", "HEADGATE_PORT"}
"""Shown as mistakes, or as what Kubernetes sets."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_variables_are_known(page: Path) -> None:
    names = set(re.findall(r"HEADGATE_[A-Z_]*[A-Z]\b", page.read_text())) - SLIPS
    _, problems = read_environment(dict.fromkeys(names, "x"))
    assert [problem.file for problem in problems if "unknown" in problem.message] == []
