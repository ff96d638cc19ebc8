"""Plans: `/api/v1/plans`."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from fastapi import Query as QueryParameters
from starlette.responses import Response

from crestgate.errors import ConfigError, NotFoundError, Problem, ValidationError
from crestgate.loader.fields import Fields, Problems
from crestgate.rules.plan import StoredPlan
from crestgate.rules.records import plan_body, read_limits, read_plan
from crestgate.service.admin.bodies import JsonBody
from crestgate.service.admin.context import ContextDep, EditorDep
from crestgate.service.admin.models import PlanBody, PlanLimits, PlanPage, PlanResponse
from crestgate.service.admin.params import Name, PageQuery, location, page
from crestgate.service.admin.responses import describe, json_response, no_content

__all__ = ["router"]

PATH = "/api/v1/plans"
router = APIRouter(tags=["plans"])


@router.get(PATH, **describe("List plans", PlanPage, 400))
def list_plans(context: ContextDep, query: Annotated[PageQuery, QueryParameters()]) -> Response:
    """All plans, including those of files, sorted by name."""
    plans = context.rules().plans
    names, next_after = page(plans, query)
    return json_response({"plans": [_plan_data(name, plans[name]) for name in names], "next": next_after})


@router.post(
    PATH, **describe("Create a plan", PlanResponse, 409, status=201, body=PlanBody, headers={"Location": "The plan."})
)
def create_plan(context: ContextDep, editor: EditorDep, body: JsonBody) -> Response:
    """A named list of limits. Checks use it by its name."""
    name, plan = _read(body, None)
    context.check_absent("plan", name, name in context.rules().plans)
    editor.put_plan(name, plan.limits, lease=plan.lease, create=True)
    return json_response(_plan_data(name, plan), 201, location(f"{PATH}/", name))


@router.get(f"{PATH}/{{name:name}}", **describe("Get a plan", PlanResponse, 400, 404))
def get_plan(context: ContextDep, name: Name) -> Response:
    """One plan."""
    plan = context.rules().plans.get(name)
    if plan is None:
        raise NotFoundError(f"there is no plan {name!r}")
    return json_response(_plan_data(name, plan))


@router.put(f"{PATH}/{{name:name}}", **describe("Replace a plan", PlanResponse, 404, 409, 412, body=PlanLimits))
def put_plan(context: ContextDep, editor: EditorDep, name: Name, body: JsonBody) -> Response:
    """Replaces the limits of a plan. Counters keep what was used."""
    _, plan = _read(body, name)
    context.check_writable("plan", name, name in context.rules().plans)
    editor.put_plan(name, plan.limits, lease=plan.lease, create=False)
    return json_response(_plan_data(name, plan))


@router.delete(f"{PATH}/{{name:name}}", **describe("Delete a plan", None, 400, 404, 409, status=204))
def delete_plan(context: ContextDep, editor: EditorDep, name: Name) -> Response:
    """Checks that name it are refused from now on."""
    context.check_writable("plan", name, name in context.rules().plans)
    editor.delete_plan(name)
    return no_content()


def _read(body: Any, path_name: str | None) -> tuple[str, StoredPlan]:
    """The name and the plan of a body; ValidationError, with all errors."""
    problems = Problems()
    fields = Fields(body, "", problems, ("name", "limits", "lease"))
    lease = fields.boolean("lease", False)
    name: str = fields.text("name", "", required=path_name is None)
    if path_name is not None:
        if name not in ("", path_name):
            fields.report("name", f"must be that of the path, {path_name!r}: leave it out")
        name = path_name
    limits: tuple[str, ...] = ()
    if not fields.has("limits"):
        if fields.is_mapping:
            fields.report("limits", "is missing: write a limit such as '10/second burst 20', or a list of them")
    else:
        try:
            limits = read_limits(fields.values["limits"])
        except ConfigError as error:
            fields.report("limits", f"plan {name!r}: {error}" if name else str(error))
    problems.raise_any()
    try:
        return name, read_plan(name, limits, lease)
    except ConfigError as error:  # the limits were read, so it is the name, or they cannot be leased
        wrong, message = ("lease", error.reason) if error.field == "lease" else ("name", str(error))
        raise ValidationError([Problem(wrong, message)]) from None


def _plan_data(name: str, plan: StoredPlan) -> dict[str, Any]:
    return {"name": name, **plan_body(plan)}
