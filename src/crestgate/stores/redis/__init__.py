"""Counters in Redis or Valkey: standalone, behind Sentinel, or in a Cluster."""

from crestgate.stores.redis.store import RedisStore

__all__ = ["RedisStore"]
