"""A small site, limited by django-ratelimit."""

import django
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django_ratelimit.decorators import ratelimit

settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
    MIDDLEWARE=["django_ratelimit.middleware.RatelimitMiddleware"],
    RATELIMIT_VIEW=f"{__name__}.denied",
    CACHES={"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}},
)
django.setup()


def denied(request: HttpRequest, exception: Exception) -> HttpResponse:
    return HttpResponse("slow down", status=429)


@ratelimit(key="ip", rate="3/h")
def item(request: HttpRequest, number: int) -> HttpResponse:
    return HttpResponse(str(number))


@ratelimit(key="ip", rate="10/h", method="POST")
@ratelimit(key="post:username", rate="2/h", method="POST")
def login(request: HttpRequest) -> HttpResponse:
    return HttpResponse("form" if request.method == "GET" else "wrong", status=200)


@ratelimit(group="search", key="header:x-tenant", rate="2/h")
def books(request: HttpRequest) -> HttpResponse:
    return HttpResponse("books")


@ratelimit(group="search", key="header:x-tenant", rate="2/h")
def films(request: HttpRequest) -> HttpResponse:
    return HttpResponse("films")


urlpatterns = [
    path("items/<int:number>", item),
    path("login", login),
    path("books", books),
    path("films", films),
]
