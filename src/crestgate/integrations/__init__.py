"""Limits in the frameworks people use: a middleware, an extension or an interceptor for each, and all alike.

`crestgate.integrations.asgi`, `fastapi`, `wsgi`, `flask`, `django` and `grpc` each import their own framework and no
other. What is here is the same in all of them.
"""

from crestgate.http.header_options import HeaderStyle
from crestgate.integrations.denial import Denial
from crestgate.integrations.request import Request, Response

__all__ = ["Denial", "HeaderStyle", "Request", "Response"]
