"""Request contexts."""

from __future__ import annotations

from crestgate.core.context import RequestContext


def test_repr_hides_the_api_key() -> None:
    context = RequestContext(user="alice", api_key="hunter2")
    assert "hunter2" not in repr(context)
    assert "alice" in repr(context)
    assert context != RequestContext(user="alice", api_key="other")
