"""A picture of a report, as SVG: requests and denials over time. No script, no font, no other file."""

from __future__ import annotations

from datetime import datetime
from html import escape
from typing import Any

__all__ = ["STYLE", "draw_svg"]

WIDTH, HEIGHT = 960, 320
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 48, 40
STYLE = """
.cg{--ink:#1b1f24;--soft:#59636e;--line:#d1d9e0;--paper:#fff;--all:#9ec5fe;--denied:#cf222e;--before:#8250df}
@media(prefers-color-scheme:dark){.cg{--ink:#e6edf3;--soft:#9198a1;--line:#3d444d;--paper:#0d1117;--all:#1f4b8f;
--denied:#ff7b72;--before:#d2a8ff}}
.cg text{font:12px system-ui,sans-serif;fill:var(--soft)}.cg .title{font-size:15px;font-weight:600;fill:var(--ink)}
.cg .paper{fill:var(--paper)}.cg .all{fill:var(--all)}.cg .denied{fill:var(--denied)}.cg .grid{stroke:var(--line)}
.cg .before{fill:none;stroke:var(--before);stroke-width:1.5}
"""


def draw_svg(report: dict[str, Any]) -> str:
    """The picture; its colours follow the reader's light or dark scheme."""
    points = report["series"]["points"]
    step = report["series"]["step_seconds"]
    compared = report["against"] is not None
    times = [datetime.fromisoformat(point["at"]).timestamp() for point in points]
    first = times[0] if times else 0.0
    span = (times[-1] - first + step) if times else 1.0
    highest = max((point["requests"] for point in points), default=0) or 1
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(time: float) -> float:
        return round(LEFT + (time - first) / span * width, 2)

    def y(count: int) -> float:
        return round(TOP + height - count / highest * height, 2)

    bar = max(round(step / span * width, 2), 0.5)
    title = f"{report['denied']:,} of {report['requests']:,} requests denied ({report['share_denied']:.2%})"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" class="cg" role="img" '
        f'aria-label="{escape(title)}">',
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>',
        f'<text class="title" x="{LEFT}" y="20">{escape(title)}</text>',
        f'<text x="{LEFT}" y="38">requests per {_duration(step)}; red: denied'
        f"{'; violet: denied by the rules compared with' if compared else ''}</text>",
    ]
    for count in sorted({0, highest // 2, highest}):
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(count)}" y2="{y(count)}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(count) + 4}" text-anchor="end">{count:,}</text>')
    for kind, name in (("all", "requests"), ("denied", "denied")):
        for time, point in zip(times, points, strict=True):
            if point[name]:
                top = y(point[name])
                parts.append(
                    f'<rect class="{kind}" x="{x(time)}" y="{top}" width="{bar}" '
                    f'height="{round(TOP + height - top, 2)}"/>'
                )
    if compared and points:
        line = " ".join(f"{x(t)},{y(p['denied_against'])}" for t, p in zip(times, points, strict=True))
        parts.append(f'<polyline class="before" points="{line}"/>')
    for at, anchor, place in ((report["from"], "start", LEFT), (report["until"], "end", WIDTH - RIGHT)):
        if at is not None:
            parts.append(f'<text x="{place}" y="{HEIGHT - 14}" text-anchor="{anchor}">{escape(at)}</text>')
    parts.append("</svg>\n")
    return "\n".join(parts)


def _duration(seconds: int) -> str:
    for unit, name in ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second")):
        if seconds % unit == 0:
            number = seconds // unit
            return name if number == 1 else f"{number} {name}s"
    return f"{seconds} seconds"
