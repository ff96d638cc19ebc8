"""Calls to somebody else's API, no faster than it allows, from as many clients and processes as there are."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import httpx
import requests

from crestgate import Limiter
from crestgate.retry import Outbound, Retry
from crestgate.retry.httpx import PacedTransport, PacingTimeoutError, RetryTransport
from crestgate.retry.requests import PacedAdapter, RetryAdapter


class Api(BaseHTTPRequestHandler):
    """Somebody else's API: it allows ten calls a second, and wants to be left alone on Sundays."""

    limiter = Limiter("memory://")

    def do_GET(self) -> None:
        if self.path == "/sunday":
            status, wait = 503, "30"
        else:
            decision = self.limiter.check("you", "10/second burst 1")
            status, wait = (200, "") if decision.allowed else (429, "1")
        self.send_response(status)
        if wait:
            self.send_header("Retry-After", wait)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Nothing."""


with ThreadingHTTPServer(("127.0.0.1", 0), Api) as server:
    Thread(target=server.serve_forever, daemon=True).start()
    api = f"http://127.0.0.1:{server.server_address[1]}"

    limiter = Limiter("memory://")  # or redis://…, for all processes on all machines together
    outbound = Outbound(limiter, "9/second burst 1", key="shop-api", timeout=5.0)

    transport = RetryTransport(transport=PacedTransport(outbound))
    with httpx.Client(transport=transport) as client, requests.Session() as session:
        session.mount("http://", RetryAdapter(adapter=PacedAdapter(outbound)))
        print("by httpx:", [client.get(api).status_code for _ in range(3)])
        print("by requests:", [session.get(api).status_code for _ in range(3)])

    with httpx.Client(transport=RetryTransport(Retry(attempts=1), transport=PacedTransport(outbound))) as client:
        print("on Sunday:", client.get(f"{api}/sunday").status_code)
        try:
            client.get(api)
        except PacingTimeoutError as error:
            print("not sent:", error)
    server.shutdown()
