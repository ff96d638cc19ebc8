"""The same site, limited by Crestgate."""

import django
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.urls import path

from crestgate import Decision
from crestgate.integrations import Request
from crestgate.integrations.django import limit

settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
    MIDDLEWARE=["crestgate.integrations.django.RateLimitMiddleware"],
    CRESTGATE={
        "LIMITER": "memory://",
        "DEFAULT_ALGORITHM": "fixed_window",
        "ON_DENIED": f"{__name__}.denied",
    },
)
django.setup()


def denied(request: Request, decision: Decision) -> HttpResponse:
    return HttpResponse("slow down", status=429)


def username(request: Request) -> str | None:
    name: str | None = request.native.POST.get("username")
    return name


@limit("3/h")
def item(request: HttpRequest, number: int) -> HttpResponse:
    return HttpResponse(str(number))


@limit("10/h", methods=["POST"])
@limit("2/h", methods=["POST"], key=username)
def login(request: HttpRequest) -> HttpResponse:
    return HttpResponse("form" if request.method == "GET" else "wrong", status=200)


search = limit("2/h", scope="search", key="header:x-tenant")


@search
def books(request: HttpRequest) -> HttpResponse:
    return HttpResponse("books")


@search
def films(request: HttpRequest) -> HttpResponse:
    return HttpResponse("films")


urlpatterns = [
    path("items/<int:number>", item),
    path("login", login),
    path("books", books),
    path("films", films),
]
