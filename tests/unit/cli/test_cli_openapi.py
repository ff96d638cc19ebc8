"""`crestgate openapi` without the packages of the service. What it prints: unit/service/admin/test_admin_openapi.py."""

from __future__ import annotations

import sys

import pytest

from unit.cli.conftest import Run


def test_missing_package_names_the_extra(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "crestgate.service.worker", None)
    code, out, err = run("openapi")
    assert (code, out) == (2, "")
    assert "which the service needs: pip install '.[server]'" in err
