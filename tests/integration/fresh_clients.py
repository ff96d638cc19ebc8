"""A program that asks in the name of clients that nobody has configured, and watches what becomes of its memory."""

from __future__ import annotations

import gc

from crestgate import Limiter, RequestContext
from crestgate.rules.evaluator import RuleEvaluator
from integration.child_main import say
from integration.flood_programs import resident

__all__ = ["ask"]

EVERY = 1_000
"""How often the client that is known asks, too: not so seldom that a bounded store has forgotten it meanwhile."""


def ask(config: str, early: int, most: int) -> None:
    """Ask once for each of `most` clients, under the rules of a configuration.

    Says what the memory was after the `early` first ones and in the end, how many clients are remembered, how often
    the known client was admitted, and how often any was denied that never asked before.
    """
    limiter = Limiter.from_config(config)
    check = limiter.check_request
    at_first = known = denied = 0
    for number in range(most):
        if not check(RequestContext(client=f"client-{number:07d}", path="/v1/pay", method="POST")).allowed:
            denied += 1
        if number % EVERY == 0:
            known += check(RequestContext(client="acme", path="/v1/pay", method="POST")).allowed
        if number + 1 == early:
            gc.collect()
            at_first = resident()
    gc.collect()
    told = {
        "early": at_first,
        "late": resident(),
        "seen": len(limiter.evaluator.seen_clients) if isinstance(limiter.evaluator, RuleEvaluator) else -1,
        "rules": len(limiter.catalog.current.rules),
        "known": known,
        "denied": denied,
        "failures": limiter.store_failures,
    }
    limiter.close()
    say(told)
