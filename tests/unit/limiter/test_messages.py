"""Error messages and logs of a limiter: clear, without secrets, and rate limited."""

from __future__ import annotations

import copy
import logging
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest

from crestgate import ConfigError, Limiter, StoreError
from crestgate.stores.factory import open_store
from crestgate.stores.redis import RedisStore
from slow_store import SlowStore


@pytest.mark.parametrize(
    "url",
    [
        "redis:/:SECRET@h",
        "redis//:SECRET@h",
        "u:SECRET@localhost:6379",
        "host=localhost password=SECRET dbname=x",
        "redis://localhost:6379/0?pasword=SECRET",
        "redis+sentinel://localhost/m?sentinel_pasword=SECRET",
        "redis://:p@SECRET/1@localhost:6379/0",
        "mysql://app:p@SECRET/1@127.0.0.1/db",
        "mysql://u:p@SECRET#1@localhost/db",
        "redsi://u:SECRET@h/0",
        b"redis://:SECRET@h",
        {"a": "redis://:SECRET@h"},
        ["redis://:SECRET@h", ("redis://:SECRET@h",)],
    ],
)
def test_invalid_url_never_shows_its_password(url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Limiter(url)
    assert "SECRET" not in str(raised.value)


def test_unescaped_password_error_explains_escaping() -> None:
    for url in ("redis://:p@ss/1@localhost:6379/0", "mysql://app:p@ss/1@127.0.0.1/db", "mysql://u:p@s#1@h/db"):
        with pytest.raises(ConfigError, match="written %2F"):
            open_store(url)


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("redsi://h", "did you mean redis://"),
        ("sqllite:///x.db", "did you mean sqlite://"),
        ("postgresql+psycopg://u:p@h/db", "did you mean postgresql://"),
        ("mysql+pymysql://u:p@h/db", "did you mean mysql://"),
        ("nowhere", "postgresql://"),
        ("redis://limiter@h", "a user name is only valid with a password"),
        ("redis://h?ssl_cert_reqs=none", "write rediss://"),
        ("redis+cluster://h?ssl_cert_reqs=none", "write tls=yes"),
    ],
)
def test_almost_valid_url_error_says_what_to_write(url: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        open_store(url)


def test_text_that_starts_like_a_limit_is_parsed_as_one() -> None:
    limiter = Limiter(plans={"gold": "10/second"})
    with pytest.raises(ConfigError, match="did you mean 'minute'"):
        limiter.check("k", "10 per mintue")


def test_limiter_repr_names_its_store_and_pickling_is_refused() -> None:
    store = open_store("redis://user:SECRET@somewhere:6379/0")
    assert isinstance(store, RedisStore)
    assert store.title == "Redis at somewhere:6379"
    assert repr(Limiter()) == "<Limiter on MemoryStore>"
    with pytest.raises(TypeError, match="build one there, with the same URL"):
        pickle.dumps(Limiter())


def test_copy_of_a_limiter_is_the_limiter() -> None:
    limiter = Limiter()
    assert copy.deepcopy({"limiter": limiter})["limiter"] is limiter


def test_threads_log_failures_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    store = SlowStore(timeout=0.2)
    store.failure = StoreError("it is broken")
    store.gate.release(1000)
    limiter = Limiter(store)
    with caplog.at_level(logging.WARNING, "crestgate"), ThreadPoolExecutor(32) as pool:
        list(pool.map(lambda n: limiter.check(f"k{n}", "5/hour"), range(200)))
    assert limiter.store_failures == 200
    messages = [record.getMessage() for record in caplog.records]
    assert 1 <= len(messages) <= 3, messages


def test_acquire_on_a_failed_store_says_so() -> None:
    store = SlowStore()
    store.failure = StoreError("it is broken")
    store.gate.release(1000)
    limiter = Limiter(store, on_store_error="closed")
    with pytest.raises(TimeoutError, match="because the store failed"):
        limiter.acquire("k", "5/hour", timeout=0.5)


@pytest.mark.parametrize("plans", [None, {}])
def test_unknown_plan_without_plans(plans: dict[str, str] | None) -> None:
    with pytest.raises(ConfigError) as raised:
        Limiter("memory://", plans=plans).check("a", "gold")
    assert str(raised.value) == (
        "there is no plan 'gold': it is not a limit either; no plans are given: write a limit such as '100/minute', or "
        "plans={'gold': '100/minute'}"
    )


def test_unknown_plan_lists_the_plans() -> None:
    with pytest.raises(ConfigError) as raised:
        Limiter("memory://", plans={"silver": "1/s", "golden": "2/s"}).check("a", ["1/minute", "gold"])
    assert str(raised.value) == (
        "there is no plan 'gold': did you mean 'golden'? it is not a limit either; the plans are golden, silver"
    )


@pytest.mark.parametrize(
    "text", ["", "per minute", "ten per minute", "5 per", "/minute", "redis://user:secret@host", "user:secret@host"]
)
def test_limit_with_a_typo_is_reported_as_a_limit(text: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot read|is missing") as raised:
        Limiter("memory://").check("a", text)
    assert "plan" not in str(raised.value)
    assert "secret" not in str(raised.value)
