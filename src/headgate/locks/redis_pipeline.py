"""Transactions of redis-py: where one is to be sent, and how its connection is given back."""

from __future__ import annotations

from typing import Any

from redis import RedisCluster
from redis.client import Pipeline
from redis.exceptions import RedisClusterException, RedisError

__all__ = ["FAILURES", "let_go", "node_of"]

FAILURES = (RedisError, RedisClusterException, OSError)
"""What redis-py raises when something has gone wrong."""


def node_of(client: Any, key: str) -> Any:
    """In a cluster the node that has the key's slot: a cluster's own pipeline is another thing."""
    if isinstance(client, RedisCluster):
        return client.get_redis_connection(client.get_node_from_key(key))  # type: ignore[no-untyped-call]  # redis-py's
    return client


def let_go(pipeline: Pipeline) -> None:
    """Give its connection back, watching nothing."""
    try:
        pipeline.reset()
    except FAILURES:
        pipeline.watching = False  # the connection that did is closed by now
        pipeline.reset()
