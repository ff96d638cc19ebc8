"""Callables of a Django project, which test settings name by their import path."""

from __future__ import annotations

from typing import Any

from crestgate.integrations import Denial

NO_CALLABLE = 42


def tenant(request: Any) -> str:
    return "tenant:" + str(request.headers["x-tenant"])


def two(request: Any) -> int:
    return 2


def is_staff(request: Any) -> bool:
    return "x-staff" in request.headers


def is_refused(response: Any) -> bool:
    return bool(response.status == 401)


def deny(request: Any, decision: Any) -> Denial:
    return Denial(503, b"later")


def someone(request: Any) -> str:
    return "someone"
