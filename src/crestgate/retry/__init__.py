"""Retries and pacing for calls to a rate-limited remote API.

`Retry` decides when to resend a rejected request; `Outbound` paces calls so that they are not rejected. The adapters
are in `crestgate.retry.httpx` and `crestgate.retry.requests`, each of which needs its library.
"""

from crestgate.retry.outbound import AsyncOutbound, Outbound, host_of
from crestgate.retry.policy import IDEMPOTENT, Retry
from crestgate.retry.wait_hints import exhausted_wait, suggested_wait

__all__ = ["IDEMPOTENT", "AsyncOutbound", "Outbound", "Retry", "exhausted_wait", "host_of", "suggested_wait"]
