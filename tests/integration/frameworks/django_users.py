"""A Django project with users and sessions in a database, run by its tests in its own process.

Prints for each request, in order, the user's name, the status, and the number of queries.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import django
from django.conf import settings
from django.http import HttpResponse
from django.urls import path

CRESTGATE = {"LIMITER": "memory://", "LIMITS": "2/hour", "KEY": "user"}
kind, folder = sys.argv[1:3]
settings.configure(
    ALLOWED_HOSTS=["*"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{folder}/users.sqlite"}},
    DEBUG=True,  # records queries
    CRESTGATE={**CRESTGATE, "KEY": "ip"} if kind.endswith("-ip") else CRESTGATE,
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"],
    LOGGING_CONFIG=None,
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "crestgate.integrations.django.RateLimitMiddleware",
    ],
    ROOT_URLCONF=__name__,
    SECRET_KEY="of no consequence",
)
django.setup()


def sync_view(request: Any) -> HttpResponse:
    return HttpResponse("yes")


async def async_view(request: Any) -> HttpResponse:
    return HttpResponse("yes")


urlpatterns = [path("a", sync_view if kind.startswith("wsgi") else async_view)]


def main() -> None:
    import asyncio

    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.db.backends.utils import CursorWrapper
    from django.test import AsyncClient, Client

    call_command("migrate", verbosity=0)
    queries: list[str] = []
    execute = CursorWrapper.execute

    def execute_and_count(self: Any, sql: str, *args: Any, **more: Any) -> Any:
        queries.append(threading.current_thread().name)
        return execute(self, sql, *args, **more)

    clients: dict[str, Any] = {"nobody": Client() if kind.startswith("wsgi") else AsyncClient()}
    for name in ("ann", "bob"):
        clients[name] = Client() if kind.startswith("wsgi") else AsyncClient()
        clients[name].force_login(User.objects.create_user(name))
    CursorWrapper.execute = execute_and_count
    results = []
    for name in ("ann", "bob", "nobody", "ann", "nobody", "ann", "bob", "nobody"):
        queries.clear()
        pending = clients[name].get("/a")
        response = pending if kind.startswith("wsgi") else asyncio.run(_awaited(pending))
        results.append([name, response.status_code, len(queries)])
    print(json.dumps(results))  # noqa: T201 - read by the test


async def _awaited(pending: Any) -> Any:
    return await pending


if __name__ == "__main__":
    main()
