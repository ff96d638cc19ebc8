"""Django: limits for the whole project in its settings, and limits of views by a decorator, in one file.

pip install '.[django]'
python examples/django_app.py
"""

import logging

import django
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path

from crestgate.integrations.django import exempt, limit

MIDDLEWARE = ["crestgate.integrations.django.RateLimitMiddleware"]  # after AuthenticationMiddleware, if used
CRESTGATE = {
    "LIMITER": "memory://",
    "LIMITS": "100/hour",
    "KEY": "header:X-Tenant",
}

settings.configure(MIDDLEWARE=MIDDLEWARE, CRESTGATE=CRESTGATE, ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"])
django.setup()
logging.getLogger("django").setLevel(logging.CRITICAL)  # a 429 is no news here


@limit("2/minute")
def item(request: HttpRequest, number: int) -> HttpResponse:
    return HttpResponse(f"{request.method} {number}")


@limit("1/minute", methods=["POST"])
async def report(request: HttpRequest) -> HttpResponse:
    return HttpResponse(request.path)


search = limit("2/minute", scope="search", key="ip")  # one counter for all views that have it


@search
def books(request: HttpRequest) -> HttpResponse:
    return HttpResponse(request.path)


@search
def films(request: HttpRequest) -> HttpResponse:
    return HttpResponse(request.path)


@exempt
def healthz(request: HttpRequest) -> HttpResponse:
    return HttpResponse(request.path)


urlpatterns = [
    path("item/<int:number>", item),
    path("report", report),
    path("books", books),
    path("films", films),
    path("healthz", healthz),
]

client = Client(headers={"X-Tenant": "acme"})
print("items:", [client.get(f"/item/{number}").status_code for number in (1, 2, 3)])
print("reports:", [client.post("/report").status_code for _ in range(2)], client.get("/report").status_code)
print("searches:", [client.get(name).status_code for name in ("/books", "/films", "/books")])
print("nowhere:", client.get("/nowhere").status_code, client.get("/nowhere")["X-RateLimit-Remaining"])
print("exempt:", client.get("/healthz").get("X-RateLimit-Remaining"))
