"""Rules of a file, as the service would load them, without the service."""

from __future__ import annotations

from crestgate.rules.ruleset import RuleSet
from crestgate.rules.source_state import SourceState, defaults_of
from crestgate.rules.storage.files import FileRepository

__all__ = ["load_rules"]


def load_rules(path: str) -> RuleSet:
    """The rules, tiers and defaults of a rule file, a folder of them, or a configuration. ValidationError has all
    problems, each with its file and line."""
    state = SourceState(FileRepository([path]))
    loaded = state.read()
    assert loaded is not None  # there is nothing older that it could be the same as
    snapshot, _ = state.snapshot.after(loaded)
    return RuleSet.empty().edited(
        snapshot.rules.values(),
        tiers=snapshot.tiers,
        plans=snapshot.plans,
        defaults=defaults_of(snapshot.defaults),
    )
