"""`CRESTGATE` in Django's settings: errors are reported when the server starts."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpResponse
from django.test import RequestFactory
from django.test.utils import override_settings

from crestgate import Limiter
from crestgate.integrations.django import RateLimitMiddleware
from crestgate.testing import FakeClock
from integration.frameworks.apps.django_project import configure

configure()
HERE = "unit.integrations.django_callables"
OWN = "crestgate.integrations.django.RateLimitMiddleware"
LOGS_IN = "django.contrib.auth.middleware.AuthenticationMiddleware"


def answer(request: Any) -> Any:
    return HttpResponse("yes", status=401 if "refused" in request.GET else 200)


async def answer_async(request: Any) -> Any:
    return answer(request)


def made(crestgate: Any, get_response: Any = answer) -> RateLimitMiddleware:
    with override_settings(CRESTGATE=crestgate):
        return RateLimitMiddleware(get_response)


@pytest.mark.parametrize("get_response", [answer, answer_async])
@pytest.mark.parametrize(
    ("crestgate", "told"),
    [
        ({"LIMITES": "5/minute"}, r"'LIMITES': did you mean 'LIMITS'\?"),
        ({"limits": "5/minute"}, r"'limits': did you mean 'LIMITS'\?"),
        ({"STORE": "memory://"}, r"'STORE': did you mean 'LIMITER'\?"),
        ({"TRUSTED_PROXY": 1}, r"'TRUSTED_PROXY': did you mean 'TRUSTED_PROXIES'\?"),
        ({"SCOPE": "a", "LIMITS": "5/minute"}, "'SCOPE': it has LIMITER, LIMITS, KEY"),
        ({7: "a"}, "no 7: it has"),
        (["5/minute"], "must be a dict"),
        ({"LIMITS": "5/minut"}, "5/minut"),
        ({"LIMITS": "5/minute", "LIMITER": "nowhere.yaml"}, "nowhere.yaml"),
        ({"LIMITS": "5/minute", "LIMITER": "rediss//x"}, "rediss//x"),
        ({"LIMITS": "5/minute", "KEY": "usr"}, "'usr'"),
        (
            {"LIMITS": "5/minute", "KEY": "ip|shop.nowhere.key"},
            r"CRESTGATE\['KEY'\] is 'shop.nowhere.key', which cannot",
        ),
        ({"LIMITS": "5/minute", "USER": f"{HERE}.nobody"}, r"CRESTGATE\['USER'\].*nobody"),
        ({"LIMITS": "5/minute", "TIER": f"{HERE}.NO_CALLABLE"}, "must be a callable, not 42"),
        ({"LIMITS": "5/minute", "CLIENT": "someone"}, "client must be a callable, not 'someone'"),
        ({"LIMITS": "5/minute", "TRUSTED_PROXIES": ["10.0.0.0/33"]}, "10.0.0.0/33"),
        ({"LIMITS": "5/minute", "HEADERS": "none"}, "headers must be"),
        ({"COST": 3}, r"CRESTGATE\['COST'\] is for the limits of the middleware, and it has none"),
    ],
)
def test_invalid_settings_are_reported_at_start(crestgate: Any, told: str, get_response: Any) -> None:
    with pytest.raises(ImproperlyConfigured, match=told):
        made(crestgate, get_response)


def test_callables_may_be_import_paths() -> None:
    clock = FakeClock(1_700_000_000)
    layer = made(
        {
            "LIMITER": Limiter("memory://", clock=clock),
            "LIMITS": "4/minute",
            "KEY": f"{HERE}.tenant | ip",
            "COST": f"{HERE}.two",
            "EXEMPT": f"{HERE}.is_staff",
            "WHEN": f"{HERE}.is_refused",
            "ON_DENIED": f"{HERE}.deny",
            "USER": f"{HERE}.someone",
            "TIER": f"{HERE}.someone",
            "CLIENT": f"{HERE}.someone",
        }
    )
    requests = RequestFactory(headers={"X-Tenant": "one"})
    assert "RateLimit" not in layer(requests.get("/?refused", headers={"X-Staff": "yes"}))
    told = [layer(requests.get(path)) for path in ("/?refused", "/", "/?refused", "/?refused")]
    assert [response.status_code for response in told] == [401, 200, 401, 503]
    assert [response["X-RateLimit-Remaining"] for response in told] == ["2", "2", "0", "0"]
    assert told[3].content == b"later"
    assert layer(requests.get("/?refused", headers={"X-Tenant": "two"})).status_code == 401


@pytest.mark.parametrize("key", ["ip", "user|ip", ["ip", "header:X.Tenant"], lambda request: "all"])
def test_other_keys_work_as_in_other_integrations(key: Any) -> None:
    layer = made({"LIMITER": Limiter("memory://"), "LIMITS": "1/hour", "KEY": key})
    assert [layer(RequestFactory().get("/")).status_code for _ in range(2)] == [200, 429]


@pytest.mark.parametrize("exempt", ["/free", ["/free", "10.0.0.1"], "10.0.0.1"])
def test_paths_and_addresses_are_not_import_paths(exempt: Any) -> None:
    layer = made({"LIMITER": Limiter("memory://"), "LIMITS": "1/hour", "EXEMPT": exempt})
    assert "RateLimit" not in layer(RequestFactory(REMOTE_ADDR="10.0.0.1").get("/free"))
    assert "RateLimit" in layer(RequestFactory().get("/"))


def test_key_user_needs_the_authentication_middleware_before() -> None:
    with override_settings(MIDDLEWARE=[OWN, LOGS_IN]):
        with pytest.raises(ImproperlyConfigured, match="put it after"):
            made({"LIMITS": "1/hour", "KEY": "ip|user"})
        made({"LIMITS": "1/hour", "KEY": "user", "USER": f"{HERE}.someone"})
        made({"LIMITS": "1/hour"})
    with override_settings(MIDDLEWARE=[LOGS_IN, OWN]):
        made({"LIMITS": "1/hour", "KEY": "ip|user"})


def test_rules_about_users_without_authentication_are_warned_about(tmp_path: Any, caplog: Any) -> None:
    config = tmp_path / "crestgate.yaml"
    config.write_text("store: memory://\nrules:\n  - {rule_id: all, dimension: ip, limit: 1, window_seconds: 3600}\n")
    with override_settings(MIDDLEWARE=[OWN, LOGS_IN]), caplog.at_level(logging.WARNING, "crestgate"):
        made({"LIMITER": str(config)})
    assert "put it after" in caplog.text


def test_middleware_is_sync_or_async_like_get_response() -> None:
    assert RateLimitMiddleware.sync_capable
    assert RateLimitMiddleware.async_capable
    assert not iscoroutinefunction(made({"LIMITS": "1/hour"}))
    assert iscoroutinefunction(made({"LIMITS": "1/hour"}, answer_async))


def test_views_can_be_imported_without_settings() -> None:
    code = (
        "from crestgate.integrations.django import limit\n"
        "@limit('5/minute')\n"
        "def view(request): ...\n"
        "import sys\n"
        "assert not [name for name in sys.modules if name.startswith('django.contrib')], sys.modules\n"
        "try: limit('5/minut', limiter='memory://')\n"
        "except ValueError: print('told')\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("told\n", "")
