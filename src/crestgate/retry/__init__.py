"""The other side of rate limits: calling somebody else's API, and being limited by it.

`Retry` says when to send again what was refused, `Outbound` makes calls wait their turn before they are. How httpx and
requests do both is in `crestgate.retry.httpx` and `crestgate.retry.requests`, each of which needs its library.
"""

from crestgate.retry.outbound import AsyncOutbound, Outbound, host_of
from crestgate.retry.policy import IDEMPOTENT, Retry
from crestgate.retry.wait_hints import exhausted_wait, suggested_wait

__all__ = ["IDEMPOTENT", "AsyncOutbound", "Outbound", "Retry", "exhausted_wait", "host_of", "suggested_wait"]
