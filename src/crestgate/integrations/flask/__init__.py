"""Limits in Flask, with the habits of those who know Flask-Limiter.

    gate = Crestgate(app, limiter="redis://localhost", default_limits=["200/day", "50/hour"])

    @app.route("/login", methods=["POST"])
    @gate.limit("5/minute", when=lambda response: response.status == 401)
    def login(): ...

    @app.route("/ping")
    @gate.exempt
    def ping(): ...

    gate.limit("60/hour")(blueprint)                          all views of a blueprint, each with a counter of its own
    search = gate.shared_limit("100/hour", scope="search")    one counter for all views that it decorates

Every limit counts for each caller. `default_limits`, and those of a view or a blueprint, also for each route (its rule,
so `/item/1` and `/item/2` share), `application_limits` for all routes together. A view's own limits stand in the place
of its blueprint's, and those in the place of the defaults, unless they are written with `override_defaults=False`. A
request that one of its limits denies takes nothing from the others.

Denied is 429 with the problem as JSON. `on_denied=` shapes it, or Flask's own error handlers do:
`@app.errorhandler(429)` and `@app.errorhandler(RateLimitExceeded)` are given an error with the `decision`.

The limits are asked in a `before_request` function, when `init_app` was called: what key callables need of other such
functions (`g.user`) must have been registered before.
"""

from crestgate.errors import install_hint

try:
    from crestgate.integrations.flask.extension import Crestgate
except ModuleNotFoundError as error:
    raise ImportError(f"crestgate.integrations.flask needs {error.name}: {install_hint('flask')}") from error

__all__ = ["Crestgate"]
