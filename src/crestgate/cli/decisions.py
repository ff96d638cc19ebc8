"""Decisions as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crestgate.cli.output import Cell, Column, escape_control, format_duration, print_line, print_table
from crestgate.core.decision import Decision

__all__ = ["decision_data", "policy_reason", "print_decision", "print_reset", "print_verdict"]

COLUMNS = (
    Column("limit", wraps=True),
    *(
        Column("allowed", drop_order=6),
        Column("remaining", drop_order=7),
        Column("of", drop_order=5),
        Column("resets in", drop_order=4),
    ),
    *(Column("retry after", drop_order=3), Column("delay", drop_order=2), Column("state", drop_order=1)),
)
"""Columns that repeat the line above the table are dropped first."""
POLICY_REASONS = {
    "fail_open": "the failure policy decided, not the store: not limited (fail_open)",
    "fail_closed": "the failure policy decided, not the store: denied until it is back (fail_closed)",
    "fallback": "the failure policy decided, not the store: limited in one process (fallback)",
}
_STYLES = {"warning": "yellow", "throttled": "red"}


def decision_data(decision: Decision) -> dict[str, Any]:
    """A decision in the format of the HTTP API. Without a limit, numbers are null."""
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


def policy_reason(data: Mapping[str, Any]) -> str | None:
    """Which failure policy decided, or one of the limits; None if the store did."""
    reasons = [str(one.get("reason")) for one in (data, *(data.get("parts") or ()))]
    return next((reason for reason in reasons if reason in POLICY_REASONS), None)


def print_decision(data: Mapping[str, Any], *, would: bool) -> None:
    """Print a decision in the format of the HTTP API: a line, and a table of its limits."""
    print_verdict(data, would=would)
    parts = data.get("parts") or ([data] if data.get("rule") is not None else [])
    rows = [_row(str(part["rule"]), part) for part in parts]
    rows += [_row(f"{shadow['rule']} (shadow)", shadow) for shadow in data.get("shadows") or ()]
    if rows:
        print_table(COLUMNS, rows)


def print_verdict(data: Mapping[str, Any], *, would: bool) -> None:
    """Print the line of a decision, and which failure policy made it."""
    verdict = Cell("allowed", "bold green") if data["allowed"] else Cell("denied", "bold red")
    print_line("would be " if would else "", verdict, _explanation(data))
    reason = policy_reason(data)
    if reason is not None:
        print_line(Cell(POLICY_REASONS[reason], "bold red"))


def _explanation(data: Mapping[str, Any]) -> str:
    reason, rule, retry_after = data["reason"], escape_control(str(data.get("rule"))), data["retry_after"]
    if reason == "no_rule":
        return ": no rule applies"
    if data["allowed"]:
        shadow = ", though a shadow rule would deny it" if reason == "shadow" else ""
        return (f" after a delay of {format_duration(data['delay'])}" if data["delay"] else "") + shadow
    if retry_after is not None:
        return f" by {rule}: retry after {format_duration(retry_after)}"
    if reason == "blocked":
        return f" by {rule}: it blocks all requests"
    return f" by {rule}: the cost is above its maximum"


def _row(name: str, part: Mapping[str, Any]) -> list[str | Cell]:
    retry_after = part["retry_after"]
    return [
        name,
        Cell("yes", "green") if part["allowed"] else Cell("no", "red"),
        str(part["remaining"]),
        str(part["limit"]),
        format_duration(part["reset_after"]),
        "-" if part["allowed"] else "never" if retry_after is None else format_duration(retry_after),
        format_duration(part["delay"]) if part["delay"] else "-",
        _state(part),
    ]


def _state(part: Mapping[str, Any]) -> Cell:
    """The pressure state. A decision of the failure policy knows none."""
    if part.get("reason") in POLICY_REASONS:
        return Cell(str(part["reason"]), "red")
    return Cell(str(part["state"]), _STYLES.get(part["state"], ""))


def print_reset(counters: Sequence[tuple[str, str]]) -> None:
    if not counters:
        print_line("no rule applies: there is nothing to reset")
        return
    print_line(f"reset {len(counters)} {'counter' if len(counters) == 1 else 'counters'}")
    print_table([Column("key", wraps=True), Column("limit", wraps=True)], counters)
