"""Redaction: no password in a message, in any spelling."""

from __future__ import annotations

import time

import pytest

from crestgate.core.limit import Limit
from crestgate.core.redaction import may_contain_secret, redact_text
from crestgate.errors import ConfigError

ADDRESSES = [
    ("redis://user:hunter2@host", "redis://***@host"),
    ("redis://hunter2@host", "redis://***@host"),
    ("redis://user:hunt er2@host/0", "redis://***@host/0"),
    ("redis://user:hunter2 @host", "redis://***@host"),
    ("redis://user:hunter2/x@y@host", "redis://***@host"),
    ("redis://one:hunter2@a, redis://two:hunter2@b", "redis://***@b"),
    ("redis:user:hunter2@host", "***@host"),
    ("redis:/user:hunter2@host", "***@host"),
    ("user:hunter2@host", "***@host"),
    ("hunter2@host:6379", "***@host:6379"),
    ("see redis://user:hunter2@host", "***@host"),
    ("redis://host?password=hunter2&db=1", "redis://host?password=***&db=1"),
    ("redis://host?sentinel_password=my hunter2", "redis://host?sentinel_password=***"),
    ("host=db PASSWORD = hunter2", "host=db PASSWORD = ***"),
    ("?auth_token=hunter2", "?auth_token=***"),
]


@pytest.mark.parametrize(("written", "redacted"), ADDRESSES, ids=[written for written, _ in ADDRESSES])
def test_passwords_are_redacted(written: str, redacted: str) -> None:
    assert redact_text(written) == redacted
    assert may_contain_secret(written)


@pytest.mark.parametrize(
    "text", ["", "many", "alice@example.com", "@every", "100/minute", "redis://host:6379/0", "a=b"]
)
def test_other_text_is_unchanged(text: str) -> None:
    assert redact_text(text) == text


@pytest.mark.parametrize("written", [written for written, _ in ADDRESSES])
def test_url_instead_of_a_limit_is_not_shown(written: str) -> None:
    for text in (written, f"5/second; {written}"):
        with pytest.raises(ConfigError, match="cannot read an address as a limit: write for example") as raised:
            Limit.parse_chain(text)
        assert "er2" not in str(raised.value)


def test_redaction_takes_linear_time() -> None:
    started = time.process_time()
    for text in ("a.a" * 300_000 + "@x:/", "pass" * 250_000, "a.pass=" * 100_000, "pass" + " " * 1_000_000):
        redact_text(text)
    assert time.process_time() - started < 5
