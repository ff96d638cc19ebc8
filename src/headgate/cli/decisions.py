"""A decision as people read it, and as machines do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headgate.cli.showing import Cell, Column, say, say_table, shown, span
from headgate.core.decision import Decision

__all__ = ["decision_data", "say_answer", "say_reset"]

COLUMNS = (
    Column("limit", folds=True),
    *(Column("allowed", spare=6), Column("remaining", spare=7), Column("of", spare=5), Column("resets in", spare=4)),
    *(Column("retry after", spare=3), Column("delay", spare=2), Column("state", spare=1)),
)
"""Where there is little room, what the line above the table says goes first."""
_STYLES = {"warning": "yellow", "throttled": "red"}


def decision_data(decision: Decision) -> dict[str, Any]:
    """A decision by the names of the HTTP answer. Numbers that nothing limits are null."""
    data = _part_data(decision)
    if len(decision.parts) > 1:
        data["parts"] = [_part_data(part) for part in decision.parts]
    if decision.shadows:
        data["shadows"] = [_part_data(shadow) for shadow in decision.shadows]
    return data


def _part_data(decision: Decision) -> dict[str, Any]:
    limited = bool(decision.parts)
    return {
        "allowed": decision.allowed,
        "limit": decision.limit if limited else None,
        "remaining": decision.remaining if limited else None,
        "current_count": decision.limit - decision.remaining if limited else None,
        "reset_after": decision.reset_after,
        "retry_after": None if decision.allowed else decision.retry_after,
        "reason": decision.reason,
        "rule": decision.name if limited else None,
        "state": decision.state,
        "delay": decision.delay,
        "queue_position": decision.queue_position,
    }


def say_answer(data: Mapping[str, Any], *, would: bool) -> None:
    """An answer, by the names of the HTTP answer: in a line, with the limits behind it in a table."""
    verdict = Cell("allowed", "bold green") if data["allowed"] else Cell("denied", "bold red")
    say("would be " if would else "", verdict, _because(data))
    parts = data.get("parts") or ([data] if data.get("rule") is not None else [])
    rows = [_row(str(part["rule"]), part) for part in parts]
    rows += [_row(f"{shadow['rule']} (shadow)", shadow) for shadow in data.get("shadows") or ()]
    if rows:
        say_table(COLUMNS, rows)


def _because(data: Mapping[str, Any]) -> str:
    reason, rule, retry_after = data["reason"], shown(str(data.get("rule"))), data["retry_after"]
    if reason == "no_rule":
        return ": no rule applies"
    if data["allowed"]:
        shadow = ", though a shadow rule would deny it" if reason == "shadow" else ""
        return (f" after a delay of {span(data['delay'])}" if data["delay"] else "") + shadow
    if retry_after is not None:
        return f" by {rule}: retry after {span(retry_after)}"
    if reason == "blocked":
        return f" by {rule}: it lets nothing pass"
    return f" by {rule}: more than it ever lets pass at once"


def _row(name: str, part: Mapping[str, Any]) -> list[str | Cell]:
    retry_after = part["retry_after"]
    return [
        name,
        Cell("yes", "green") if part["allowed"] else Cell("no", "red"),
        str(part["remaining"]),
        str(part["limit"]),
        span(part["reset_after"]),
        "-" if part["allowed"] else "never" if retry_after is None else span(retry_after),
        span(part["delay"]) if part["delay"] else "-",
        Cell(str(part["state"]), _STYLES.get(part["state"], "")),
    ]


def say_reset(counters: Sequence[tuple[str, str]]) -> None:
    if not counters:
        say("no rule applies: there is nothing to reset")
        return
    say(f"reset {len(counters)} {'counter' if len(counters) == 1 else 'counters'}")
    say_table([Column("key", folds=True), Column("limit", folds=True)], counters)
