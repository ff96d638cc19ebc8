"""All faults and all stores: the rows and columns of the table."""

from __future__ import annotations

from chaos.environments import STORES
from chaos.faults import GENERIC, Fault
from chaos.store_faults import OF_STORES

__all__ = ["FAULTS", "cells"]

FAULTS: dict[str, Fault] = {fault.name: fault for fault in [*GENERIC, *OF_STORES]}


def cells() -> list[tuple[str, str]]:
    """Every store with every fault."""
    return [(store, fault) for store in STORES for fault in FAULTS]
