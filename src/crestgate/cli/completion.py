"""Completion of rule and plan names in a shell, from the rule database of this folder.

A database elsewhere, or a service, is not asked: a key press must not wait for a network.
"""

from __future__ import annotations

from itertools import islice

from crestgate.config.default_folder import default_rules_url, has_default_rules
from crestgate.rules.port import Kind
from crestgate.rules.storage.factory import open_repository

__all__ = ["complete_plans", "complete_rules"]

MAX_NAMES = 100


def complete_rules(incomplete: str) -> list[str]:
    return _names("rule", incomplete)


def complete_plans(incomplete: str) -> list[str]:
    return _names("plan", incomplete)


def _names(kind: Kind, prefix: str) -> list[str]:
    try:
        if not has_default_rules():
            return []
        repository = open_repository(default_rules_url())
    except Exception:  # noqa: BLE001 - an error message would be taken for a completion
        return []
    try:
        return [record.id for record in islice(repository.list(kind, prefix=prefix, limit=MAX_NAMES), MAX_NAMES)]
    except Exception:  # noqa: BLE001 - as above
        return []
    finally:
        repository.close()
