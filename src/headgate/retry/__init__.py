"""The other side of rate limits: calling somebody else's API, and being limited by it.

`Retry` says when to send again what was refused, `Outbound` makes calls wait their turn before they are. How httpx and
requests do both is in `headgate.retry.httpx` and `headgate.retry.requests`, each of which needs its library.
"""

from headgate.retry.outbound import AsyncOutbound, Outbound, host_of
from headgate.retry.policy import IDEMPOTENT, Retry
from headgate.retry.told import told_wait, used_up_wait

__all__ = ["IDEMPOTENT", "AsyncOutbound", "Outbound", "Retry", "host_of", "told_wait", "used_up_wait"]
