"""Writes the results into docs/reliability.md, between its markers."""

from __future__ import annotations

import os
import platform
from collections import defaultdict
from pathlib import Path
from typing import Any

from chaos.slack import PAGE

__all__ = ["render", "violations_of", "write_report"]

BEGIN, END = "<!-- chaos: results -->", "<!-- chaos: end of results -->"


def write_report(results: list[dict[str, Any]], soak: list[dict[str, Any]], page: Path = PAGE) -> None:
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"{page.name} has no markers {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n\n{render(results, soak)}\n\n{END}{after}")


def violations_of(result: dict[str, Any]) -> list[str]:
    """All that is beyond the stated bounds."""
    return [*result["violations"], *result["slow"]]


def render(results: list[dict[str, Any]], soak: list[dict[str, Any]]) -> str:
    ran = [result for result in results if not result["skipped"]]
    if not ran:
        return "No run yet: `make chaos` writes the results here."
    bad = sum(bool(violations_of(result)) for result in ran)
    total = sum(result["decisions"] for result in ran)
    seconds = sorted({f"{result['seconds']:g}" for result in ran})
    head = (
        f"{len(ran)} of {len(results)} cells were run, with {' or '.join(seconds)} s of load each, on {os.cpu_count()} "
        f"cores ({platform.system()}, Python {platform.python_version()}): {total:,} decisions, {bad} cells with "
        "violations."
    )
    parts = [head, _grid(results), _details(ran), _violations(ran), _skipped(results), _soak(soak)]
    return "\n\n".join(filter(None, parts))


def _grid(results: list[dict[str, Any]]) -> str:
    stores = list(dict.fromkeys(result["store"] for result in results))
    signs = {(r["store"], r["fault"]): "–" if r["skipped"] else "✗" if violations_of(r) else "✓" for r in results}
    lines = [f"| fault | {' | '.join(stores)} |", "|---" * (len(stores) + 1) + "|"]
    for fault in dict.fromkeys(result["fault"] for result in results):
        lines.append(f"| {fault} | {' | '.join(signs.get((store, fault), '') for store in stores)} |")
    return "✓ within the stated bounds, ✗ not, – not run (see below).\n\n" + "\n".join(lines)


def _details(ran: list[dict[str, Any]]) -> str:
    lines = [
        "| store | fault | decisions | by policy | faults | violations | over-admission (bound) | p99.9, max ms "
        "| control ms | recovery s | seed |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in ran:
        recovery = "" if r["recovery"] is None else f"{r['recovery']:.2f}"
        waits = f"{r['p999'] * 1000:.0f}, {r['longest'] * 1000:.0f}"
        lines.append(
            f"| {r['store']} | {r['fault']} | {r['decisions']} | {r['by_policy']} | {r['faults']} "
            f"| {len(violations_of(r))} | {r['over']} ({r['over_bound']}) | {waits} | {r['control'] * 1000:.0f} "
            f"| {recovery} | {r['seed']} |"
        )
    return "\n".join(lines)


def _violations(ran: list[dict[str, Any]]) -> str:
    lines = [
        f"- {r['store']} × {r['fault']}: {' '.join(violation.split())[:300]}"
        for r in ran
        for violation in violations_of(r)
    ]
    return "Violations:\n\n" + "\n".join(lines) if lines else ""


def _skipped(results: list[dict[str, Any]]) -> str:
    reasons: dict[tuple[str, str], list[str]] = defaultdict(list)
    for result in results:
        if result["skipped"]:
            reasons[result["fault"], result["skipped"]].append(result["store"])
    lines = [f"| {fault} | {', '.join(stores)} | {reason} |" for (fault, reason), stores in reasons.items()]
    return "Cells that were not run:\n\n| fault | stores | why |\n|---|---|---|\n" + "\n".join(lines) if lines else ""


def _soak(soak: list[dict[str, Any]]) -> str:
    if not soak:
        return ""
    lines = [
        f"| {row['what']} | {row['measure']} | {row['early']} | {row['late']} | {'flat' if row['flat'] else 'GROWS'} |"
        for row in soak
    ]
    head = "Soak: the median of the second quarter of the run beside that of its last quarter.\n\n"
    return head + "| what | measure | early | late | |\n|---|---|---|---|---|\n" + "\n".join(lines)
