"""A child program that sends checks of clients that are not configured, and measures its memory."""

from __future__ import annotations

import gc

from crestgate import Limiter, RequestContext
from crestgate.rules.evaluator import RuleEvaluator
from integration.child_main import send
from integration.flood_programs import resident_bytes

__all__ = ["check_fresh_clients"]

KNOWN_CLIENT_INTERVAL = 1_000
"""The configured client is checked at this interval, often enough that a bounded store does not evict it."""


def check_fresh_clients(config: str, early: int, clients: int) -> None:
    """Check once for each of `clients` clients, with the rules of a configuration.

    Sends the memory after the first `early` clients and at the end, how many clients are remembered, how often the
    configured client was admitted, and how many first checks were denied.
    """
    limiter = Limiter.from_config(config)
    check = limiter.check_request
    early_bytes = known_allowed = denied = 0
    for number in range(clients):
        if not check(RequestContext(client=f"client-{number:07d}", path="/v1/pay", method="POST")).allowed:
            denied += 1
        if number % KNOWN_CLIENT_INTERVAL == 0:
            known_allowed += check(RequestContext(client="acme", path="/v1/pay", method="POST")).allowed
        if number + 1 == early:
            gc.collect()
            early_bytes = resident_bytes()
    gc.collect()
    result = {
        "early": early_bytes,
        "late": resident_bytes(),
        "seen": len(limiter.evaluator.seen_clients) if isinstance(limiter.evaluator, RuleEvaluator) else -1,
        "rules": len(limiter.catalog.current.rules),
        "known": known_allowed,
        "denied": denied,
        "failures": limiter.store_failures,
    }
    limiter.close()
    send(result)
