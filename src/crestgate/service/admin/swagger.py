"""`/docs`: Swagger UI, to read about the API and to try it, from files that an installed package brings.

Nothing is loaded from another host, so it works in closed networks, and the Content-Security-Policy says so. It is as
strict as Swagger UI allows: it sets styles of elements, and shows icons as data. The same without script is
`/docs/reference` (docs_page.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from starlette.responses import HTMLResponse, Response, StreamingResponse

__all__ = ["SWAGGER_FILES", "SWAGGER_POLICY", "in_pieces", "swagger_file", "swagger_page"]

SWAGGER_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PACKAGE = "fastapi_offline"
TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
SWAGGER_FILES = ("swagger-ui-bundle.js", "swagger-ui.css", "start.js")
PIECE = 16 * 1024
"""Bytes that are sent in one turn of the event loop: the script has 1.5 MB. A client that does not read must not hold
all of it, and many clients must not hold up the others."""
START = b"""\
if (matchMedia("(prefers-color-scheme: dark)").matches) document.documentElement.classList.add("dark-mode");
SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#docs",
  deepLinking: true,
  docExpansion: "list",
  defaultModelsExpandDepth: 0,
  tryItOutEnabled: true,
  displayRequestDuration: true,
  validatorUrl: null,
  presets: [SwaggerUIBundle.presets.apis],
  layout: "BaseLayout"
});
"""
PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Crestgate API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/docs/swagger-ui.css">
<style>
body { margin: 0; font: 15px/1.5 system-ui, sans-serif }
header { max-width: 1460px; margin: 0 auto; padding: 1rem 20px 0 } header p { margin: 0 0 .4rem }
.swagger-ui .info { margin: 20px 0 } .swagger-ui .scheme-container { padding: 12px 0 }
</style>
<script src="/docs/swagger-ui-bundle.js" defer></script>
<script src="/docs/start.js" defer></script>
</head>
<body>
<header>
<p><a href="/">Dashboard</a> · <a href="/docs/reference">The same page without script</a> ·
<a href="/openapi.json">openapi.json</a></p>
<p>Choose an operation such as <code>POST /api/v1/check</code>, change its example, and press Execute. Calls that need a
key take the one that you enter at Authorize; it stays in this page.</p>
</header>
<main id="docs"></main>
</body>
</html>
"""


def swagger_page() -> Response:
    return HTMLResponse(PAGE, headers={"Content-Security-Policy": SWAGGER_POLICY, "X-Content-Type-Options": "nosniff"})


def swagger_file(name: str) -> Response:
    """One of `SWAGGER_FILES`."""
    body = _read(name)
    headers = {"Cache-Control": "public, max-age=3600", "X-Content-Type-Options": "nosniff"}
    headers["Content-Length"] = str(len(body))
    return StreamingResponse(in_pieces(body), headers=headers, media_type=TYPES[name.rpartition(".")[2]])


@cache
def _read(name: str) -> bytes:
    if name == "start.js":
        return START
    found = find_spec(PACKAGE)  # not imported: only its files are used
    assert found is not None
    assert found.submodule_search_locations
    return (Path(found.submodule_search_locations[0]) / "static" / name).read_bytes()


async def in_pieces(body: bytes) -> AsyncIterator[bytes]:
    """A large public body for a StreamingResponse."""
    for start in range(0, len(body), PIECE):
        yield body[start : start + PIECE]
        await asyncio.sleep(0)
