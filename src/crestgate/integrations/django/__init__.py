"""Limits in Django: a middleware for all of a project, and a decorator for single views.

    MIDDLEWARE = [..., "crestgate.integrations.django.RateLimitMiddleware"]
    CRESTGATE = {"LIMITER": "redis://localhost", "LIMITS": "100/minute", "KEY": "user"}

    from crestgate.integrations.django import exempt, limit

    @limit("5/minute")
    def login(request): ...

The names in `CRESTGATE` are in options.py. The middleware stands after whatever says who asks, and where to
(`AuthenticationMiddleware`, `LocaleMiddleware`, what sets `request.urlconf`), and before whatever costs something. Both
serve sync and async views, under WSGI and ASGI, and neither needs a database or an application of `django.contrib`.
"""

from crestgate.errors import install_hint

try:
    from crestgate.integrations.django.decorator import limit
    from crestgate.integrations.django.exempt_views import exempt
    from crestgate.integrations.django.middleware import RateLimitMiddleware
except ModuleNotFoundError as error:
    raise ImportError(f"crestgate.integrations.django needs {error.name}: {install_hint('django')}") from error

__all__ = ["RateLimitMiddleware", "exempt", "limit"]
