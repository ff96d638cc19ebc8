"""Limits in the frameworks people use: a middleware, an extension or an interceptor for each, and all alike.

`headgate.integrations.asgi`, `fastapi`, `wsgi`, `flask`, `django` and `grpc` each import their own framework and no
other. What is here is the same in all of them.
"""

from headgate.http.style import HeaderStyle
from headgate.integrations.denial import Denial
from headgate.integrations.request import Request, Response

__all__ = ["Denial", "HeaderStyle", "Request", "Response"]
