"""The guard: who may call, from where and how often."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from headgate import Limit, Limiter
from headgate.config.server import Address, Ceilings, Server
from headgate.rules.repositories.port import Actor
from headgate.service.auth.guard import Guard, Refusal, needed_to_check
from headgate.service.auth.keys import Caller, Keys, Scope, create_key, revoke_key
from headgate.testing import FakeClock
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
        keys = Keys(self.bodies, FIRST)
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


def test_a_call_that_needs_a_key_says_how_to_send_it() -> None:
    door = Door()
    for need in ("check", "read", "write"):
        answer = refused(door.guard.admit(need, [], HERE))
        assert (answer.status, answer.headers) == (401, ((b"www-authenticate", b"Bearer"),))
        assert answer.detail == "this needs a key: send it as `Authorization: Bearer …`, or in X-API-Key"


def test_an_open_call_is_anybodys() -> None:
    door = Door()
    token, caller = door.key("check")
    assert door.admit(None) is None
    assert door.admit(None, token) == caller, "who is known is named"


def test_a_wrong_key_is_told_also_where_none_is_needed() -> None:
    door = Door()
    token, _ = door.key("write")
    wrong = token[:-1] + ("A" if token[-1] != "A" else "B")
    for need in (None, "check", "read", "write"):
        answer = refused(door.admit(need, wrong))
        assert (answer.status, answer.headers) == (401, ((b"www-authenticate", b'Bearer error="invalid_token"'),))
        assert answer.detail == "the key that was sent opens nothing: it is unknown, was revoked or has expired"
        assert wrong not in repr(answer)


def test_each_scope_does_what_it_may() -> None:
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
    assert refused(door.admit("write", token)).detail == "the key 'read-key' has the scope read, and this needs write"
    assert door.admit("write", FIRST) == ADMIN


def test_a_revoked_or_expired_key_opens_nothing() -> None:
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
        ([(b"x-headgate-key", b"KEY")], False),
        ([(b"x-api-key", b"\xff\x00KEY")], False),
    ],
)
def test_where_a_key_is_looked_for(headers: list[tuple[bytes, bytes]], known: bool) -> None:
    sent = [(name, value.replace(b"KEY", FIRST.encode())) for name, value in headers]
    answer = Door().guard.admit("read", sent, HERE)
    assert answer == ADMIN if known else refused(answer).status == 401


def test_other_schemes_are_no_keys_of_ours() -> None:
    guard = Door().guard
    assert guard.admit(None, [(b"authorization", b"Basic dXNlcjpwYXNz")], HERE) is None


def test_a_proxy_is_known_by_a_header_of_its_own() -> None:
    guard = Door().guard
    of_the_user = [(b"authorization", b"Bearer of-the-application"), (b"x-api-key", b"of-the-application")]
    assert guard.admit(None, of_the_user, HERE, forwarded=True) is None
    answer = refused(guard.admit("check", [*of_the_user, (b"x-api-key", FIRST.encode())], HERE, forwarded=True))
    assert (answer.status, answer.detail) == (401, "this needs a key: send it in X-Headgate-Key")
    own = [*of_the_user, (b"x-headgate-key", FIRST.encode())]
    assert guard.admit("check", own, HERE, forwarded=True) == ADMIN
    wrong = [*of_the_user, (b"x-headgate-key", b"wrong")]
    assert refused(guard.admit(None, wrong, HERE, forwarded=True)).status == 401


# -- from where -----------------------------------------------------------------------------------------------------


def test_admin_calls_come_from_where_they_may() -> None:
    door = Door(admin_from=("10.0.0.0/8", "2001:db8::7"))
    for inside in ("10.1.2.3", "::ffff:10.1.2.3", "2001:db8::7"):
        assert door.admit("write", FIRST, inside) == ADMIN
    for address in ("11.1.2.3", "2001:db8::8", "localhost", None):
        answer = refused(door.admit("read", FIRST, address))
        assert (answer.status, answer.headers) == (403, ())
        assert answer.detail == "this may not be called from your address: server.admin_from says from where"
        assert door.status("read", None, address) == 403, "before a key is asked for"
        assert door.status("read", "wrong", address) == 403, "or looked at"
        assert door.status("check", FIRST, address) is None
        assert door.status(None, None, address) is None


def test_admin_calls_come_from_anywhere_unless_said() -> None:
    door = Door()
    assert [door.status("write", FIRST, address) for address in (HERE, "2001:db8::8", None)] == [None] * 3


# -- how often ------------------------------------------------------------------------------------------------------


def test_reads_and_writes_are_counted_per_key_and_apart() -> None:
    door = Door(limits=Ceilings(reads=Limit(3, 60, algorithm="fixed_window"), writes=Limit(1, 60)))
    token, _ = door.key("write")
    assert [door.status("read", token) for _ in range(4)] == [None, None, None, 429]
    assert [door.status("write", token, write=True) for _ in range(2)] == [None, 429]
    assert door.status("read", FIRST) is None, "of another key"
    assert door.status("check", token) is None, "checks have a ceiling of their own"
    assert door.status(None, token) is None
    answer = refused(door.admit("write", token, write=True))
    assert answer.headers == ((b"retry-after", b"60"),)
    assert answer.detail == "the key 'write-key' has too many writes: the limit is 1/minute, so try again in 60 s"
    door.clock.advance(60)
    assert door.status("write", token, write=True) is None


def test_what_a_key_may_not_do_is_not_counted() -> None:
    door = Door(limits=Ceilings(reads=Limit(1, 60), writes=Limit(1, 60)))
    token, _ = door.key("read")
    assert door.status("write", token, write=True) == 403
    assert door.status("read", token) is None


def test_a_limit_of_nothing_has_no_time_to_come_back() -> None:
    door = Door(limits=Ceilings(writes=Limit(0, 60)))
    answer = refused(door.admit("write", FIRST, write=True))
    assert (answer.status, answer.headers) == (429, ())


def test_two_guards_of_one_node_count_together() -> None:
    door = Door(limits=Ceilings(reads=Limit(2, 60)))
    other = Guard(Keys(dict, FIRST), Server(limits=Ceilings(reads=Limit(2, 60))), door.node, door.clock.ticks)
    headers = [(b"x-api-key", FIRST.encode())]
    assert door.guard.admit("read", headers, HERE) == other.admit("read", headers, HERE) == ADMIN
    assert refused(other.admit("read", headers, HERE)).status == 429


def test_failed_log_ins_are_counted_per_address() -> None:
    door = Door(limits=Ceilings(failed_logins=Limit(2, 60)))
    for need in (None, "read"):
        assert door.status(need, "wrong", f"192.0.2.{10 if need else 20}") == 401
    assert [door.status("read", "wrong") for _ in range(3)] == [401, 401, 429]
    answer = refused(door.admit("read", "wrong"))
    assert (answer.status, answer.headers) == (429, ((b"retry-after", b"30"),))
    assert answer.detail == (
        "keys that open nothing were sent from here too often: the limit is 2/minute, so try again in 30 s"
    )
    assert door.status("read") == 401, "without a key nothing was guessed"
    assert door.admit("read", FIRST) == ADMIN, "others behind the same proxy go on"
    assert door.status("read", "wrong", "192.0.2.2") == 401
    door.clock.advance(30)
    assert door.status("read", "wrong") == 401


def test_an_ipv6_network_is_one_who_fails() -> None:
    door = Door(limits=Ceilings(failed_logins=Limit(1, 60)))
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
def test_what_checks_need(server: Server, host: str, need: Scope | None) -> None:
    assert needed_to_check(server, Address(host, 8080)) == need


def test_the_machines_clock_is_the_usual_one() -> None:
    keys = Keys(dict, FIRST)
    guard: Callable[..., Any] = Guard(keys, Server(), Limiter("memory://")).admit
    assert guard("read", [(b"x-api-key", FIRST.encode())], None) == ADMIN
