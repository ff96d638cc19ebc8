"""A request as rules see it."""

from __future__ import annotations

from crestgate.core.context import RequestContext


def test_an_api_key_is_not_shown() -> None:
    context = RequestContext(user="alice", api_key="hunter2")
    assert "hunter2" not in repr(context)
    assert "alice" in repr(context)
    assert context != RequestContext(user="alice", api_key="other")
