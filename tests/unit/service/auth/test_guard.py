"""The guard: who may call, from where and how often."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from crestgate import Limit, Limiter
from crestgate.config.server import Address, Server, ServerLimits
from crestgate.rules.port import Actor
from crestgate.service.auth.guard import Guard, Refusal, required_check_scope
from crestgate.service.auth.keys import ApiKeys, Caller, Scope, create_key, revoke_key
from crestgate.testing import FakeClock
from unit.rules.memory_repository import MemoryRepository

FIRST = "correct-horse-battery"
HERE = "192.0.2.1"
ALICE = Actor("alice")
ADMIN = Caller("admin", "write", "admin")


class Door:
    """A guard on virtual time, and keys for it."""

    def __init__(self, **server: Any) -> None:
        self.clock = FakeClock(1_700_000_000)
        self.repository = MemoryRepository(self.clock)
        self.node = Limiter("memory://", clock=self.clock)
        keys = ApiKeys(self.bodies, FIRST)
        self.guard = Guard(keys, Server(**server), self.node, self.clock.ticks)

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


def refused(answer: Caller | Refusal | None) -> Refusal:
    assert isinstance(answer, Refusal)
    return answer


# -- keys and scopes ------------------------------------------------------------------------------------------------


def test_missing_key_message_says_how_to_send_it() -> None:
    door = Door()
    for need in ("check", "read", "write"):
        answer = refused(door.guard.admit(need, [], HERE))
        assert (answer.status, answer.headers) == (401, ((b"www-authenticate", b"Bearer"),))
        assert answer.detail == "API key required: send it as `Authorization: Bearer …`, or in X-API-Key"


def test_open_call_needs_no_key() -> None:
    door = Door()
    token, caller = door.key("check")
    assert door.admit(None) is None
    assert door.admit(None, token) == caller, "who is known is named"


def test_unknown_key_is_refused_even_if_none_is_needed() -> None:
    door = Door()
    token, _ = door.key("write")
    wrong = token[:-1] + ("A" if token[-1] != "A" else "B")
    for need in (None, "check", "read", "write"):
        answer = refused(door.admit(need, wrong))
        assert (answer.status, answer.headers) == (401, ((b"www-authenticate", b'Bearer error="invalid_token"'),))
        assert answer.detail == "unknown API key: it does not exist, was revoked or has expired"
        assert wrong not in repr(answer)


def test_scopes_allow_what_they_include() -> None:
    door = Door()
    for scope, statuses in {
        "check": [None, None, 403, 403],
        "read": [None, None, None, 403],
        "write": [None, None, None, None],
    }.items():
        token, caller = door.key(scope)  # type: ignore[arg-type]  # a dictionary's keys are any text
        needs: list[Scope | None] = [None, "check", "read", "write"]
        assert [door.status(need, token) for need in needs] == statuses
        assert door.admit("check", token) == caller
    token, _ = door.key("read")
    assert (
        refused(door.admit("write", token)).detail == "the API key 'read-key' has scope read, and this call needs write"
    )
    assert door.admit("write", FIRST) == ADMIN


def test_revoked_and_expired_keys_are_unknown() -> None:
    door = Door()
    token, caller = door.key("read")
    short, _ = door.key("read", door.clock.ticks() + 5_000_000)
    assert door.status("read", token) is None
    assert door.status("read", short) is None
    revoke_key(door.repository, ALICE, caller.key_id)
    door.clock.advance(5)
    assert door.status("read", token) == 401
    assert door.status("read", short) == 401


@pytest.mark.parametrize(
    ("headers", "known"),
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
def test_headers_that_carry_the_key(headers: list[tuple[bytes, bytes]], known: bool) -> None:
    sent = [(name, value.replace(b"KEY", FIRST.encode())) for name, value in headers]
    answer = Door().guard.admit("read", sent, HERE)
    assert answer == ADMIN if known else refused(answer).status == 401


def test_other_authorization_schemes_are_ignored() -> None:
    guard = Door().guard
    assert guard.admit(None, [(b"authorization", b"Basic dXNlcjpwYXNz")], HERE) is None


def test_proxy_key_is_in_its_own_header() -> None:
    guard = Door().guard
    of_the_user = [(b"authorization", b"Bearer of-the-application"), (b"x-api-key", b"of-the-application")]
    assert guard.admit(None, of_the_user, HERE, forwarded=True) is None
    answer = refused(guard.admit("check", [*of_the_user, (b"x-api-key", FIRST.encode())], HERE, forwarded=True))
    assert (answer.status, answer.detail) == (401, "API key required: send it in X-Crestgate-Key")
    own = [*of_the_user, (b"x-crestgate-key", FIRST.encode())]
    assert guard.admit("check", own, HERE, forwarded=True) == ADMIN
    wrong = [*of_the_user, (b"x-crestgate-key", b"wrong")]
    assert refused(guard.admit(None, wrong, HERE, forwarded=True)).status == 401


# -- from where -----------------------------------------------------------------------------------------------------


def test_admin_calls_are_restricted_to_admin_from() -> None:
    door = Door(admin_from=("10.0.0.0/8", "2001:db8::7"))
    for inside in ("10.1.2.3", "::ffff:10.1.2.3", "2001:db8::7"):
        assert door.admit("write", FIRST, inside) == ADMIN
    for address in ("11.1.2.3", "2001:db8::8", "localhost", None):
        answer = refused(door.admit("read", FIRST, address))
        assert (answer.status, answer.headers) == (403, ())
        assert answer.detail == "admin calls are not allowed from your address: see server.admin_from"
        assert door.status("read", None, address) == 403, "before a key is asked for"
        assert door.status("read", "wrong", address) == 403, "or looked at"
        assert door.status("check", FIRST, address) is None
        assert door.status(None, None, address) is None


def test_admin_calls_are_allowed_from_anywhere_by_default() -> None:
    door = Door()
    assert [door.status("write", FIRST, address) for address in (HERE, "2001:db8::8", None)] == [None] * 3


# -- how often ------------------------------------------------------------------------------------------------------


def test_reads_and_writes_are_limited_separately_per_key() -> None:
    door = Door(limits=ServerLimits(reads=Limit(3, 60, algorithm="fixed_window"), writes=Limit(1, 60)))
    token, _ = door.key("write")
    assert [door.status("read", token) for _ in range(4)] == [None, None, None, 429]
    assert [door.status("write", token, write=True) for _ in range(2)] == [None, 429]
    assert door.status("read", FIRST) is None, "of another key"
    assert door.status("check", token) is None, "checks have a ceiling of their own"
    assert door.status(None, token) is None
    answer = refused(door.admit("write", token, write=True))
    assert answer.headers == ((b"retry-after", b"60"),)
    assert answer.detail == "the API key 'write-key' has made too many writes: the limit is 1/minute, retry in 60 s"
    door.clock.advance(60)
    assert door.status("write", token, write=True) is None


def test_forbidden_calls_are_not_counted() -> None:
    door = Door(limits=ServerLimits(reads=Limit(1, 60), writes=Limit(1, 60)))
    token, _ = door.key("read")
    assert door.status("write", token, write=True) == 403
    assert door.status("read", token) is None


def test_zero_limit_has_no_retry_after() -> None:
    door = Door(limits=ServerLimits(writes=Limit(0, 60)))
    answer = refused(door.admit("write", FIRST, write=True))
    assert (answer.status, answer.headers) == (429, ())


def test_guards_of_one_node_share_counters() -> None:
    door = Door(limits=ServerLimits(reads=Limit(2, 60)))
    other = Guard(ApiKeys(dict, FIRST), Server(limits=ServerLimits(reads=Limit(2, 60))), door.node, door.clock.ticks)
    headers = [(b"x-api-key", FIRST.encode())]
    assert door.guard.admit("read", headers, HERE) == other.admit("read", headers, HERE) == ADMIN
    assert refused(other.admit("read", headers, HERE)).status == 429


def test_failed_logins_are_limited_per_address() -> None:
    door = Door(limits=ServerLimits(failed_logins=Limit(2, 60)))
    for need in (None, "read"):
        assert door.status(need, "wrong", f"192.0.2.{10 if need else 20}") == 401
    assert [door.status("read", "wrong") for _ in range(3)] == [401, 401, 429]
    answer = refused(door.admit("read", "wrong"))
    assert (answer.status, answer.headers) == (429, ((b"retry-after", b"30"),))
    assert answer.detail == (
        "too many calls with an unknown API key from this address: the limit is 2/minute, retry in 30 s"
    )
    assert door.status("read") == 401, "without a key nothing was guessed"
    assert door.admit("read", FIRST) == ADMIN, "others behind the same proxy go on"
    assert door.status("read", "wrong", "192.0.2.2") == 401
    door.clock.advance(30)
    assert door.status("read", "wrong") == 401


def test_failed_logins_are_grouped_by_ipv6_network() -> None:
    door = Door(limits=ServerLimits(failed_logins=Limit(1, 60)))
    assert [door.status("read", "wrong", f"2001:db8::{last}") for last in "123"] == [401, 429, 429]
    assert [door.status("read", "wrong", None) for _ in range(2)] == [401, 429]


# -- checks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server", "host", "need"),
    [
        (Server(), "127.0.0.1", None),
        (Server(), "127.9.9.9", None),
        (Server(), "::1", None),
        (Server(), "localhost", None),
        (Server(), "0.0.0.0", "check"),
        (Server(), "::", "check"),
        (Server(), "10.0.0.1", "check"),
        (Server(), "example.org", "check"),
        (Server(insecure=True), "10.0.0.1", None),
        (Server(checks="open"), "10.0.0.1", None),
        (Server(checks="key"), "127.0.0.1", "check"),
        (Server(checks="key", insecure=True), "10.0.0.1", "check"),
    ],
)
def test_required_check_scope(server: Server, host: str, need: Scope | None) -> None:
    assert required_check_scope(server, Address(host, 8080)) == need


def test_default_clock_is_the_system_clock() -> None:
    keys = ApiKeys(dict, FIRST)
    guard: Callable[..., Any] = Guard(keys, Server(), Limiter("memory://")).admit
    assert guard("read", [(b"x-api-key", FIRST.encode())], None) == ADMIN
