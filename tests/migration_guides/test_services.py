"""The calls that docs/migrating/services.md quotes, sent to a real service: they are read from the page itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from crestgate.protobuf import messages
from integration.service.service_process import GENEROUS, Service

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "migrating" / "services.md").read_text()
METHOD = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
OK, OVER_LIMIT = 1, 2
TIMEOUT = 30.0


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def quoted_call(text: str, path: str) -> Any:
    """The JSON body below a quoted `POST path`."""
    found = re.search(rf"^POST {re.escape(path)}\n(\{{.*\}})$", text, re.MULTILINE)
    assert found is not None, f"the page does not quote POST {path}"
    return json.loads(found[1])


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """With the plan, the rules and the descriptors of the page; the latter where envoyproxy/ratelimit has them."""
    folder: Path = tmp_path_factory.mktemp("services")
    config_folder = folder / "runtime_data" / "current" / "ratelimit" / "config"
    config_folder.mkdir(parents=True)
    yaml = re.search(r"```text\n(domain:.*?)```", section("envoyproxy/ratelimit"), re.DOTALL)
    assert yaml is not None
    (config_folder / "shop.yaml").write_text(yaml[1])
    plan = re.search(r"a plan `(\w+: [^`]+)`", section("Gubernator"))
    assert plan is not None
    rules = (ROOT / "examples" / "from_limitador.yaml").read_text()
    environment = {**GENEROUS, "CRESTGATE_ENVOY__CONFIG": str(config_folder)}
    with Service(folder, f"{rules}\nplans:\n  {plan[1]}\n", environment) as started:
        yield started


def test_request_of_gubernator_as_a_batch(service: Service) -> None:
    before = quoted_call(section("Gubernator"), "/v1/GetRateLimits")["requests"][0]
    after = quoted_call(section("Gubernator"), "/api/v1/check/batch")
    (check,) = after["checks"]
    assert (check["key"], check["plans"]) == (before["uniqueKey"], [before["name"]])
    assert check["cost"] == int(before["hits"])
    with service.client() as client:
        first = client.post("/api/v1/check/batch", json=after).json()["decisions"][0]
        assert (first["allowed"], first["limit"]) == (True, int(before["limit"]))
        full = {"checks": [{**check, "cost": int(before["limit"]) + 1}]}
        (denied,) = client.post("/api/v1/check/batch", json=full).json()["decisions"]
        assert (denied["allowed"], denied["reason"]) == (False, "cost_exceeds_limit")


def test_rules_of_limitador_decide_checks(service: Service) -> None:
    quoted = re.search(r"```yaml\n(.*?)```", section("Limitador"), re.DOTALL)
    assert quoted is not None
    assert quoted[1] in (ROOT / "examples" / "from_limitador.yaml").read_text()
    body = quoted_call(section("Limitador"), "/api/v1/check")
    with service.client() as client:
        answers = [client.post("/api/v1/check", json={**body, "cost": cost}).json() for cost in (1, 11)]
        assert [answer["rule"] for answer in answers] == ["reads-per-user"] * 2
        assert [answer["allowed"] for answer in answers] == [True, False]
        assert answers[1]["reason"] == "cost_exceeds_limit"
        quota = client.post("/api/v1/quota", json=body).json()
        assert (quota["allowed"], quota["limit"]) == (True, 10)


def test_descriptors_of_envoyproxy_ratelimit(service: Service) -> None:
    quoted = quoted_call(section("envoyproxy/ratelimit"), "/json")
    with service.client() as client:
        response = client.post("/json", json=quoted)
    assert response.status_code == 200
    (status,) = response.json()["statuses"]
    assert (status["code"], status["currentLimit"]) == ("OK", {"requestsPerUnit": 3, "unit": "DAY"})
    request = messages.RateLimitRequest(domain=quoted["domain"], descriptors=quoted["descriptors"])
    with grpc.insecure_channel(service.rpc) as channel:
        call = channel.unary_unary(
            METHOD, messages.RateLimitRequest.SerializeToString, messages.RateLimitResponse.FromString
        )
        codes = [call(request, timeout=TIMEOUT).overall_code for _ in range(3)]
    assert codes == [OK, OK, OVER_LIMIT], "the call over HTTP was the first of three"
