"""The same shop, limited by Crestgate."""

from flask import Flask, Response, jsonify, request

from crestgate.integrations.flask import Crestgate

app = Flask(__name__)
gate = Crestgate(
    app,
    default_limits=["100/day", "4/hour"],
    limiter="memory://",
    strategy="moving-window",
)


def api_key() -> str:
    return request.headers.get("X-API-Key", "")


search = gate.shared_limit("3/hour", scope="search", key_func=api_key)


@app.get("/items/<int:number>")
def item(number: int) -> str:
    return str(number)


@app.post("/orders")
@gate.limit("2/hour")
def order() -> str:
    return "ordered"


@app.get("/books")
@search
def books() -> str:
    return "books"


@app.get("/films")
@search
def films() -> str:
    return "films"


@app.get("/healthz")
@gate.exempt
def healthz() -> str:
    return "ok"


@app.errorhandler(429)
def denied(error: Exception) -> tuple[Response, int]:
    return jsonify(error="slow down"), 429
