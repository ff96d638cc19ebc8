"""What redis-py needs: where a transaction is to be sent, how its connection is given back, its errors in our words."""

from __future__ import annotations

from typing import Any

from redis import RedisCluster
from redis.client import Pipeline
from redis.exceptions import ConnectionError as LostError
from redis.exceptions import InvalidResponse, RedisClusterException, RedisError
from redis.sentinel import MasterNotFoundError

from headgate.stores.redis.blocking import problem_of
from headgate.stores.redis.reply import NOT_REDIS

__all__ = ["FAILURES", "let_go", "node_of", "told"]

FAILURES = (RedisError, RedisClusterException, OSError)
"""What redis-py raises when something has gone wrong."""


def node_of(client: Any, key: str) -> Any:
    """In a cluster the node that has the key's slot: a cluster's own pipeline is another thing."""
    if isinstance(client, RedisCluster):
        return client.get_redis_connection(client.get_node_from_key(key))  # type: ignore[no-untyped-call]  # redis-py's
    return client


def told(error: BaseException) -> str:
    """What has gone wrong, in the words of the Redis store, for which an operator has looked before."""
    if isinstance(error, MasterNotFoundError):
        return "none of them names a master; do they run, and know one of this name?"
    cause: BaseException | None = error
    while isinstance(cause, LostError | RedisClusterException | InvalidResponse):
        if isinstance(cause, InvalidResponse):
            return NOT_REDIS
        cause = cause.__cause__ or cause.__context__
    return problem_of(cause) if isinstance(cause, ConnectionRefusedError) else str(error)


def let_go(pipeline: Pipeline) -> None:
    """Give its connection back, watching nothing."""
    try:
        pipeline.reset()
    except FAILURES:
        pipeline.watching = False  # the connection that did is closed by now
        pipeline.reset()
