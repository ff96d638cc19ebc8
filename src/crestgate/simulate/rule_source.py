"""Rules of a file or of a rule database, as the service would load them, without the service."""

from __future__ import annotations

from crestgate.rules.port import Repository
from crestgate.rules.ruleset import RuleSet
from crestgate.rules.source_state import SourceState, defaults_of
from crestgate.rules.storage.factory import open_repository
from crestgate.rules.storage.files import FileRepository

__all__ = ["load_rules"]


def load_rules(source: str) -> RuleSet:
    """The rules, tiers and defaults of a rule file, a folder of them, a configuration, or the URL of a rule database.
    ValidationError has all problems, those of files each with its file and line."""
    repository: Repository = open_repository(source) if "://" in source else FileRepository([source])
    try:
        state = SourceState(repository)
        loaded = state.read()
    finally:
        repository.close()
    assert loaded is not None  # there is nothing older that it could be the same as
    snapshot, _ = state.snapshot.after(loaded)
    return RuleSet.empty().edited(
        snapshot.rules.values(),
        tiers=snapshot.tiers,
        plans=snapshot.plans,
        defaults=defaults_of(snapshot.defaults),
    )
