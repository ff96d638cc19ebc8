"""Environment variables in the documentation are accepted by `config check`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from crestgate.config.environment import read_environment

ROOT = Path(__file__).parents[3]
FRAMEWORKS = {ROOT / "docs" / "frameworks.md", ROOT / "docs" / "frameworks-options.md"}
"""Pages whose names are settings of Flask and Django applications."""
PAGES = [ROOT / "README.md", *sorted(set((ROOT / "docs").glob("*.md")) - FRAMEWORKS)]
EXCEPTIONS = {"CRESTGATE_STOR", "CRESTGATE_PORT", "CRESTGATE_PYTHONS"}
"""Names documented as misspellings, set by Kubernetes, or read by `make package`."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_documented_variables_exist(page: Path) -> None:
    names = set(re.findall(r"CRESTGATE_[A-Z_]*[A-Z]\b", page.read_text())) - EXCEPTIONS
    _, problems = read_environment(dict.fromkeys(names, "x"))
    assert [problem.file for problem in problems if "unknown" in problem.message] == []
