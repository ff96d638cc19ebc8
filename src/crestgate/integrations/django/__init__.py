"""Limits in Django: a middleware for a whole project, and a decorator for single views.

    MIDDLEWARE = [..., "crestgate.integrations.django.RateLimitMiddleware"]
    CRESTGATE = {"LIMITER": "redis://localhost", "LIMITS": "100/minute", "KEY": "user"}

    from crestgate.integrations.django import exempt, limit

    @limit("5/minute")
    def login(request): ...

See options.py for the keys of `CRESTGATE`. Put the middleware after those that set the user and the URL configuration
(`AuthenticationMiddleware`, `LocaleMiddleware`), and before expensive ones. Both serve sync and async views, under WSGI
and ASGI, and neither needs a database or an application of `django.contrib`.
"""

from crestgate.errors import install_hint

try:
    from crestgate.integrations.django.decorator import limit
    from crestgate.integrations.django.exempt_views import exempt
    from crestgate.integrations.django.middleware import RateLimitMiddleware
except ModuleNotFoundError as error:
    raise ImportError(f"crestgate.integrations.django needs {error.name}: {install_hint('django')}") from error

__all__ = ["RateLimitMiddleware", "exempt", "limit"]
