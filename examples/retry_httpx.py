"""A client that comes back when a server tells it to, and not at all where that would take too long."""

import asyncio
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import httpx

from crestgate.retry import Retry
from crestgate.retry.httpx import AsyncRetryTransport, RetryTransport

ANSWERS: dict[str, list[tuple[int, str | None]]] = {  # what the server says to one call after the other
    "/orders": [(429, "1"), (200, None)],
    "/reports": [(503, "3600")],
    "/prices": [(429, "0"), (429, "0"), (200, None)],
}


class Api(BaseHTTPRequestHandler):
    """Somebody else's API."""

    def do_GET(self) -> None:
        status, wait = ANSWERS[self.path].pop(0)
        print(f"  {self.path}: {status}" + (f", come back after {wait} s" if wait else ""))
        self.send_response(status)
        if wait:
            self.send_header("Retry-After", wait)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """It prints by itself."""


with HTTPServer(("127.0.0.1", 0), Api) as server:
    Thread(target=server.serve_forever, daemon=True).start()
    api = f"http://127.0.0.1:{server.server_address[1]}"

    retry = Retry(attempts=4, max_wait=10)
    with httpx.Client(transport=RetryTransport(retry)) as client:
        print("orders:", client.get(f"{api}/orders").status_code)
        print("reports:", client.get(f"{api}/reports").status_code)  # an hour is too long: this is the first answer

    async def prices() -> int:
        async with httpx.AsyncClient(transport=AsyncRetryTransport(retry)) as client:
            return (await client.get(f"{api}/prices")).status_code

    print("prices:", asyncio.run(prices()))
    server.shutdown()
