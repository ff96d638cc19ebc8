"""The template of a scope's route, such as `/item/{id}`.

FastAPI and Litestar write the matched route to the scope. A middleware runs before that, so there the scope is matched
against the application's routes, as its router will do. This is needed only for keys that contain the route.

A sub-application's template starts with its mount path. Its parameters (`/shop/{name}`) are shown by name: otherwise a
caller would have a counter for each value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["chosen_route", "route_name", "template_of"]

_FULL, _PARTIAL = 2, 1
"""The values of Starlette's `Match`."""


def template_of(scope: Mapping[str, Any]) -> str | None:
    """The template of the route, including its mount path; None when no route is known."""
    route = chosen_route(scope)
    path = None if route is None else _format(route)
    if path is not None:
        return mounted_under(scope, getattr(route, "param_convertors", {})) + path
    template = scope.get("path_template")  # Litestar's
    if isinstance(template, str) and template:
        return mounted_under(scope, ()) + template
    routes = getattr(scope.get("app"), "routes", None)
    if not isinstance(routes, Iterable):
        return None
    template_match = _match(routes, dict(scope))
    return None if template_match is None else mounted_under(scope, ()) + template_match[0]


def route_name(scope: Mapping[str, Any]) -> str | None:
    """The route in the key of a route's limits: methods and template, because two handlers may share a path."""
    template = template_of(scope)
    if template is None:
        return None
    methods = getattr(chosen_route(scope), "methods", None)
    return f"{','.join(sorted(methods))} {template}" if methods else template


def chosen_route(scope: Mapping[str, Any]) -> Any:
    """The route that FastAPI has matched. For an included router, its context there, which has the prefix."""
    route = scope.get("route")
    if route is None:
        return None
    fastapi = scope.get("fastapi")
    included = fastapi.get("effective_route_context") if isinstance(fastapi, dict) else None
    if included is not None and included.original_route is route:
        return getattr(included, "starlette_route", None) or included
    return route


def mounted_under(scope: Mapping[str, Any], own: Iterable[str]) -> str:
    """The mount path of the application, with its parameters by name; `own` are the parameters of the route itself."""
    root: str = scope.get("root_path") or ""
    params = scope.get("path_params")
    if not root or not params or not isinstance(params, dict):
        return root.rstrip("/")
    segments = root.rstrip("/").split("/")
    for name in reversed([name for name in params if name not in own]):
        length = str(params[name]).count("/") + 1  # a parameter of type `path` may have several segments
        for end in range(len(segments), length, -1):
            if _matches_value("/".join(segments[end - length : end]), params[name]):
                segments[end - length : end] = [f"{{{name}}}"]
                break
    return "/".join(segments)


def _matches_value(text: str, value: Any) -> bool:
    """Whether a text can be converted to this value: 007 is 7."""
    if isinstance(value, str):
        return text == value
    try:
        return bool(type(value)(text) == value)
    except Exception:  # noqa: BLE001 - the application's convertors may return any type
        return text == str(value)


def _match(routes: Iterable[Any], scope: dict[str, Any]) -> tuple[str, bool] | None:
    """The first template that matches in full, else the first that matches without its methods; and which it was."""
    partial: tuple[str, bool] | None = None
    for route in routes:
        template_match = _match_route(route, scope)
        if template_match is not None and template_match[1]:
            return template_match
        partial = partial or template_match
    return partial


def _match_route(route: Any, scope: dict[str, Any]) -> tuple[str, bool] | None:
    included = getattr(route, "effective_route_contexts", None)
    if included is not None:  # FastAPI keeps a router that was included as one route
        return _match([getattr(one, "starlette_route", None) or one for one in included()], scope)
    if not hasattr(route, "matches"):
        return None
    match, child = route.matches(scope)
    if match.value not in (_FULL, _PARTIAL):
        return None
    path = _format(route)
    children = getattr(route, "routes", None)
    if children is not None:  # a mount, "/shop/{path}", or a host, which has no path
        template_match = _match(children, {**scope, **child})
        if template_match is not None:
            return (path or "").removesuffix("/{path}") + template_match[0], template_match[1]
    return None if path is None else (path, match.value == _FULL)


def _format(route: Any) -> str | None:
    path = getattr(route, "path_format", None)
    return path if isinstance(path, str) else None
