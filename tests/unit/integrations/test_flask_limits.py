"""The Flask extension: which limits apply to a request, and each option."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Blueprint, Flask, g, request

from crestgate import ConfigError, Limiter
from crestgate.integrations.flask import Crestgate
from unit.integrations.flask_sites import get, passes, site, statuses
from unit.integrations.wsgi_calls import limiter_on


def view(app: Any, path: str, decorate: Any = lambda view: view, **options: Any) -> None:
    """A route that responds with its path."""
    app.add_url_rule(path, path.strip("/").replace("/", "_") or "root", decorate(lambda **_: request.path), **options)


# -- levels -----------------------------------------------------------------------------------------------------------


def test_defaults_count_per_caller_and_route() -> None:
    app, _ = site(default_limits=["3/minute", "100/day"])
    view(app, "/a")
    view(app, "/item/<name>")
    assert passes(app, "/a") == 3
    assert passes(app, "/item/1", 2) == 2
    assert passes(app, "/item/2") == 1
    assert passes(app, "/a", peer="198.51.100.1") == 3


def test_limit_of_a_view_replaces_the_defaults() -> None:
    app, gate = site(default_limits="3/minute")
    view(app, "/more", gate.limit("5/minute"))
    view(app, "/both", gate.limit("5/minute", override_defaults=False))
    assert passes(app, "/more") == 5
    assert passes(app, "/both") == 3


def test_application_limits_share_one_counter() -> None:
    app, gate = site(application_limits=["4/minute"], default_limits=["3/minute"])
    view(app, "/a")
    view(app, "/b", gate.limit("100/minute"))
    view(app, "/free", gate.exempt)
    assert passes(app, "/a", 3) == 3
    assert passes(app, "/b") == 1
    assert passes(app, "/free") == 10


def test_unrouted_paths_have_application_limits_only() -> None:
    app, _ = site(application_limits="4/minute", default_limits="1/minute")
    view(app, "/a")
    assert statuses(app, "/nothing", 3) == [404] * 3
    assert statuses(app, "/a", 2, method="POST") == [405, 429]


def test_static_files_have_their_own_limits_only(tmp_path: Any) -> None:
    (tmp_path / "x.css").write_text("x")
    app = Flask("site", static_folder=str(tmp_path), static_url_path="/static")
    gate = Crestgate(app, limiter=limiter_on(), application_limits="1/minute", default_limits="1/minute")
    pages = Blueprint("pages", __name__, static_folder=str(tmp_path), static_url_path="/of-pages")
    app.register_blueprint(pages)
    assert passes(app, "/static/x.css") == 10
    assert passes(app, "/of-pages/x.css") == 10
    app.view_functions["static"] = gate.limit("3/minute", override_defaults=False)(app.view_functions["static"])
    assert passes(app, "/static/x.css") == 1, "the limits of the application apply then, too"


def test_view_named_static_is_limited() -> None:
    app, _ = site(default_limits="3/minute")
    app.add_url_rule("/s", "static", lambda: "s")
    assert passes(app, "/s") == 3


def test_rules_apply_without_application_limits(tmp_path: Any) -> None:
    path = tmp_path / "crestgate.yaml"
    rule = (
        "{name: orders, dimension: ip, endpoint_pattern: /a/*, limit: 2, window_seconds: 60, algorithm: token_bucket}"
    )
    path.write_text(f"store: memory://\nplans: {{few: 1/minute}}\nrules:\n  - {rule}\n")
    with Limiter.from_config(path) as limiter:
        app, gate = site(limiter=limiter)
        view(app, "/a/<name>")
        view(app, "/plan", gate.limit("few"))
        assert passes(app, "/a/1", 2) == 2
        assert passes(app, "/a/2") == 0
        assert passes(app, "/a/nothing/here") == 0
        assert passes(app, "/plan") == 1
        assert "ratelimit" not in get(app, "/other").headers


def test_denied_request_charges_no_limit() -> None:
    app, gate = site(application_limits="9/minute", default_limits="7/minute")
    twice = gate.limit("6/minute", override_defaults=False, when=lambda response: True)
    view(app, "/a", lambda view: twice(gate.limit("3/minute", override_defaults=False)(view)))
    view(app, "/b")
    assert passes(app, "/a", 20) == 3
    header = get(app, "/a").headers["RateLimit"]
    assert header == '"9/minute";r=6;t=20, "6/minute";r=3;t=30, "3/minute";r=0;t=20', "only checked limits are listed"
    assert passes(app, "/b", 20) == 6


# -- blueprints -------------------------------------------------------------------------------------------------------


def blueprint(name: str, *paths: str) -> Blueprint:
    made = Blueprint(name, __name__)
    for path in paths:
        view(made, path)
    return made


def test_blueprint_limits_are_the_defaults_of_its_views() -> None:
    app, gate = site(default_limits="2/minute")
    pages = blueprint("pages", "/a", "/b")
    view(pages, "/own", gate.limit("5/minute"))
    view(pages, "/free", gate.exempt)
    assert gate.limit("3/minute")(pages) is pages
    app.register_blueprint(pages, url_prefix="/p")
    view(app, "/a")
    assert [passes(app, path) for path in ("/p/a", "/p/b", "/p/own", "/p/free", "/a")] == [3, 3, 5, 10, 2]


def test_exempt_blueprint_may_have_a_limited_view() -> None:
    app, gate = site(default_limits="2/minute", application_limits="6/minute")
    pages = blueprint("pages", "/a")
    view(pages, "/own", gate.limit("3/minute"))
    gate.exempt(pages)
    app.register_blueprint(pages)
    assert [passes(app, "/a"), passes(app, "/own")] == [10, 3]


def test_nested_blueprint_inherits_limits() -> None:
    app, gate = site(default_limits="2/minute")
    outer, inner, limited = blueprint("outer", "/o"), blueprint("inner", "/i"), blueprint("limited", "/l")
    gate.limit("3/minute")(outer)
    gate.limit("4/minute")(limited)
    outer.register_blueprint(inner)
    outer.register_blueprint(limited)
    app.register_blueprint(outer)
    assert [passes(app, path) for path in ("/o", "/i", "/l")] == [3, 3, 4]


def test_blueprint_limits_apply_under_any_name_and_prefix() -> None:
    app, gate = site()
    pages = gate.limit("3/minute")(blueprint("pages", "/a"))
    app.register_blueprint(pages, url_prefix="/one")
    app.register_blueprint(pages, name="again", url_prefix="/two")
    assert [passes(app, "/one/a"), passes(app, "/two/a")] == [3, 3]


def test_shared_limit_of_a_blueprint_is_one_counter() -> None:
    app, gate = site()
    pages = gate.shared_limit("3/minute", scope="pages")(blueprint("pages", "/a", "/b"))
    app.register_blueprint(pages)
    assert [passes(app, "/a", 2), passes(app, "/b")] == [2, 1]


# -- shared counters --------------------------------------------------------------------------------------------------


def test_views_of_one_path_and_different_methods_have_separate_counters() -> None:
    app, gate = site()
    app.add_url_rule("/x", "read", gate.limit("3/minute")(lambda: "r"))
    app.add_url_rule("/x", "write", gate.limit("3/minute")(lambda: "w"), methods=["POST"])
    assert passes(app, "/x", method="POST") == 3
    assert passes(app, "/x", 2) == 2
    assert passes(app, "/x", method="HEAD") == 1, "HEAD is the same view"


def test_methods_of_one_view_share_a_counter_by_default() -> None:
    app, gate = site()
    for name, per_method in (("together", False), ("apart", True)):
        view(app, f"/{name}", gate.limit("3/minute", per_method=per_method), methods=["GET", "POST"])
    for path, posted in (("/together", 0), ("/apart", 3)):
        assert passes(app, path) == 3
        assert passes(app, path, method="POST") == posted


def test_scope_and_shared_limit_join_views() -> None:
    app, gate = site()
    shared = gate.shared_limit("3/minute", scope="search", cost=1)
    view(app, "/a", shared)
    view(app, "/b", shared)
    view(app, "/c", gate.limit("3/minute", scope="search"))
    view(app, "/d", gate.limit("3/minute", scope="other"))
    assert [passes(app, path, 1) for path in ("/a", "/b", "/c")] == [1, 1, 1]
    assert [passes(app, path) for path in ("/a", "/b", "/c", "/d")] == [0, 0, 0, 3]


def test_application_under_another_mount_path_counts_separately() -> None:
    limiter = limiter_on()
    app, gate = site(limiter=limiter)
    view(app, "/a", gate.limit("3/minute"))
    assert passes(app, "/a") == 3
    assert passes(app, "/a", base_url="http://localhost/mounted") == 3


def test_rules_of_subdomains_count_separately() -> None:
    app = Flask("site", subdomain_matching=True)
    app.config["SERVER_NAME"] = "example.org"
    gate = Crestgate(app, limiter=limiter_on())
    for name in ("one", "two"):
        app.add_url_rule("/", name, gate.limit("3/minute")(lambda: "x"), subdomain=name)
    for name in ("one", "two"):
        assert passes(app, "/", base_url=f"http://{name}.example.org") == 3


# -- options ----------------------------------------------------------------------------------------------------------


def test_key_functions_with_and_without_an_argument() -> None:
    app, gate = site(key_func=lambda: request.headers.get("X-Tenant"))
    view(app, "/habit", gate.limit("3/minute"))
    view(app, "/ours", gate.limit("3/minute", key=lambda request: f"{request.args.get('who')}"))
    assert passes(app, "/habit", headers={"X-Tenant": "a"}) == 3
    assert passes(app, "/habit", headers={"X-Tenant": "b"}) == 3
    assert passes(app, "/ours?who=a") == 3
    assert passes(app, "/ours?who=b") == 3


def test_key_may_read_g_set_by_an_earlier_function() -> None:
    app = Flask("site")

    @app.before_request
    def who() -> None:
        g.user = request.args["user"]

    gate = Crestgate(app, limiter=limiter_on(), key="user", user=lambda: g.user)
    view(app, "/a", gate.limit("3/minute"))
    assert [passes(app, "/a?user=1"), passes(app, "/a?user=2")] == [3, 3]


def test_cost_methods_exemptions_and_filters() -> None:
    app, gate = site(default_limits="6/minute", exempt=["/healthz"])
    view(app, "/healthz")
    view(app, "/dear", gate.limit("6/minute", cost=lambda: 3))
    view(app, "/writes", gate.limit("3/minute", methods=["post"]), methods=["GET", "POST"])
    view(app, "/known", gate.limit("3/minute", exempt_when=lambda: "X-Known" in request.headers))
    view(app, "/plain")

    @gate.request_filter
    def internal() -> bool:
        return request.headers.get("X-Internal") == "yes"

    assert passes(app, "/healthz") == 10
    assert passes(app, "/dear") == 2
    assert passes(app, "/writes") == 10
    assert passes(app, "/writes", method="POST") == 3
    assert passes(app, "/known", headers={"X-Known": "1"}) == 10
    assert passes(app, "/known") == 3
    assert passes(app, "/plain", headers={"X-Internal": "yes"}) == 10
    assert passes(app, "/plain") == 6


def test_callable_limits_alone_and_among_others() -> None:
    app, gate = site(default_limits=["8/minute", lambda: request.args.get("limit")])
    view(app, "/a")
    view(app, "/b", gate.limit(lambda: "4/minute"))
    assert passes(app, "/a?limit=2/minute") == 2
    assert passes(app, "/a") == 6, "a denial by the callable limit charges nothing to the other"
    assert passes(app, "/b") == 4


def test_only_some_responses_count() -> None:
    app, gate = site()
    ours = gate.limit("2/minute", when=lambda response: response.status == 401)
    habit = gate.limit("2/minute", deduct_when=lambda response: response.get_data() == b"wrong")

    def login() -> tuple[str, int]:
        return ("wrong", 401) if request.args["pass"] == "wrong" else ("right", 200)

    app.add_url_rule("/ours", "ours", ours(login))
    app.add_url_rule("/habit", "habit", habit(login))
    for path in ("/ours", "/habit"):
        assert passes(app, f"{path}?pass=right") == 10
        assert get(app, f"{path}?pass=wrong").headers["X-RateLimit-Remaining"] == "1"
        assert get(app, f"{path}?pass=right").headers["X-RateLimit-Remaining"] == "1"
        assert passes(app, f"{path}?pass=wrong") == 1
        assert passes(app, f"{path}?pass=right") == 0


@pytest.mark.parametrize("propagate", [True, False])
def test_when_gets_status_500_for_a_view_error(propagate: bool) -> None:
    app, gate = site()
    app.config["PROPAGATE_EXCEPTIONS"] = propagate
    app.logger.disabled = True
    fails: Any = lambda: 1 / 0  # noqa: E731 - a view that fails
    app.add_url_rule("/a", "a", gate.limit("2/minute", when=lambda response: response.status < 500)(fails))
    for _ in range(5):
        if propagate:
            with pytest.raises(ZeroDivisionError):
                get(app, "/a")
        else:
            response = get(app, "/a")
            assert (response.status_code, response.headers["X-RateLimit-Remaining"]) == (500, "2")


def test_dry_run_denies_nothing() -> None:
    app, gate = site()
    view(app, "/a", gate.limit("3/minute", dry_run=True))
    assert passes(app, "/a") == 10


def test_preflight_is_not_counted() -> None:
    app, gate = site()
    view(app, "/a", gate.limit("1/minute"))
    headers = {"Origin": "https://example.org", "Access-Control-Request-Method": "GET"}
    assert statuses(app, "/a", 3, method="OPTIONS", headers=headers) == [200] * 3
    assert passes(app, "/a") == 1


def test_leaky_bucket_delays_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("crestgate.integrations.flask.app_limits.time.sleep", slept.append)
    app, gate = site(limiter=Limiter("memory://"))
    view(app, "/a", gate.limit("60/minute burst 3 using leaky_bucket"))
    assert passes(app, "/a", 3) == 3
    assert len(slept) == 2


def test_user_of_flask_login_is_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    class User:
        def __init__(self, name: str | None) -> None:
            self.name = name

        @property
        def is_authenticated(self) -> bool:
            return self.name is not None

        def get_id(self) -> str | None:
            return self.name

    class Module:
        @property
        def current_user(self) -> User:
            return User(request.args.get("user"))

    app, gate = site(key="user")
    view(app, "/a", gate.limit("3/minute"))
    monkeypatch.setitem(__import__("sys").modules, "flask_login", Module())
    assert [passes(app, "/a?user=1", 2), passes(app, "/a?user=2", 2)] == [2, 1], "this application does not use it"
    app.login_manager = object()  # type: ignore[attr-defined]  # as Flask-Login puts it there
    assert [passes(app, "/a?user=1"), passes(app, "/a?user=2"), passes(app, "/a")] == [3, 3, 0]


# -- the extension ----------------------------------------------------------------------------------------------------


def test_configuration_applies_without_arguments() -> None:
    app = Flask("site")
    app.config.update(
        CRESTGATE_STORE="memory://?prefix=flask-config",
        CRESTGATE_DEFAULT_LIMITS="3/minute",
        CRESTGATE_APPLICATION_LIMITS=["5/minute"],
        CRESTGATE_TRUSTED_PROXIES=["203.0.113.0/24"],
        CRESTGATE_HEADERS=False,
    )
    gate = Crestgate()
    gate.init_app(app)
    gate.init_app(app)
    view(app, "/a")
    view(app, "/b")
    assert "ratelimit" not in get(app, "/a").headers
    assert [passes(app, "/a"), passes(app, "/b")] == [2, 2]
    assert passes(app, "/b", headers={"X-Forwarded-For": "198.51.100.9"}) == 3
    app.config["CRESTGATE_ENABLED"] = False
    assert passes(app, "/b") == 10


def test_arguments_override_the_configuration() -> None:
    app = Flask("site")
    app.config.update(CRESTGATE_STORE="nonsense", CRESTGATE_DEFAULT_LIMITS="nonsense")
    Crestgate(app, limiter=limiter_on(), default_limits="3/minute")
    view(app, "/a")
    assert passes(app, "/a") == 3


def test_disabled_extension_limits_nothing() -> None:
    app, gate = site(enabled=False, default_limits="1/minute")
    view(app, "/a")
    view(app, "/b", gate.limit("1/minute"))
    assert [passes(app, "/a"), passes(app, "/b")] == [10, 10]
    gate.enabled = True
    assert [passes(app, "/a"), passes(app, "/b")] == [1, 1]


def test_one_extension_with_several_applications() -> None:
    gate = Crestgate(default_limits="3/minute")
    pages = Blueprint("pages", __name__)
    view(pages, "/own", gate.limit("4/minute"))
    apps = []
    for _ in range(2):
        app = Flask("site")
        app.config["CRESTGATE_STORE"] = limiter_on()
        gate.init_app(app)
        view(app, "/a")
        app.register_blueprint(pages)
        apps.append(app)
    assert [(passes(app, "/a"), passes(app, "/own")) for app in apps] == [(3, 4)] * 2


def test_two_extensions_on_one_application_both_count() -> None:
    limiter = limiter_on()
    app, first = site(limiter=limiter)
    second = Crestgate(app, limiter=limiter, application_limits="5/minute")
    view(app, "/a", lambda view: first.limit("8/minute")(second.limit("4/minute")(view)))
    response = get(app, "/a")
    assert response.headers["RateLimit-Policy"].count(";q=") == 3
    assert len(response.headers.getlist("RateLimit-Policy")) == 1
    assert passes(app, "/a") == 3


def test_current_decision_is_accessible() -> None:
    app, gate = site(application_limits="10/minute")
    decisions: list[Any] = []

    @app.get("/a")
    @gate.limit("3/minute")
    def a() -> str:
        decisions.append(gate.current_limit)
        return "a"

    get(app, "/a")
    assert (decisions[0].remaining, len(decisions[0].parts)) == (2, 2)
    with app.test_request_context("/a"):
        assert gate.current_limit is None


def test_manual_check_counts_once() -> None:
    app = Flask("site")
    gate = Crestgate(limiter=limiter_on())

    @app.before_request
    def early() -> None:
        gate.check()

    gate.init_app(app)
    view(app, "/a", gate.limit("3/minute", on_denied=lambda request, decision: ("shaped", 429)))
    view(app, "/b", gate.limit("3/minute"))
    assert [passes(app, "/a"), get(app, "/a").text] == [3, "shaped"]
    assert passes(app, "/b") == 3


def test_state_does_not_leak_through_an_application_context() -> None:
    app, gate = site()
    view(app, "/a", gate.limit("3/minute"))
    with app.app_context():
        assert passes(app, "/a") == 3


# -- configuration errors ---------------------------------------------------------------------------------------------


def test_invalid_configuration_is_refused_before_the_first_request() -> None:
    _, gate = site()
    with pytest.raises(ConfigError):
        gate.limit("5/fortnight")
    with pytest.raises(ConfigError, match="needs limits"):
        gate.limit(None)
    with pytest.raises(ConfigError, match="same"):
        gate.limit("5/minute", key="ip", key_func=lambda: "x")
    with pytest.raises(ConfigError, match="storage_uri"):
        Crestgate(storage_uri="memory://")  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="deduct_when"):
        gate.limit("5/minute", deduct_when=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="scope"):
        gate.shared_limit("5/minute", scope=lambda: "x")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="Flask application"):
        Crestgate(lambda: "x")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="request_filter"):
        gate.request_filter(True)
    with pytest.raises(ConfigError):
        Crestgate(Flask("site"), limiter=limiter_on(), default_limits="5/fortnight")


def test_limits_created_before_the_application_are_validated_by_init_app() -> None:
    gate = Crestgate(limiter=limiter_on())

    @gate.limit("platinum")
    def decorated() -> str:
        return "x"

    with pytest.raises(ConfigError):
        gate.init_app(Flask("site"))
    assert decorated() == "x", "outside of a request nothing is limited"


def test_async_callables_are_refused() -> None:
    async def who() -> str:
        return "x"

    _, gate = site()
    with pytest.raises(ConfigError, match="coroutine"):
        gate.limit("5/minute", key_func=who)
    with pytest.raises(ConfigError, match="coroutine"):
        Crestgate(Flask("site"), limiter=limiter_on(), key=who)
