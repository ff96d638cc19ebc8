"""Any WSGI application: Bottle, Falcon, Pyramid, or a function of one's own.

pip install . werkzeug
python examples/wsgi_app.py
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from werkzeug.test import Client

from crestgate.integrations.wsgi import RateLimitMiddleware

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment


def hello(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"hello, ", environ["REMOTE_ADDR"].encode()]


app = RateLimitMiddleware(hello, limiter="memory://", limits="2/minute")

client = Client(app)
for _ in range(3):
    answer = client.get("/", environ_base={"REMOTE_ADDR": "198.51.100.7"})
    print(answer.status, answer.headers["X-RateLimit-Remaining"])
