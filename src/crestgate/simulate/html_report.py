"""A report as one HTML page: no script, and nothing that is loaded from elsewhere. Light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from crestgate.simulate.picture import draw_svg

__all__ = ["render_html"]

STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#59636e;--line:#d1d9e0;--paper:#fff}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9198a1;--line:#3d444d;--paper:#0d1117}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:62rem;
margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}p{color:var(--soft)}svg{width:100%;height:auto}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid var(--line);white-space:nowrap}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
RULES = (("rule_id", "rule"), ("dimension", "dimension"), ("limit", "limit"))
SUBJECTS = (("subject", "subject"), ("rule_id", "rule"))
COUNTS = (("requests", "requests"), ("denied", "denied"), ("share_denied", "share"))
OF_SUBJECTS = (("subjects", "subjects"), ("subjects_denied", "subjects denied"))
NEWLY_DENIED = ("newly_denied", "newly denied")
NEWLY_ALLOWED = ("newly_allowed", "newly allowed")
Columns = Sequence[tuple[str, str]]


def render_html(report: dict[str, Any], title: str) -> str:
    """The page. `title` says what was simulated."""
    against = report["against"]
    newly = () if against is None else (NEWLY_DENIED,)
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        *(f"<p>{escape(line)}</p>" for line in summary_lines(report)),
        draw_svg(report),
        _table("Rules", (*RULES, *COUNTS, *OF_SUBJECTS, *newly), report["rules"]),
        _table("Subjects that are denied most", (*SUBJECTS, *COUNTS, *newly), report["subjects"]),
    ]
    if report["shadow_rules"]:
        parts.append(_table("Shadow rules", (*RULES, *COUNTS, *OF_SUBJECTS), report["shadow_rules"]))
        parts.append(_table("Subjects under shadow rules", (*SUBJECTS, *COUNTS), report["shadow_subjects"]))
    if against is not None:
        parts.append(_table("Rules compared with", (*RULES, *COUNTS, *OF_SUBJECTS, NEWLY_ALLOWED), against["rules"]))
        parts.append(_table("Subjects they deny", (*SUBJECTS, *COUNTS, NEWLY_ALLOWED), against["subjects"]))
    parts.append("</body></html>\n")
    return "\n".join(parts)


def summary_lines(report: dict[str, Any]) -> list[str]:
    """The report in sentences, for people."""
    lines = [
        f"{report['denied']:,} of {report['requests']:,} requests would be denied ({report['share_denied']:.2%}), "
        f"from {report['from']} to {report['until']}."
    ]
    against = report["against"]
    if against is not None:
        lines.append(
            f"The rules compared with deny {against['denied']:,} ({against['share_denied']:.2%}): "
            f"{against['newly_denied']:,} requests are newly denied, {against['newly_allowed']:,} newly allowed."
        )
    if report["unmatched"]:
        lines.append(f"No rule applies to {report['unmatched']:,} requests.")
    suggestion = report.get("suggestion")
    if suggestion is not None:
        lines.append(
            f"Suggested limit of {suggestion['rule_id']}: {suggestion['limit']:,} ({suggestion['text']}). It denies "
            f"{suggestion['denied_requests']:,} of {suggestion['requests']:,} requests and "
            f"{suggestion['denied_subjects']:,} of {suggestion['subjects']:,} subjects; the next lower limit denies "
            f"more than {suggestion['at_most']:.4g} of the {suggestion['of']}."
        )
    bad = report.get("bad_lines", {"count": 0, "first": None})
    if bad["count"]:
        first = bad["first"]
        lines.append(f"{bad['count']:,} lines were skipped; the first is line {first['line']}: {first['reason']}.")
    if report["late"]:
        lines.append(f"{report['late']:,} lines were out of order, and replayed at the time of their neighbours.")
    if not report["exact_subjects"]:
        lines.append("There are too many subjects to count each: the numbers of subjects are lower bounds.")
    if report["counters_full"]:
        lines.append("There were more counters than --max-keys: some were forgotten, and more may be denied in fact.")
    return lines


def _table(title: str, columns: Columns, rows: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return f"<h2>{escape(title)}</h2><p>None.</p>"
    numbers = {name for name, value in rows[0].items() if isinstance(value, int | float)}
    head = "".join(f"<th{_class(name in numbers)}>{escape(text)}</th>" for name, text in columns)
    body = "\n".join(
        f"<tr>{''.join(f'<td{_class(name in numbers)}>{_cell(name, row[name])}</td>' for name, _ in columns)}</tr>"
        for row in rows
    )
    return f'<h2>{escape(title)}</h2><div class="wide"><table><tr>{head}</tr>\n{body}</table></div>'


def _class(number: bool) -> str:
    return ' class="n"' if number else ""


def _cell(name: str, value: Any) -> str:
    if name == "share_denied":
        return f"{value:.2%}"
    return f"{value:,}" if isinstance(value, int) else escape(str(value))
