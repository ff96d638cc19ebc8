"""Rate limits for web frameworks and gRPC: a middleware, an extension or an interceptor for each.

`crestgate.integrations.asgi`, `fastapi`, `wsgi`, `flask`, `django` and `grpc` each import only their own framework. The
names exported here are common to all of them.
"""

from crestgate.http.header_options import HeaderStyle
from crestgate.integrations.denial import Denial
from crestgate.integrations.request import Request, Response

__all__ = ["Denial", "HeaderStyle", "Request", "Response"]
