"""Web pages of other sites must neither change nor read anything, with any request that a browser allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx
import pytest

from integration.service.service_process import Service

EVIL = "https://evil.example"
CHECK = {"key": "page", "plans": ["daily"]}
BODY = b'{"key": "page", "plans": ["daily"]}'
PLAN = {"CRESTGATE_PLANS__DAILY": "100/day"}
CALLS = [
    ("POST", "/api/v1/check"),
    ("POST", "/api/v1/check/batch"),
    ("POST", "/api/v1/quota"),
    ("POST", "/api/v1/reset"),
    ("POST", "/ratelimiter/verify-api-limit"),
    ("POST", "/json"),
    ("GET", "/api/v1/authorize"),
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/metrics"),
    ("GET", "/openapi.json"),
    ("GET", "/api/v1/rules"),
    ("POST", "/api/v1/rules"),
    ("DELETE", "/api/v1/rules/x"),
    ("POST", "/admin/reset/x"),
    ("GET", "/ratelimiter/client-limits"),
    ("GET", "/nowhere"),
    ("OPTIONS", "/api/v1/check"),
]
CROSS_SITE = {
    "origin": {"origin": EVIL},
    "null origin": {"origin": "null"},
    "malformed origin": {"origin": "evil"},
    "cross-site": {"sec-fetch-site": "cross-site"},
    "same-site": {"sec-fetch-site": "same-site"},
    "unknown site": {"sec-fetch-site": "?"},
    "both": {"sec-fetch-site": "cross-site", "origin": EVIL},
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("cross_site"), environment=PLAN) as running:
        yield running


@pytest.fixture
def client(service: Service) -> Iterator[httpx.Client]:
    with service.client() as client:
        yield client


def remaining(client: httpx.Client) -> int:
    count: int = client.post("/api/v1/check", json={**CHECK, "cost": 0}).json()["remaining"]
    return count


def refused(response: httpx.Response) -> None:
    assert response.status_code == 403, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert "cross-site request refused" in response.json()["detail"]
    assert "server.allowed_origins" in response.json()["detail"]
    assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize(("method", "path"), CALLS)
def test_cross_site_requests_are_refused(service: Service, client: httpx.Client, method: str, path: str) -> None:
    for headers in CROSS_SITE.values():
        refused(client.request(method, path, headers={**headers, **service.admin}, content=b"{}"))


@pytest.mark.parametrize("headers", CROSS_SITE.values(), ids=CROSS_SITE.keys())
def test_page_cannot_spend_limits(client: httpx.Client, headers: dict[str, str]) -> None:
    before = remaining(client)
    refused(client.post("/api/v1/check", content=BODY, headers={**headers, "content-type": "text/plain"}))
    assert remaining(client) == before


def test_page_cannot_spend_limits_by_a_chunked_request(client: httpx.Client) -> None:
    """Which is not answered on the fast path."""
    before = remaining(client)
    refused(client.post("/api/v1/check", content=iter([BODY[:10], BODY[10:]]), headers={"origin": EVIL}))
    assert remaining(client) == before


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_pages_of_the_service_itself_pass(service: Service, client: httpx.Client, site: str) -> None:
    own = {"origin": service.url, "sec-fetch-site": site}
    assert client.post("/api/v1/check", json=CHECK, headers=own).status_code == 200
    assert client.get("/metrics", headers=own).status_code == 200
    assert client.post("/api/v1/check", json=CHECK, headers={"origin": service.url}).status_code == 200


def test_origin_of_another_port_is_another_site(service: Service, client: httpx.Client) -> None:
    refused(client.get("/metrics", headers={"origin": f"http://127.0.0.1:{service.port + 1}"}))
    refused(client.get("/metrics", headers={"origin": "http://127.0.0.1"}))
    refused(client.get("/metrics", headers={"origin": f"http://localhost:{service.port}"}))


def test_programs_pass(client: httpx.Client) -> None:
    """As `curl -d` sends it: the content type of a form, and no Origin."""
    form = {"content-type": "application/x-www-form-urlencoded"}
    response = client.post("/api/v1/check", content=BODY, headers=form)
    assert response.status_code == 200


def test_links_to_pages_may_be_followed(client: httpx.Client) -> None:
    visit = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert client.get("/docs", headers=visit).status_code == 200
    home = client.get("/", headers=visit)
    assert (home.status_code, home.headers["location"]) == (303, "/login")
    assert client.get("/login", headers=visit).status_code == 200
    for path in ("/metrics", "/api/v1/rules", "/openapi.json"):
        refused(client.get(path, headers=visit))
    refused(client.get("/docs", headers={**visit, "sec-fetch-dest": "iframe"}))
    refused(client.get("/docs", headers={**visit, "sec-fetch-mode": "no-cors"}))
    refused(client.post("/docs", headers=visit))


@pytest.mark.parametrize("forwarded", ["x-original-uri", "x-forwarded-uri", "x-forwarded-for"])
def test_proxies_forward_requests_of_any_site(client: httpx.Client, forwarded: str) -> None:
    """The headers are those of the proxy's client. A page cannot set these without a preflight, which is refused."""
    value = "192.0.2.1" if forwarded == "x-forwarded-for" else "/orders"
    for headers in CROSS_SITE.values():
        response = client.get("/api/v1/authorize", headers={**headers, forwarded: value, "host": "shop.example"})
        assert response.status_code == 200


def test_allowed_origins(serve: Callable[..., Service]) -> None:
    allowed = {"CRESTGATE_SERVER__ALLOWED_ORIGINS": "[https://app.example, http://localhost:3000]"}
    service = serve(environment=PLAN | allowed)
    with service.client() as client:
        for site in ({}, {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}):
            for origin in ("https://app.example", "https://APP.example:443", "http://localhost:3000"):
                response = client.post("/api/v1/check", json=CHECK, headers={**site, "origin": origin})
                assert response.status_code == 200
            for origin in ("http://app.example", "https://app.example.evil.example", "null", EVIL):
                refused(client.post("/api/v1/check", json=CHECK, headers={**site, "origin": origin}))
        refused(client.get("/metrics", headers={"sec-fetch-site": "cross-site"}))
