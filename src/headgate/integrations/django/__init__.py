"""Limits in Django: a middleware for all of a project, and a decorator for single views.

    MIDDLEWARE = [..., "headgate.integrations.django.RateLimitMiddleware"]
    HEADGATE = {"LIMITER": "redis://localhost", "LIMITS": "100/minute", "KEY": "user"}

    from headgate.integrations.django import exempt, limit

    @limit("5/minute")
    def login(request): ...

The names in `HEADGATE` are in options.py. The middleware stands after whatever says who asks, and where to
(`AuthenticationMiddleware`, `LocaleMiddleware`, what sets `request.urlconf`), and before whatever costs something. Both
serve sync and async views, under WSGI and ASGI, and neither needs a database or an application of `django.contrib`.
"""

try:
    from headgate.integrations.django.decorator import limit
    from headgate.integrations.django.freeing import exempt
    from headgate.integrations.django.middleware import RateLimitMiddleware
except ModuleNotFoundError as error:
    raise ImportError(f"headgate.integrations.django needs {error.name}: pip install 'headgate[django]'") from error

__all__ = ["RateLimitMiddleware", "exempt", "limit"]
