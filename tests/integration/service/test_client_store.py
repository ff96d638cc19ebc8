"""A service as the store of remote limiters: its counters, plans and rules."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from crestgate import AsyncLimiter, ConfigError, Decision, Limit, Limiter, RequestContext, StoreError
from crestgate.http.header_options import HeaderStyle
from crestgate.http.headers import rate_limit_headers
from crestgate.testing.conformance import STRANGE_KEYS
from integration.service.api_helpers import make_key
from integration.service.service_process import Service

TIMEOUT_OPTION = "timeout_ms=30000"


@pytest.fixture(scope="module", autouse=True)
def plans_and_rules(admin: httpx.Client) -> Iterator[None]:
    """Plans and rules that exist only in the service."""
    plans = {
        "lot": ["1000/day using fixed_window"],
        "pair": ["5/day using fixed_window", "3/hour using sliding_window_log"],
        "queue": ["1/hour burst 2 using leaky_bucket"],
    }
    rules = [
        {"rule_id": "far-users", "dimension": "user", "limit": 2, "window_seconds": 3600, "endpoint_pattern": "/far"},
        {
            "rule_id": "far-watched",
            "dimension": "user",
            "limit": 1,
            "window_seconds": 86400,
            "endpoint_pattern": "/far",
            "mode": "shadow",
        },
        {
            "rule_id": "far-orgs",
            "dimension": ["org", "model"],
            "identifier": ["*", "large"],
            "limit": 2,
            "window_seconds": 3600,
            "headers": False,
        },
    ]
    for name, limits in plans.items():
        assert admin.post("/api/v1/plans", json={"name": name, "limits": limits}).status_code == 201
    for rule in rules:
        assert admin.post("/api/v1/rules", json=rule).status_code == 201
    yield
    for name in plans:
        assert admin.delete(f"/api/v1/plans/{name}").status_code == 204
    for rule in rules:
        assert admin.delete(f"/api/v1/rules/{rule['rule_id']}").status_code == 204


@pytest.fixture(scope="module")
def url(service: Service) -> str:
    return f"crestgate://127.0.0.1:{service.port}?{TIMEOUT_OPTION}"


@pytest.fixture(scope="module")
def limiter(url: str) -> Iterator[Limiter]:
    with Limiter(url) as opened:
        yield opened


@pytest.fixture(scope="module")
def admin_limiter(service: Service) -> Iterator[Limiter]:
    """A limiter with a key that may reset."""
    with Limiter(f"crestgate://:{service.key}@127.0.0.1:{service.port}?{TIMEOUT_OPTION}") as opened:
        yield opened


@pytest.fixture
def key() -> str:
    return uuid4().hex


def batches(anyone: httpx.Client) -> tuple[int, int]:
    """How many batches the service received, and how many checks were in them."""
    lines = anyone.get("/metrics").text.splitlines()
    count, total = (
        next(line for line in lines if line.startswith(f"crestgate_batch_size_{what} ")) for what in ("count", "sum")
    )
    return int(float(count.split()[1])), int(float(total.split()[1]))


def open_when_key_is_known(url: str) -> Limiter:
    """A limiter with a new key, as soon as the service knows the key."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return Limiter(url)
        except StoreError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


# -- counters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", ["40/day", "lot"])
def test_clients_of_all_kinds_together_admit_exactly_the_limit(url: str, key: str, limits: str) -> None:
    limit = 40 if limits != "lot" else 1000
    share = limit // 2

    async def tasks() -> int:
        async with AsyncLimiter(url) as other:
            return sum(d.allowed for d in await asyncio.gather(*[other.check(key, limits) for _ in range(share)]))

    with Limiter(url) as first, Limiter(url) as second, ThreadPoolExecutor(17) as pool:
        on_loop = pool.submit(lambda: asyncio.run(tasks()))
        futures = [pool.submit((first, second)[n % 2].check, key, limits) for n in range(limit)]
        assert sum(future.result().allowed for future in futures) + on_loop.result() == limit


def test_concurrent_checks_share_batches(url: str, key: str, anyone: httpx.Client) -> None:
    async def tasks() -> list[Decision]:
        async with AsyncLimiter(url) as other:
            calls, checks = batches(anyone)
            decisions = await asyncio.gather(*[other.check(f"{key}{n}", "10/day") for n in range(2000)])
            more_calls, more_checks = batches(anyone)
            assert more_checks - checks == 2000
            assert more_calls - calls <= 20
            return decisions

    assert all(asyncio.run(tasks()))


def test_threads_share_batches(url: str, key: str, anyone: httpx.Client) -> None:
    with Limiter(f"{url}&pool_size=1") as one, ThreadPoolExecutor(32) as pool:
        calls, checks = batches(anyone)
        assert sum(pool.map(lambda _: bool(one.check(key, "600/day")), range(640))) == 600
        more_calls, more_checks = batches(anyone)
    assert more_checks - checks == 640
    assert more_calls - calls < 320


def test_different_keys_never_share(limiter: Limiter, key: str) -> None:
    limit = Limit(1, 3600, name=key)
    assert [limiter.check(strange, limit).allowed for strange in STRANGE_KEYS] == [True] * len(STRANGE_KEYS)
    assert not any(limiter.check(strange, limit) for strange in STRANGE_KEYS)


def test_lone_surrogate_is_refused_for_its_caller_only(url: str, key: str) -> None:
    async def tasks() -> None:
        async with AsyncLimiter(url) as other:
            calls = [other.check(key, "50/day"), other.check("\ud800", "50/day"), other.check(key, "50/day")]
            first, second, third = await asyncio.gather(*calls, return_exceptions=True)
            assert isinstance(second, ConfigError)
            assert "half of a surrogate pair" in str(second)
            assert isinstance(first, Decision)
            assert isinstance(third, Decision)
            assert {first.remaining, third.remaining} == {49, 48}

    asyncio.run(tasks())


def test_inline_limits_share_one_label(limiter: Limiter, key: str, anyone: httpx.Client) -> None:
    for count in range(50, 60):
        limiter.check(key, Limit(count, 3600, name=f"made-up-{count}"))
    text = anyone.get("/metrics").text
    assert "made-up" not in text
    assert 'crestgate_allowed_total{dimension="key",rule="inline"}' in text


def test_mixed_chain_is_all_or_nothing(limiter: Limiter, key: str) -> None:
    chain = ["lot", "2/day", "pair"]
    first = limiter.check(key, chain)
    assert [part.name for part in first.parts] == ["lot", "2/day", "pair", "pair#2"]
    assert [part.remaining for part in first.parts] == [999, 1, 4, 2]
    assert limiter.check(key, chain).allowed
    third = limiter.check(key, chain)
    assert (third.allowed, third.name, third.reason) == (False, "2/day", "limited")
    assert [limiter.peek(key, limits).remaining for limits in ("lot", "2/day", "pair")] == [998, 0, 1]


def test_duplicate_plan_counts_once(limiter: Limiter, key: str) -> None:
    assert [part.remaining for part in limiter.check(key, ["pair", "pair"]).parts] == [4, 2]


def test_check_many(limiter: Limiter, key: str) -> None:
    decisions = limiter.check_many([(key, "pair", 2), (f"{key}'", "lot"), (key, "pair", 2), (key, "7/day")])
    assert [decision.allowed for decision in decisions] == [True, True, False, True]
    assert decisions[2].name == "pair#2"


def test_plans_are_shared_with_http_callers(limiter: Limiter, key: str, anyone: httpx.Client) -> None:
    limiter.check(key, "pair")
    answer = anyone.post("/api/v1/quota", json={"key": key, "plans": ["pair"]}).json()
    assert [part["remaining"] for part in answer["parts"]] == [4, 2]


def test_local_plan_takes_precedence(url: str, key: str) -> None:
    with Limiter(url, plans={"pair": "7/day"}) as own:
        assert own.check(key, "pair").limit == 7
        assert own.check(key, "lot").limit == 1000


def test_unknown_plan_is_an_error(url: str, key: str) -> None:
    async def tasks() -> None:
        async with AsyncLimiter(url) as other:
            calls = [other.check(key, "pair"), other.check(key, "golf"), other.reset(key, "golf")]
            first, second, third = await asyncio.gather(*calls, return_exceptions=True)
            assert isinstance(first, Decision)
            for error in (second, third):
                assert isinstance(error, ConfigError)
                assert str(error).endswith("there is no plan 'golf': make it with POST /api/v1/plans")

    asyncio.run(tasks())


@pytest.mark.parametrize("count", [2, 1500], ids=["one call", "several calls"])
def test_unknown_plan_in_check_many_charges_nothing(limiter: Limiter, url: str, key: str, count: int) -> None:
    items = [(key, "lot"), *[(f"{key}{n}", "pair") for n in range(count)], (key, "golf"), (key, "7/day")]
    with pytest.raises(ConfigError, match="there is no plan 'golf': make it with POST /api/v1/plans"):
        limiter.check_many(items)

    async def tasks() -> None:
        async with AsyncLimiter(url) as other:
            answers = await asyncio.gather(other.check_many(items), other.check(key, "queue"), return_exceptions=True)
            assert isinstance(answers[0], ConfigError)
            assert isinstance(answers[1], Decision), "another caller in the same batch"

    asyncio.run(tasks())
    assert limiter.peek(key, "lot").remaining == 1000
    assert limiter.peek(f"{key}0", "pair").remaining == 3
    assert limiter.peek(key, "7/day").remaining == 7
    assert limiter.peek(key, "queue").remaining == 1, "that one was charged"


def test_malformed_limit_is_not_sent(limiter: Limiter, key: str) -> None:
    with pytest.raises(ConfigError, match="5/minutte"):
        limiter.check(key, "5/minutte")
    with pytest.raises(ConfigError):
        limiter.check(key, " ")


# -- rules -----------------------------------------------------------------------------------------------------------


def test_rules_of_the_service_decide_a_request(limiter: Limiter, key: str) -> None:
    context = RequestContext(user=key, path="/far")
    decisions = [limiter.check_request(context) for _ in range(3)]
    assert [(d.allowed, d.reason, d.name) for d in decisions] == [
        (True, "ok", "far-users"),
        (True, "shadow", "far-users"),
        (False, "limited", "far-users"),
    ]
    assert [shadow.name for shadow in decisions[0].shadows] == ["far-watched"]
    assert [len(d.parts) for d in decisions] == [1, 1, 1]
    peeked = limiter.peek_request(context)
    assert (peeked.allowed, peeked.remaining) == (False, 0)


def test_attributes_and_hidden_limits(limiter: Limiter, key: str) -> None:
    context = RequestContext(attributes={"org": key, "model": "large"})
    decisions = [limiter.check_request(context) for _ in range(3)]
    assert [decision.allowed for decision in decisions] == [True, True, False]
    headers = dict(rate_limit_headers(decisions[2], HeaderStyle(), 0))
    assert set(headers) == {b"retry-after"}
    with pytest.raises(ValueError, match=r"attributes has the name 'Org'"):
        limiter.check_request(RequestContext(attributes={"Org": key}))


def test_request_without_a_rule_is_allowed(limiter: Limiter) -> None:
    decision = limiter.check_request(RequestContext(ip="10.0.0.1", path="/elsewhere"))
    assert (decision.allowed, decision.reason, decision.parts) == (True, "no_rule", ())


def test_requests_on_an_event_loop(url: str, key: str) -> None:
    async def tasks() -> None:
        async with AsyncLimiter(url) as other:
            contexts = [RequestContext(user=f"{key}{n % 10}", path="/far") for n in range(50)]
            decisions = await asyncio.gather(*[other.check_request(context) for context in contexts])
            assert sum(decision.allowed for decision in decisions) == 20
            assert (await other.peek_request(contexts[0])).remaining == 0

    asyncio.run(tasks())


def test_invalid_context_is_refused(limiter: Limiter) -> None:
    with pytest.raises(ValueError, match="user must not be empty"):
        limiter.check_request(RequestContext(user=""))
    with pytest.raises(ValueError, match="cost must be"):
        limiter.check_request(RequestContext(user="42"), cost=-1)
    with pytest.raises(TypeError, match="RequestContext"):
        limiter.check_request({"user": "42"})  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["/" * 9000 + "far", "/far/." + "/." * 9000])
def test_too_long_path_matches_the_rules(limiter: Limiter, key: str, path: str) -> None:
    allowed = [limiter.check_request(RequestContext(user=key, path=path)).allowed for _ in range(3)]
    assert allowed == [True, True, False]
    decision = limiter.check_request(RequestContext(user=key, path="/" + "a" * 9000))
    assert decision.reason == "no_rule"


def test_held_request_can_be_released(limiter: Limiter, key: str) -> None:
    from crestgate.stores.port import Op

    context = RequestContext(user=key, path="/far")
    held = limiter.take_hold(limiter.prepare_request(Op.TAKE, context))
    assert held.decision.remaining == 1
    assert limiter.release(held).remaining == 2
    assert limiter.peek_request(context).remaining == 2


# -- resets ----------------------------------------------------------------------------------------------------------


def test_reset_needs_the_write_scope(
    service: Service, limiter: Limiter, admin_limiter: Limiter, key: str, admin: httpx.Client
) -> None:
    context = RequestContext(user=key, path="/far")
    limiter.check(key, "pair")
    limiter.check_request(context)
    with pytest.raises(StoreError, match="this needs a key: write it into the URL, crestgate://:KEY@host:8080"):
        limiter.reset(key, "pair")
    _, token = make_key(service, f"checks-{key}", "--scope", "check")
    with open_when_key_is_known(f"crestgate://:{token}@127.0.0.1:{service.port}?{TIMEOUT_OPTION}") as weak:
        assert weak.check(key, "pair").remaining == 1
        with pytest.raises(StoreError, match="has scope check, and this call needs write"):
            weak.reset_request(context)
    admin_limiter.reset(key, "pair")
    admin_limiter.reset_request(context)
    assert [limiter.peek(key, "pair").remaining, limiter.peek_request(context).remaining] == [3, 2]
    entries = admin.get("/api/v1/audit", params={"limit": 50}).json()["entries"]
    subjects = [entry["subject"] for entry in entries if entry["action"] == "reset"]
    assert key in subjects
    assert f"user:{key}" in subjects


def test_reset_among_checks_is_refused_separately(url: str, key: str) -> None:
    async def tasks() -> None:
        async with AsyncLimiter(url) as other:
            calls = [other.check(key, "50/day"), other.reset(key, "50/day"), other.check(key, "50/day")]
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(one) for one in (results[0], results[2])] == [Decision, Decision]
            assert isinstance(results[1], StoreError)

    asyncio.run(tasks())


# -- reservations, queues, cancellation -------------------------------------------------------------------------------


def test_unused_cost_is_returned_to_every_limit_of_a_plan(limiter: Limiter, key: str) -> None:
    with limiter.reserve(key, "pair", cost=3) as held:
        assert [part.remaining for part in held.decision.parts] == [2, 0]
        held.settle(1)
    assert [part.remaining for part in limiter.peek(key, "pair").parts] == [4, 2]
    with limiter.reserve(key, "pair", cost=1) as held:
        held.settle(3)
    assert [part.remaining for part in limiter.peek(key, "pair", cost=0).parts] == [1, 0]


def test_exception_releases_a_reservation(url: str, key: str) -> None:
    async def tasks() -> None:
        async with AsyncLimiter(url) as other:
            with pytest.raises(KeyError):
                async with other.reserve(key, ["pair", "9/day"], cost=2):
                    raise KeyError
            assert [part.remaining for part in (await other.peek(key, ["pair", "9/day"])).parts] == [5, 3, 9]

    asyncio.run(tasks())


def test_timed_out_waiter_leaves_the_queue(limiter: Limiter, key: str) -> None:
    assert limiter.acquire(key, "queue", timeout=0).allowed
    with pytest.raises(TimeoutError):
        limiter.acquire(key, "queue", timeout=1)
    standing = limiter.peek(key, "queue", cost=0)
    assert (standing.remaining, standing.queue_position) == (1, 1)
    assert limiter.check(key, "queue").delay > 3000


def test_cancelled_check_is_refunded(url: str, key: str) -> None:
    async def tasks() -> None:
        async with AsyncLimiter(url) as other:
            for _ in range(20):
                task = asyncio.create_task(other.check(key, ["pair", "400/day"]))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            while (await other.peek(key, ["pair", "400/day"])).parts[0].remaining < 5:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(tasks(), 30))


def test_cancelled_reservation_stays_charged_until_released(url: str, key: str) -> None:
    async def tasks() -> None:
        async with AsyncLimiter(url) as other:
            inside = asyncio.Event()

            async def stream(limits: list[str], release: bool) -> None:
                async with other.reserve(key, limits, cost=300) as reservation:
                    inside.set()
                    try:
                        await asyncio.Event().wait()
                    finally:
                        if release:
                            await reservation.release()

            for release, left in ((True, 1000), (False, 700)):
                inside.clear()
                task = asyncio.create_task(stream(["lot", "1000/hour"], release))
                await inside.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                parts = (await other.peek(key, ["lot", "1000/hour"], cost=0)).parts
                assert [left <= part.remaining <= left + 1 for part in parts] == [True, True]  # a bucket refills

    asyncio.run(asyncio.wait_for(tasks(), 30))


def test_local_rules_with_counters_in_the_service(url: str, key: str, tmp_path: Path) -> None:
    config = tmp_path / "crestgate.yaml"
    config.write_text(
        f"store: {url}\nmode: embedded\nplans: {{small: 2/day}}\n"
        "rules:\n- {name: own users, dimension: user, limit: 3, window_seconds: 86400}\n"
    )
    with Limiter.from_config(config) as first, Limiter.from_config(config) as second:
        decisions = [limiter.check_request(RequestContext(user=key)) for limiter in (first, second, first, second)]
        assert [(d.allowed, d.name) for d in decisions] == [(True, "own-users")] * 3 + [(False, "own-users")]
        assert [limiter.check(key, ["small", "pair"]).allowed for limiter in (first, second, first)] == [
            True,
            True,
            False,
        ]
