"""The result of a replay as plain data: for JSON, tables, pictures and the API alike.

API keys are secrets: subjects show a digest of them, as the statistics of the service do.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nlargest
from typing import Any

from crestgate.core.redaction import digest_api_key
from crestgate.rules.timestamps import format_timestamp
from crestgate.simulate.replay import Replay, RuleReplay
from crestgate.simulate.tallies import RuleTally, SubjectTally

__all__ = ["DEFAULT_TOP", "build_report", "share"]

DEFAULT_TOP = 20
MAX_RULES = 1000
MAX_SUBJECT = 200
"""Characters of a subject."""


def build_report(replay: Replay, top: int = DEFAULT_TOP) -> dict[str, Any]:
    """What was counted. `top` bounds each list of subjects."""
    proposed, current = replay.proposed, replay.current
    report: dict[str, Any] = {
        "requests": replay.requests,
        "denied": proposed.denied,
        "share_denied": share(proposed.denied, replay.requests),
        "unmatched": proposed.unmatched,
        "from": format_timestamp(replay.first_us) if replay.requests else None,
        "until": format_timestamp(replay.clock.now_us) if replay.requests else None,
        "late": replay.late,
        "exact_subjects": proposed.tallies.exact and (current is None or current.tallies.exact),
        "counters_full": proposed.full or (current is not None and current.full),
        "rules": _rules(proposed, False, "newly_denied", current is not None),
        "shadow_rules": _rules(proposed, True, "", False),
        "subjects": _subjects(proposed, top, False, "newly_denied", current is not None),
        "shadow_subjects": _subjects(proposed, top, True, "", False),
        "series": _series(replay),
        "against": None,
    }
    if current is not None:
        report["against"] = {
            "denied": current.denied,
            "share_denied": share(current.denied, replay.requests),
            "newly_denied": replay.newly_denied,
            "newly_allowed": replay.newly_allowed,
            "rules": _rules(current, False, "newly_allowed", True),
            "subjects": _subjects(current, top, False, "newly_allowed", True),
        }
    return report


def share(part: int, whole: int) -> float:
    """A part of a whole, from 0 to 1.

    >>> share(1, 3), share(0, 0)
    (0.333333, 0.0)
    """
    return round(part / whole, 6) if whole else 0.0


def _rules(side: RuleReplay, shadow: bool, changed: str, compared: bool) -> list[dict[str, Any]]:
    """The rules that saw requests, those with most denials first."""
    seen = [tally for tally in side.tallies.rules.values() if tally.shadow is shadow]
    seen.sort(key=lambda tally: (-tally.denied, -tally.requests, tally.rule.rule_id))
    rows = []
    for tally in seen[:MAX_RULES]:
        rule = tally.rule
        row = {
            "rule_id": rule.rule_id,
            "name": rule.name,
            "dimension": rule.dimension,
            "limit": str(rule.compiled()),
            "requests": tally.requests,
            "denied": tally.denied,
            "share_denied": share(tally.denied, tally.requests),
            "subjects": len(tally.subjects),
            "subjects_denied": sum(1 for one in tally.subjects.values() if one.denied),
        }
        if compared:
            row[changed] = tally.changed
        rows.append(row)
    return rows


def _subjects(side: RuleReplay, top: int, shadow: bool, changed: str, compared: bool) -> list[dict[str, Any]]:
    """The subjects with most denials, or most changes where rules are compared."""

    def rows() -> Iterable[tuple[int, int, int, str, RuleTally, SubjectTally]]:
        for tally in side.tallies.rules.values():
            if tally.shadow is shadow:
                for key, one in tally.subjects.items():
                    if one.denied:
                        yield one.changed, one.denied, one.requests, key, tally, one

    largest = nlargest(top, rows(), key=lambda row: row[:4])
    found = []
    for _, _, _, key, tally, one in largest:
        row = {
            "subject": digest_api_key(key)[:MAX_SUBJECT],
            "rule_id": tally.rule.rule_id,
            "requests": one.requests,
            "denied": one.denied,
            "share_denied": share(one.denied, one.requests),
        }
        if compared:
            row[changed] = one.changed
        found.append(row)
    return found


def _series(replay: Replay) -> dict[str, Any]:
    series, compared = replay.series, replay.current is not None
    points = []
    for step, point in sorted(series.points.items()):
        row: dict[str, Any] = {
            "at": format_timestamp(step * series.seconds * 1_000_000),
            "requests": point.requests,
            "denied": point.denied,
        }
        if compared:
            row["denied_against"] = point.denied_before
        points.append(row)
    return {"step_seconds": series.seconds, "points": points}
