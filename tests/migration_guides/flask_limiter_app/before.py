"""A small shop, limited by Flask-Limiter."""

from flask import Flask, Response, jsonify, request
from flask_limiter import Limiter
from flask_limiter.util import get_remote_address

app = Flask(__name__)
limiter = Limiter(
    get_remote_address,
    app=app,
    default_limits=["100/day", "4/hour"],
    storage_uri="memory://",
    strategy="moving-window",
    headers_enabled=True,
)


def api_key() -> str:
    return request.headers.get("X-API-Key", "")


search = limiter.shared_limit("3/hour", scope="search", key_func=api_key)


@app.get("/items/<int:number>")
def item(number: int) -> str:
    return str(number)


@app.post("/orders")
@limiter.limit("2/hour")
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
@limiter.exempt
def healthz() -> str:
    return "ok"


@app.errorhandler(429)
def denied(error: Exception) -> tuple[Response, int]:
    return jsonify(error="slow down"), 429
