"""deploy/grafana: the dashboard has what Grafana needs, panels do not overlap, and it names pages of the runbook."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

ROOT = Path(__file__).parent.parent.parent.parent
DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy" / "grafana" / "crestgate.json").read_text())
SCHEMA = json.loads((Path(__file__).parent / "grafana_dashboard.schema.json").read_text())
VARIABLES = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
BUILT_IN = {"__rate_interval", "__all"}


def test_dashboard_follows_the_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.Draft202012Validator(SCHEMA).validate(DASHBOARD)


@pytest.mark.parametrize("field", ["title", "targets", "gridPos"])
def test_schema_rejects_a_panel_without(field: str) -> None:
    broken = json.loads(json.dumps(DASHBOARD))
    del broken["panels"][1][field]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(SCHEMA).validate(broken)


def test_ids_are_unique_and_panels_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        own = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
        assert not own & cells, panel["title"]
        cells |= own


def test_all_variables_exist() -> None:
    text = json.dumps([DASHBOARD["panels"], DASHBOARD["templating"], DASHBOARD["annotations"]])
    used = set(re.findall(r"\$\{?(\w+)", text))
    assert used <= VARIABLES | BUILT_IN
    assert used >= VARIABLES


def test_runbook_pages_exist() -> None:
    headings = set(re.findall(r"^## (.+)$", (ROOT / "docs" / "runbook.md").read_text(), re.MULTILINE))
    pages = re.findall(r"Runbook: ([^.\"]+)\.", json.dumps(DASHBOARD))
    assert pages
    assert {page.capitalize() for page in pages} <= headings
