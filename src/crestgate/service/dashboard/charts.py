"""Charts as SVG, drawn on the server, so that the pages work without script.

Colours come from the style sheet by class, since the Content-Security-Policy allows no inline style. Numbers are the
only thing that enters the markup.
"""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

__all__ = ["area_chart", "bar", "nice_top", "sparkline"]

WIDTH, HEIGHT = 640.0, 180.0
LEFT, BOTTOM, TOP = 44.0, 22.0, 8.0
SPARK_WIDTH, SPARK_HEIGHT = 120.0, 24.0


def area_chart(
    series: Sequence[tuple[str, Sequence[float]]],
    labels: Sequence[str],
    title: str,
    unit: str = "per minute",
    width: float = WIDTH,
) -> Markup:
    """Several lines over time; each has the class of its name. `labels` are spread along the time axis."""
    top = nice_top(max((max(values, default=0) for _, values in series), default=0))
    parts = [
        Markup('<svg class="chart" viewBox="0 0 {:g} {:g}" role="img" aria-label="{}">').format(width, HEIGHT, title)
    ]
    for step in range(3):
        y = TOP + (HEIGHT - TOP - BOTTOM) * step / 2
        parts.append(
            Markup(
                '<line class="grid" x1="{:g}" y1="{:.1f}" x2="{:g}" y2="{:.1f}"/>'
                '<text class="axis" x="{:g}" y="{:.1f}" text-anchor="end">{}</text>'
            ).format(LEFT, y, width, y, LEFT - 6, y + 4, _tick(top * (2 - step) / 2))
        )
    for name, values in series:
        points = _points(values, top, width)
        if points:
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            floor = HEIGHT - BOTTOM
            area = f"{points[0][0]:.1f},{floor:g} {line} {points[-1][0]:.1f},{floor:g}"
            parts.append(Markup('<polygon class="area {}" points="{}"/>').format(name, area))
            parts.append(Markup('<polyline class="line {}" points="{}"/>').format(name, line))
    for index, label in enumerate(labels):
        x = LEFT + (width - LEFT) * index / max(len(labels) - 1, 1)
        anchor = "start" if index == 0 else "end" if index == len(labels) - 1 else "middle"
        parts.append(
            Markup('<text class="axis" x="{:.1f}" y="{:g}" text-anchor="{}">{}</text>').format(
                x, HEIGHT - 5, anchor, label
            )
        )
    parts.append(Markup("<desc>{}</desc></svg>").format(f"{title}, {unit}"))
    return Markup("").join(parts)


def sparkline(allowed: Sequence[float], denied: Sequence[float]) -> Markup:
    """A small chart of one rule: bars of what was allowed, and on top of them of what was denied."""
    top = max((a + d for a, d in zip(allowed, denied, strict=True)), default=0) or 1
    width = SPARK_WIDTH / max(len(allowed), 1)
    parts = [Markup('<svg class="spark" viewBox="0 0 {:g} {:g}" aria-hidden="true">').format(SPARK_WIDTH, SPARK_HEIGHT)]
    for index, (yes, no) in enumerate(zip(allowed, denied, strict=True)):
        base = SPARK_HEIGHT
        for name, value in (("allowed", yes), ("denied", no)):
            if value:
                height = max(value / top * SPARK_HEIGHT, 1)
                base -= height
                parts.append(
                    Markup('<rect class="{}" x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}"/>').format(
                        name, index * width, max(base, 0), max(width - 0.4, 0.4), height
                    )
                )
    parts.append(Markup("</svg>"))
    return Markup("").join(parts)


def bar(used: float, limit: float, state: str) -> Markup:
    """How much of a limit is used."""
    share = 100.0 if limit <= 0 else min(max(used / limit * 100, 0), 100)
    return Markup(
        '<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="track" width="100" height="8"/><rect class="{}" width="{:.1f}" height="8"/></svg>'
    ).format(state, share)


def nice_top(value: float) -> float:
    """The end of an axis: 1, 2 or 5 times a power of ten, at least 2.

    >>> [nice_top(value) for value in (0, 3, 12, 70, 480)]
    [2.0, 5.0, 20.0, 100.0, 500.0]
    """
    top = 1.0
    while True:
        for factor in (2.0, 5.0, 10.0):
            if value <= top * factor:
                return top * factor
        top *= 10


def _points(values: Sequence[float], top: float, width: float) -> list[tuple[float, float]]:
    step = (width - LEFT) / max(len(values) - 1, 1)
    height = HEIGHT - TOP - BOTTOM
    return [(LEFT + index * step, TOP + height * (1 - value / top)) for index, value in enumerate(values)]


def _tick(value: float) -> str:
    if value >= 1_000_000:
        return f"{value / 1_000_000:g} M"
    return f"{value / 1_000:g} k" if value >= 1_000 else f"{value:g}"
