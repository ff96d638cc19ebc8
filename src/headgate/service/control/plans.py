"""Plans: `/api/v1/plans`."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from fastapi import Query as QueryParameters
from starlette.responses import Response

from headgate.errors import ConfigError, Invalid, NotFound, Problem
from headgate.reading.fields import Fields, Problems
from headgate.rules.records import read_limits, read_plan
from headgate.service.control.asking import Name, PageQuery, location, page_of
from headgate.service.control.bodies import JsonBody
from headgate.service.control.desk import TheDesk, TheEditor
from headgate.service.control.models import PlanBody, PlanLimits, PlanPage, PlanShown
from headgate.service.control.saying import answer, empty, says

__all__ = ["router"]

PATH = "/api/v1/plans"
router = APIRouter(tags=["plans"])


@router.get(PATH, **says("List plans", PlanPage, 400))
def list_plans(desk: TheDesk, query: Annotated[PageQuery, QueryParameters()]) -> Response:
    """All plans, those of files too, in the order of their names."""
    plans = desk.rules().plans
    names, following = page_of(plans, query)
    return answer({"plans": [_shown(name, plans[name]) for name in names], "next": following})


@router.post(
    PATH, **says("Create a plan", PlanShown, 409, status=201, body=PlanBody, headers={"Location": "The plan."})
)
def create_plan(desk: TheDesk, editor: TheEditor, body: JsonBody) -> Response:
    """Limits under a name, which checks chain by that name."""
    name, limits = _read(body, None)
    desk.check_absent("plan", name, name in desk.rules().plans)
    editor.put_plan(name, limits, create=True)
    desk.take_over()
    return answer(_shown(name, limits), 201, location(f"{PATH}/", name))


@router.get(f"{PATH}/{{name:name}}", **says("Get a plan", PlanShown, 400, 404))
def get_plan(desk: TheDesk, name: Name) -> Response:
    """One plan."""
    limits = desk.rules().plans.get(name)
    if limits is None:
        raise NotFound(f"there is no plan {name!r}")
    return answer(_shown(name, limits))


@router.put(f"{PATH}/{{name:name}}", **says("Replace a plan", PlanShown, 404, 409, 412, body=PlanLimits))
def put_plan(desk: TheDesk, editor: TheEditor, name: Name, body: JsonBody) -> Response:
    """Other limits under the same name. Counters go on with what was used."""
    _, limits = _read(body, name)
    desk.check_writable("plan", name, name in desk.rules().plans)
    editor.put_plan(name, limits, create=False)
    desk.take_over()
    return answer(_shown(name, limits))


@router.delete(f"{PATH}/{{name:name}}", **says("Delete a plan", None, 400, 404, 409, status=204))
def delete_plan(desk: TheDesk, editor: TheEditor, name: Name) -> Response:
    """Checks that name it are refused from now on."""
    desk.check_writable("plan", name, name in desk.rules().plans)
    editor.delete_plan(name)
    desk.take_over()
    return empty()


def _read(body: Any, of_path: str | None) -> tuple[str, tuple[str, ...]]:
    """The name and the limits of a body; Invalid, with all mistakes."""
    problems = Problems()
    fields = Fields(body, "", problems, ("name", "limits"))
    name: str = fields.text("name", "", required=of_path is None)
    if of_path is not None:
        if name not in ("", of_path):
            fields.wrong("name", f"must be that of the path, {of_path!r}: leave it out")
        name = of_path
    limits: tuple[str, ...] = ()
    if not fields.given("limits"):
        if fields.is_mapping:
            fields.wrong("limits", "is missing: write a limit such as '10/second burst 20', or a list of them")
    else:
        try:
            limits = read_limits(fields.values["limits"])
        except ConfigError as error:
            fields.wrong("limits", f"plan {name!r}: {error}" if name else str(error))
    problems.raise_any()
    try:
        return name, read_plan(name, limits)
    except ConfigError as error:  # the limits were read, so it is the name
        raise Invalid([Problem("name", str(error))]) from None


def _shown(name: str, limits: tuple[str, ...]) -> dict[str, Any]:
    return {"name": name, "limits": list(limits)}
