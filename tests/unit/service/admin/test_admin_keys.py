"""`/api/v1/keys`: tokens are shown once, digests never, and no key outlives the one that creates it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from crestgate.rules.timestamps import format_timestamp
from crestgate.service.auth.keys import ApiKeys, Caller
from unit.service.admin.admin_client import Control

TOKEN = re.compile(r"cg_([0-9a-f]{12})_[\w-]{43}")
HOUR_US = 3_600_000_000


def find(control: Control, token: str) -> Caller | None:
    bodies = {record.id: record.body for record in control.repository.list("key")}
    return ApiKeys(lambda: bodies).find(token, control.clock.ticks())


def create(control: Control, **body: Any) -> dict[str, Any]:
    response = control.post("/api/v1/keys", {"name": "ci", **body})
    assert (response.status_code, response.headers["cache-control"]) == (201, "no-store")
    data: dict[str, Any] = response.json()
    return data


def test_key_is_created_listed_and_revoked(control: Control) -> None:
    made = create(control, scope="read")
    token = made.pop("token")
    match = TOKEN.fullmatch(token)
    assert match is not None
    assert match[1] == made["key_id"]
    assert find(control, token) == Caller("ci", "read", made["key_id"])
    response = control.get("/api/v1/keys")
    assert response.headers["cache-control"] == "no-store"
    assert response.json() == {"keys": [made], "next": None}
    assert control.notified == 1
    response = control.delete(f"/api/v1/keys/{made['key_id']}")
    assert (response.status_code, response.headers["cache-control"]) == (204, "no-store")
    assert find(control, token) is None
    assert control.notified == 2
    assert control.actions() == [f"create key:{made['key_id']}", f"delete key:{made['key_id']}"]
    assert control.get("/api/v1/audit").json()["entries"][0]["actor"] == "key:ops"


def test_no_response_has_a_digest(control: Control) -> None:
    made = create(control)
    (record,) = control.repository.list("key")
    digest = record.body["digest"]
    control.post(f"/api/v1/keys/{made['key_id']}/rotate", {})
    for path in ("/api/v1/keys", "/api/v1/audit"):
        assert digest not in control.get(path).text
        assert made["token"] not in control.get(path).text


def test_list_is_paged(control: Control) -> None:
    ids = sorted(create(control)["key_id"] for _ in range(3))
    first = control.get("/api/v1/keys?limit=2").json()
    assert ([key["key_id"] for key in first["keys"]], first["next"]) == (ids[:2], ids[1])
    assert [key["key_id"] for key in control.get(f"/api/v1/keys?after={ids[1]}").json()["keys"]] == ids[2:]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "name"),
        ({"name": " "}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"name": "ci", "scope": "admin"}, "scope"),
        ({"name": "ci", "scope": 1}, "scope"),
        ({"name": "ci", "expires_at": "soon"}, "expires_at"),
        ({"name": "ci", "expires_at": "2020-01-01T00:00:00Z"}, "expires_at"),
        ({"name": "ci", "token": "mine"}, "token"),
    ],
)
def test_invalid_bodies_name_the_field(control: Control, body: dict[str, Any], field: str) -> None:
    response = control.post("/api/v1/keys", body)
    assert response.status_code == 400
    assert [one["field"] for one in response.json()["problems"]] == [field]
    assert control.get("/api/v1/keys").json()["keys"] == []


def test_rotation_replaces_a_key(control: Control) -> None:
    made = create(control, scope="write", expires_at="2999-01-01T00:00:00Z")
    response = control.post(f"/api/v1/keys/{made['key_id']}/rotate", {"grace_seconds": 60})
    assert (response.status_code, response.headers["cache-control"]) == (201, "no-store")
    new = response.json()
    assert (new["name"], new["scope"], new["expires_at"]) == ("ci", "write", "2999-01-01T00:00:00Z")
    assert new["replaces"]["expires_at"] == format_timestamp(control.clock.ticks() + 60_000_000)
    assert find(control, made["token"]) is not None
    control.clock.advance(60)
    assert find(control, made["token"]) is None
    assert find(control, new["token"]) is not None


def test_rotation_without_grace(control: Control) -> None:
    made = create(control)
    control.post(f"/api/v1/keys/{made['key_id']}/rotate", {"grace_seconds": 0})
    assert find(control, made["token"]) is None


def test_expired_key_is_rotated_only_with_an_expiry(control: Control) -> None:
    made = create(control, expires_at=format_timestamp(control.clock.ticks() + 1_000_000))
    control.clock.advance(1)
    path = f"/api/v1/keys/{made['key_id']}/rotate"
    response = control.post(path, {})
    assert response.status_code == 400
    assert [one["field"] for one in response.json()["problems"]] == ["expires_at"]
    new = control.post(path, {"expires_at": "2999-01-01T00:00:00Z"})
    assert find(control, new.json()["token"]) is not None


@pytest.mark.parametrize("body", [{"grace_seconds": -1}, {"grace_seconds": "1h"}, {"grace_seconds": 1e12}])
def test_invalid_grace(control: Control, body: dict[str, Any]) -> None:
    made = create(control)
    response = control.post(f"/api/v1/keys/{made['key_id']}/rotate", body)
    assert [one["field"] for one in response.json()["problems"]] == ["grace_seconds"]


def test_unknown_key_is_404_with_the_ids_of_its_name(control: Control) -> None:
    made = create(control)
    for response in (control.delete("/api/v1/keys/ci"), control.post("/api/v1/keys/ci/rotate", {})):
        assert response.status_code == 404
        assert response.json()["detail"].endswith(f"the key with this name has the id {made['key_id']}")


def test_whole_token_in_the_path_is_not_repeated(control: Control) -> None:
    token = create(control)["token"]
    assert control.delete(f"/api/v1/keys/{token}").status_code == 204
    assert token not in control.delete(f"/api/v1/keys/{token}").text


def test_key_does_not_outlive_its_maker(control: Control) -> None:
    forever = create(control)
    now_us = control.clock.ticks()
    control.caller = Caller("lent", "write", "1" * 12, now_us + HOUR_US)
    ends = format_timestamp(now_us + HOUR_US)
    later = format_timestamp(now_us + 2 * HOUR_US)
    assert create(control)["expires_at"] == ends
    assert create(control, expires_at=format_timestamp(now_us + 1_000_000))["expires_at"] < ends
    made = create(control, expires_at=ends)
    for path, body in (
        ("/api/v1/keys", {"name": "ci", "expires_at": later}),
        (f"/api/v1/keys/{forever['key_id']}/rotate", {}),
        (f"/api/v1/keys/{made['key_id']}/rotate", {"expires_at": later}),
    ):
        response = control.post(path, body)
        assert response.status_code == 400
        assert [one["field"] for one in response.json()["problems"]] == ["expires_at"]
        assert ends in response.json()["detail"]
    assert control.post(f"/api/v1/keys/{made['key_id']}/rotate", {}).json()["expires_at"] == ends
    assert control.post(f"/api/v1/keys/{forever['key_id']}/rotate", {"expires_at": ends}).status_code == 201
