"""The guard: API keys, scopes, admin networks and rate limits of callers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from crestgate import Limit, Limiter
from crestgate.config.server import Address, ServerLimits, ServerSettings
from crestgate.rules.port import Actor
from crestgate.service.auth.guard import Guard, Refusal, required_check_scope
from crestgate.service.auth.keys import ApiKeys, Caller, Scope, create_key, revoke_key
from crestgate.testing import FakeClock
from unit.rules.memory_repository import MemoryRepository

FIRST = "correct-horse-battery"
HERE = "192.0.2.1"
ALICE = Actor("alice")
ADMIN = Caller("admin", "write", "admin")


class GuardHarness:
    """A guard on virtual time, and keys for it."""

    def __init__(self, **server: Any) -> None:
        self.clock = FakeClock(1_700_000_000)
        self.repository = MemoryRepository(self.clock)
        self.node = Limiter("memory://", clock=self.clock)
        keys = ApiKeys(self.bodies, FIRST)
        self.guard = Guard(keys, ServerSettings(**server), self.node, self.clock.ticks)

    def bodies(self) -> Mapping[str, Mapping[str, Any]]:
        return {record.id: record.body for record in self.repository.list("key")}

    def key(self, scope: Scope, expires_us: int | None = None) -> tuple[str, Caller]:
        key, token = create_key(self.repository, ALICE, f"{scope}-key", scope, expires_us)
        return token, Caller(key.name, scope, key.key_id)

    def admit(
        self, need: Scope | None, token: str | None = None, address: str | None = HERE, **more: Any
    ) -> Caller | Refusal | None:
        headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
        return self.guard.admit(need, [(b"host", b"localhost"), *headers], address, **more)

    def status(
        self, need: Scope | None, token: str | None = None, address: str | None = HERE, **more: Any
    ) -> int | None:
        """The status of the refusal; None when admitted."""
        answer = self.admit(need, token, address, **more)
        return answer.status if isinstance(answer, Refusal) else None


def assert_refused(answer: Caller | Refusal | None) -> Refusal:
    assert isinstance(answer, Refusal)
    return answer


# -- keys and scopes ------------------------------------------------------------------------------------------------


def test_missing_key_message_says_how_to_send_it() -> None:
    harness = GuardHarness()
    for need in ("check", "read", "write"):
        answer = assert_refused(harness.guard.admit(need, [], HERE))
        assert (answer.status, answer.headers) == (401, ((b"www-authenticate", b"Bearer"),))
        assert answer.detail == "API key required: send it as `Authorization: Bearer …`, or in X-API-Key"


def test_open_call_needs_no_key() -> None:
    harness = GuardHarness()
    token, caller = harness.key("check")
    assert harness.admit(None) is None
    assert harness.admit(None, token) == caller, "a valid key identifies the caller"


def test_unknown_key_is_refused_even_if_none_is_needed() -> None:
    harness = GuardHarness()
    token, _ = harness.key("write")
    wrong = token[:-1] + ("A" if token[-1] != "A" else "B")
    for need in (None, "check", "read", "write"):
        answer = assert_refused(harness.admit(need, wrong))
        assert (answer.status, answer.headers) == (401, ((b"www-authenticate", b'Bearer error="invalid_token"'),))
        assert answer.detail == "unknown API key: it does not exist, was revoked or has expired"
        assert wrong not in repr(answer)


def test_scopes_allow_what_they_include() -> None:
    harness = GuardHarness()
    for scope, statuses in {
        "check": [None, None, 403, 403],
        "read": [None, None, None, 403],
        "write": [None, None, None, None],
    }.items():
        token, caller = harness.key(scope)  # type: ignore[arg-type]  # a dictionary's keys are any text
        needs: list[Scope | None] = [None, "check", "read", "write"]
        assert [harness.status(need, token) for need in needs] == statuses
        assert harness.admit("check", token) == caller
    token, _ = harness.key("read")
    assert (
        assert_refused(harness.admit("write", token)).detail
        == "the API key 'read-key' has scope read, and this call needs write"
    )
    assert harness.admit("write", FIRST) == ADMIN


def test_revoked_and_expired_keys_are_unknown() -> None:
    harness = GuardHarness()
    token, caller = harness.key("read")
    short, _ = harness.key("read", harness.clock.ticks() + 5_000_000)
    assert harness.status("read", token) is None
    assert harness.status("read", short) is None
    revoke_key(harness.repository, ALICE, caller.key_id)
    harness.clock.advance(5)
    assert harness.status("read", token) == 401
    assert harness.status("read", short) == 401


@pytest.mark.parametrize(
    ("headers", "valid"),
    [
        ([(b"authorization", b"Bearer KEY")], True),
        ([(b"authorization", b"bearer KEY")], True),
        ([(b"authorization", b"BEARER   KEY ")], True),
        ([(b"x-api-key", b"KEY")], True),
        ([(b"x-api-key", b" KEY ")], True),
        ([(b"authorization", b"Basic dXNlcjpwYXNz"), (b"x-api-key", b"KEY")], True),
        ([(b"authorization", b"Bearer KEY"), (b"x-api-key", b"something of the application's")], True),
        ([(b"authorization", b"Bearer"), (b"x-api-key", b"KEY")], True),
        ([(b"authorization", b"Bearer wrong"), (b"x-api-key", b"KEY")], False),
        ([(b"authorization", b"Bearer wrong"), (b"authorization", b"Bearer KEY")], False),
        ([(b"authorization", b"KEY")], False),
        ([(b"authorization", b"Basic KEY")], False),
        ([(b"authorization", b"")], False),
        ([(b"x-api-key", b"")], False),
        ([(b"x-crestgate-key", b"KEY")], False),
        ([(b"x-api-key", b"\xff\x00KEY")], False),
    ],
)
def test_headers_that_carry_the_key(headers: list[tuple[bytes, bytes]], valid: bool) -> None:
    sent = [(name, value.replace(b"KEY", FIRST.encode())) for name, value in headers]
    answer = GuardHarness().guard.admit("read", sent, HERE)
    assert answer == ADMIN if valid else assert_refused(answer).status == 401


def test_other_authorization_schemes_are_ignored() -> None:
    guard = GuardHarness().guard
    assert guard.admit(None, [(b"authorization", b"Basic dXNlcjpwYXNz")], HERE) is None


def test_proxy_key_is_in_its_own_header() -> None:
    guard = GuardHarness().guard
    of_the_user = [(b"authorization", b"Bearer of-the-application"), (b"x-api-key", b"of-the-application")]
    assert guard.admit(None, of_the_user, HERE, forwarded=True) is None
    answer = assert_refused(guard.admit("check", [*of_the_user, (b"x-api-key", FIRST.encode())], HERE, forwarded=True))
    assert (answer.status, answer.detail) == (401, "API key required: send it in X-Crestgate-Key")
    own = [*of_the_user, (b"x-crestgate-key", FIRST.encode())]
    assert guard.admit("check", own, HERE, forwarded=True) == ADMIN
    wrong = [*of_the_user, (b"x-crestgate-key", b"wrong")]
    assert assert_refused(guard.admit(None, wrong, HERE, forwarded=True)).status == 401


# -- admin networks -------------------------------------------------------------------------------------------------


def test_admin_calls_are_restricted_to_admin_from() -> None:
    harness = GuardHarness(admin_from=("10.0.0.0/8", "2001:db8::7"))
    for inside in ("10.1.2.3", "::ffff:10.1.2.3", "2001:db8::7"):
        assert harness.admit("write", FIRST, inside) == ADMIN
    for address in ("11.1.2.3", "2001:db8::8", "localhost", None):
        answer = assert_refused(harness.admit("read", FIRST, address))
        assert (answer.status, answer.headers) == (403, ())
        assert answer.detail == "admin calls are not allowed from your address: see server.admin_from"
        assert harness.status("read", None, address) == 403, "before a key is required"
        assert harness.status("read", "wrong", address) == 403, "or verified"
        assert harness.status("check", FIRST, address) is None
        assert harness.status(None, None, address) is None


def test_admin_calls_are_allowed_from_anywhere_by_default() -> None:
    harness = GuardHarness()
    assert [harness.status("write", FIRST, address) for address in (HERE, "2001:db8::8", None)] == [None] * 3


# -- rate limits ----------------------------------------------------------------------------------------------------


def test_reads_and_writes_are_limited_separately_per_key() -> None:
    harness = GuardHarness(limits=ServerLimits(reads=Limit(3, 60, algorithm="fixed_window"), writes=Limit(1, 60)))
    token, _ = harness.key("write")
    assert [harness.status("read", token) for _ in range(4)] == [None, None, None, 429]
    assert [harness.status("write", token, write=True) for _ in range(2)] == [None, 429]
    assert harness.status("read", FIRST) is None, "of another key"
    assert harness.status("check", token) is None, "checks have a ceiling of their own"
    assert harness.status(None, token) is None
    answer = assert_refused(harness.admit("write", token, write=True))
    assert answer.headers == ((b"retry-after", b"60"),)
    assert answer.detail == "the API key 'write-key' has made too many writes: the limit is 1/minute, retry in 60 s"
    harness.clock.advance(60)
    assert harness.status("write", token, write=True) is None


def test_forbidden_calls_are_not_counted() -> None:
    harness = GuardHarness(limits=ServerLimits(reads=Limit(1, 60), writes=Limit(1, 60)))
    token, _ = harness.key("read")
    assert harness.status("write", token, write=True) == 403
    assert harness.status("read", token) is None


def test_zero_limit_has_no_retry_after() -> None:
    harness = GuardHarness(limits=ServerLimits(writes=Limit(0, 60)))
    answer = assert_refused(harness.admit("write", FIRST, write=True))
    assert (answer.status, answer.headers) == (429, ())


def test_guards_of_one_node_share_counters() -> None:
    harness = GuardHarness(limits=ServerLimits(reads=Limit(2, 60)))
    other = Guard(
        ApiKeys(dict, FIRST), ServerSettings(limits=ServerLimits(reads=Limit(2, 60))), harness.node, harness.clock.ticks
    )
    headers = [(b"x-api-key", FIRST.encode())]
    assert harness.guard.admit("read", headers, HERE) == other.admit("read", headers, HERE) == ADMIN
    assert assert_refused(other.admit("read", headers, HERE)).status == 429


def test_failed_logins_are_limited_per_address() -> None:
    harness = GuardHarness(limits=ServerLimits(failed_logins=Limit(2, 60)))
    for need in (None, "read"):
        assert harness.status(need, "wrong", f"192.0.2.{10 if need else 20}") == 401
    assert [harness.status("read", "wrong") for _ in range(3)] == [401, 401, 429]
    answer = assert_refused(harness.admit("read", "wrong"))
    assert (answer.status, answer.headers) == (429, ((b"retry-after", b"30"),))
    assert answer.detail == (
        "too many calls with an unknown API key from this address: the limit is 2/minute, retry in 30 s"
    )
    assert harness.status("read") == 401, "a missing key is not a failed login"
    assert harness.admit("read", FIRST) == ADMIN, "other clients behind the same proxy are not affected"
    assert harness.status("read", "wrong", "192.0.2.2") == 401
    harness.clock.advance(30)
    assert harness.status("read", "wrong") == 401


def test_failed_logins_are_grouped_by_ipv6_network() -> None:
    harness = GuardHarness(limits=ServerLimits(failed_logins=Limit(1, 60)))
    assert [harness.status("read", "wrong", f"2001:db8::{last}") for last in "123"] == [401, 429, 429]
    assert [harness.status("read", "wrong", None) for _ in range(2)] == [401, 429]


# -- checks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server", "host", "need"),
    [
        (ServerSettings(), "127.0.0.1", None),
        (ServerSettings(), "127.9.9.9", None),
        (ServerSettings(), "::1", None),
        (ServerSettings(), "localhost", None),
        (ServerSettings(), "0.0.0.0", "check"),
        (ServerSettings(), "::", "check"),
        (ServerSettings(), "10.0.0.1", "check"),
        (ServerSettings(), "example.org", "check"),
        (ServerSettings(insecure=True), "10.0.0.1", None),
        (ServerSettings(checks="open"), "10.0.0.1", None),
        (ServerSettings(checks="key"), "127.0.0.1", "check"),
        (ServerSettings(checks="key", insecure=True), "10.0.0.1", "check"),
    ],
)
def test_required_check_scope(server: ServerSettings, host: str, need: Scope | None) -> None:
    assert required_check_scope(server, Address(host, 8080)) == need


def test_default_clock_is_the_system_clock() -> None:
    keys = ApiKeys(dict, FIRST)
    guard: Callable[..., Any] = Guard(keys, ServerSettings(), Limiter("memory://")).admit
    assert guard("read", [(b"x-api-key", FIRST.encode())], None) == ADMIN
