"""`crestgate openapi`: the document that a service has at /openapi.json."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from unit.cli.conftest import Run
from unit.service.admin.admin_client import Control


def test_prints_the_document_of_a_service(run: Run, folder: Path) -> None:
    control = Control(folder)
    try:
        served = control.get("/openapi.json").json()
    finally:
        control.close()
    code, out, err = run("openapi")
    assert (code, err) == (0, "")
    assert json.loads(out) == served


def test_missing_package_names_the_extra(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "crestgate.service.worker", None)
    code, out, err = run("openapi")
    assert (code, out) == (2, "")
    assert "which the service needs: pip install '.[server]'" in err
