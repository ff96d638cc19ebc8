"""Limits in Flask, with an interface similar to Flask-Limiter's.

    gate = Crestgate(app, limiter="redis://localhost", default_limits=["200/day", "50/hour"])

    @app.route("/login", methods=["POST"])
    @gate.limit("5/minute", when=lambda response: response.status == 401)
    def login(): ...

    @app.route("/ping")
    @gate.exempt
    def ping(): ...

    gate.limit("60/hour")(blueprint)                          all views of a blueprint, each with its own counter
    search = gate.shared_limit("100/hour", scope="search")    one counter for all views that it decorates

All limits count per caller. `default_limits`, and those of a view or a blueprint, also count per route (its rule, so
`/item/1` and `/item/2` share); `application_limits` count over all routes. A view's own limits replace those of its
blueprint, and these replace the defaults, unless they have `override_defaults=False`. A request that one of its limits
denies is not charged by the others.

The response to a denial is 429 with a JSON problem document. `on_denied=` can replace it, or Flask's error handlers:
`@app.errorhandler(429)` and `@app.errorhandler(RateLimitExceeded)` are called with an error that has the `decision`.

The limits are checked in a `before_request` function, which `init_app` registers: functions that set what key callables
need (`g.user`) must be registered before.
"""

from crestgate.errors import install_hint

try:
    from crestgate.integrations.flask.extension import Crestgate
except ModuleNotFoundError as error:
    raise ImportError(f"crestgate.integrations.flask needs {error.name}: {install_hint('flask')}") from error

__all__ = ["Crestgate"]
