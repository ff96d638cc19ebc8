"""The client of a control plane: what it accepts, refuses and keeps, and how it returns."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import struct_pb2

from control_plane import ADS, RLS, ControlPlane, domain
from crestgate.envoy.xds import client as xds_client
from crestgate.envoy.xds.client import XdsClient
from crestgate.envoy.xds.settings import Xds
from crestgate.envoy.xds.snapshot import read_snapshot
from servers.machine import free_port, until

USER = {"key": "user", "rate_limit": {"unit": 2, "requests_per_unit": 5}}
NO_UNIT = {"key": "user", "rate_limit": {"requests_per_unit": 5}}
Start = Callable[..., XdsClient]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xds_client, "MIN_WAIT", 0.05)
    monkeypatch.setattr(xds_client, "MAX_WAIT", 0.2)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "xds.json")


@pytest.fixture
def start(path: str) -> Iterator[Start]:
    """Starts clients, and closes them."""
    started: list[XdsClient] = []

    def make(address: str, **fields: Any) -> XdsClient:
        started.append(XdsClient(Xds(address, **fields), path))
        started[-1].start()
        return started[-1]

    yield make
    for one in started:
        one.close()


def counts(path: str) -> dict[str, int]:
    files = read_snapshot(path)
    assert not files.problems
    return files.domains.counts


def test_a_configuration_is_acknowledged_and_written(start: Start, path: str) -> None:
    with ControlPlane() as plane:
        plane.send("1", domain("shop", USER), domain("mail", USER, {**USER, "key": "to"}))
        start(plane.address, node_id="here", cluster="east", node_metadata={"zone": "a"}, headers={"X-Token": "t"})
        until("it is acknowledged", lambda: plane.answers() == [("1", "n1", "")])
        assert counts(path) == {"shop": 1, "mail": 2}
        first = plane.requests[0]
        assert (first.version_info, first.response_nonce, first.HasField("error_detail")) == ("", "", False)
        assert (first.node.id, first.node.cluster, first.node.metadata["zone"]) == ("here", "east", "a")
        assert plane.headers[0]["x-token"] == "t"
        plane.send("2", domain("shop", USER))
        until("the next one, too", lambda: plane.answers()[1:] == [("2", "n2", "")])
        assert counts(path) == {"shop": 1}, "what is not sent is removed"
        plane.send("3")
        until("none at all", lambda: plane.answers()[2:] == [("3", "n3", "")])
        assert counts(path) == {}


def test_every_field_of_a_descriptor(start: Start, path: str) -> None:
    inner = {"key": "to", "value": "a*", "quota_mode": True, "rate_limit": {"unit": 7, "requests_per_unit": 9}}
    named = {"unit": 3, "requests_per_unit": 7, "name": "x", "replaces": [{"name": "y"}]}
    outer = {"key": "user", "value": "1", "shadow_mode": True, "detailed_metric": True, "rate_limit": named}
    free = {"key": "free", "rate_limit": {"unlimited": True}}
    with ControlPlane() as plane:
        plane.send("1", domain("shop", {**outer, "descriptors": [inner]}, free))
        start(plane.address)
        until("it is accepted", lambda: plane.answers() == [("1", "n1", "")])
        domains = read_snapshot(path).domains
    match = domains.match("shop", [("user", "1")])
    assert match is not None
    limit = match.limit
    assert (limit.shadow, limit.requests_per_unit, limit.unit, limit.name) == (True, 7, 3, "x")
    assert limit.replaces == {"y"}
    below = domains.match("shop", [("user", "1"), ("to", "abc")])
    assert below is not None
    assert (below.limit.quota, below.limit.requests_per_unit, below.limit.unit) == (True, 9, 7)
    unlimited = domains.match("shop", [("free", "")])
    assert unlimited is not None
    assert unlimited.limit.algorithm is None


def test_metadata_of_a_descriptor(start: Start, path: str) -> None:
    struct = struct_pb2.Struct()
    struct.update({"tier": {"name": "gold", "levels": [1, True, None]}})
    with ControlPlane() as plane:
        plane.send("1", domain("shop", {**USER, "metadata": struct}))
        start(plane.address)
        until("it is accepted", lambda: plane.answers() == [("1", "n1", "")])
    match = read_snapshot(path).domains.match("shop", [("user", "a")])
    assert match is not None
    assert match.limit.metadata == {"tier": {"name": "gold", "levels": [1, True, None]}}


def test_an_invalid_configuration_is_refused_and_the_last_good_one_stays(start: Start, path: str) -> None:
    with ControlPlane() as plane:
        plane.send("1", domain("shop", USER))
        client = start(plane.address)
        until("it is acknowledged", lambda: plane.answers() == [("1", "n1", "")])
        plane.send("2", domain("shop", USER), domain("mail", NO_UNIT))
        until("it is refused", lambda: len(plane.answers()) == 2)
        version, nonce, error = plane.answers()[1]
        assert (version, nonce) == ("1", "n2"), "the version in force, and the nonce of the response that is refused"
        assert error.startswith("mail: descriptors[0].rate_limit.unit: is missing")
        assert counts(path) == {"shop": 1}
        plane.send("3", domain("mail", USER))
        until("the next is accepted", lambda: plane.answers()[2:] == [("3", "n3", "")])
        assert (client.accepted, client.refused) == (2, 1)


@pytest.mark.parametrize(
    ("resources", "type_url", "reason"),
    [
        ([domain("a", USER), domain("a", USER)], None, "a: domain: 'a' is the domain of a too"),
        ([domain("", USER)], None, "resources[0]: domain: is empty"),
        ([domain("a", USER, USER)], None, "a: descriptors[1].key: this key and value are already defined above"),
        ([], "type.googleapis.com/envoy.config.cluster.v3.Cluster", "the type is 'type.googleapis.com/envoy"),
    ],
)
def test_refusals_say_what_is_wrong(
    start: Start, path: str, resources: list[Any], type_url: str | None, reason: str
) -> None:
    with ControlPlane() as plane:
        plane.send("1", *resources, **({} if type_url is None else {"type_url": type_url}))
        start(plane.address)
        until("it is refused", lambda: len(plane.answers()) == 1)
        version, _, error = plane.answers()[0]
    assert version == ""
    assert error.startswith(reason), error
    assert not Path(path).exists()


def test_resources_that_are_no_configuration(start: Start) -> None:
    garbage, foreign = domain("a", USER), domain("a", USER)
    garbage.value = b"\xff"
    foreign.type_url = "type.googleapis.com/google.protobuf.Empty"
    with ControlPlane() as plane:
        plane.send("1", garbage)
        start(plane.address)
        until("it is refused", lambda: len(plane.answers()) == 1)
        assert plane.answers()[0][2] == "resources[0]: is not a valid RateLimitConfig"
        plane.send("2", foreign)
        until("it is refused, too", lambda: len(plane.answers()) == 2)
        assert plane.answers()[1][2].startswith("resources[0]: the type is 'type.googleapis.com/google.protobuf.Empty'")


def test_it_reconnects_and_asks_for_everything_again(start: Start, path: str) -> None:
    port = free_port()
    with ControlPlane(port) as plane:
        plane.send("7", domain("shop", USER))
        start(plane.address)
        until("it is acknowledged", lambda: plane.answers() == [("7", "n1", "")])
    time.sleep(0.3)
    assert counts(path) == {"shop": 1}, "without a control plane the last one stays"
    with ControlPlane(port) as plane:
        plane.send("7", domain("shop", USER, {**USER, "key": "other"}))  # a restarted one counts from the start again
        until("it is acknowledged again", lambda: plane.answers() == [("7", "n1", "")])
        assert plane.requests[0].version_info == ""
        assert counts(path) == {"shop": 2}


def test_a_control_plane_that_is_not_there_yet(start: Start, path: str, caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    start(f"127.0.0.1:{port}")
    until("it is logged", lambda: "xDS stream of" in caplog.text)
    with ControlPlane(port) as plane:
        plane.send("1", domain("shop", USER))
        until("it is acknowledged", lambda: plane.answers() == [("1", "n1", "")])
    assert counts(path) == {"shop": 1}


def test_a_control_plane_with_the_service_of_rate_limits_only(start: Start, path: str) -> None:
    with ControlPlane(methods=[RLS]) as plane:
        plane.send("1", domain("shop", USER))
        start(plane.address)
        until("it is acknowledged", lambda: plane.answers() == [("1", "n1", "")])
    assert counts(path) == {"shop": 1}


def test_ads_is_preferred(start: Start) -> None:
    with ControlPlane(methods=[ADS, RLS]) as plane:
        plane.send("1", domain("shop", USER))
        start(plane.address)
        until("it is acknowledged", lambda: plane.answers() == [("1", "n1", "")])
        assert len(plane.headers) == 1


def test_close_ends_the_stream(start: Start) -> None:
    with ControlPlane() as plane:
        plane.send("1", domain("shop", USER))
        client = start(plane.address)
        until("it is acknowledged", lambda: plane.answers() == [("1", "n1", "")])
        client.close()
        plane.send("2", domain("shop", USER))
        time.sleep(0.2)
        assert len(plane.answers()) == 1


def test_a_snapshot_that_cannot_be_written_refuses(start: Start, path: str) -> None:
    Path(path).mkdir()
    with ControlPlane() as plane:
        plane.send("1", domain("shop", USER))
        start(plane.address)
        until("it is refused", lambda: len(plane.answers()) == 1)
        assert plane.answers()[0][2].startswith(f"cannot write {path}")


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"format": 2, "resources": []}', '{"format": 1}', '{"format": 1, "resources": [5]}']
)
def test_a_damaged_snapshot_is_a_problem(path: str, content: str) -> None:
    Path(path).write_text(content)
    (problem,) = read_snapshot(path).problems
    assert "is not a configuration that Crestgate has written" in str(problem)


def test_a_snapshot_of_invalid_limits_is_a_problem(path: str) -> None:
    resources = [{"name": "a", "domain": "a", "descriptors": [{"key": "x", "rate_limit": {"unit": "minute"}}]}]
    Path(path).write_text(json.dumps({"format": 1, "version": "1", "resources": resources}))
    assert "requests_per_unit" in str(read_snapshot(path).problems[0])
