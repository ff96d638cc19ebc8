"""One run over a log: read, reorder, replay, report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from crestgate.errors import ConfigError
from crestgate.rules.ruleset import RuleSet
from crestgate.simulate.bad_lines import BadLines
from crestgate.simulate.formats import LogReader, open_reader
from crestgate.simulate.lines import LogLines
from crestgate.simulate.logged_request import LoggedRequest
from crestgate.simulate.reorder import Reorder
from crestgate.simulate.replay import DEFAULT_MAX_KEYS, Replay
from crestgate.simulate.report import DEFAULT_TOP, build_report

__all__ = ["simulate_log"]


def simulate_log(
    log: str,
    rules: RuleSet,
    against: RuleSet | None = None,
    *,
    log_format: str = "auto",
    fields: Sequence[str] = (),
    max_keys: int = DEFAULT_MAX_KEYS,
    top: int = DEFAULT_TOP,
    on_read: Callable[[int], None] | None = None,
    on_replay: Callable[[Sequence[LoggedRequest]], None] | None = None,
) -> dict[str, Any]:
    """The report on a log. `on_read` is given the bytes that were read so far, and `on_replay` the requests after each
    step of the replay."""
    bad = BadLines()
    lines = LogLines(log, bad, on_read)
    try:
        replay = Replay(rules, against, bad, max_keys)
        reorder = Reorder()
        reader: LogReader | None = None

        def run(requests: list[LoggedRequest]) -> None:
            replay.run(requests)
            if on_replay is not None:
                on_replay(requests)

        for first, batch in lines.batches():
            if reader is None:
                reader = open_reader(log_format, fields, batch, bad)
            run(reorder.add(reader.read(first, batch)))
        run(reorder.flush())
    finally:
        lines.close()
    if not replay.requests and bad.first is not None:
        raise ConfigError(
            f"no line of {log!r} can be used: line {bad.first[0]}: {bad.first[1]}; "
            "name its format with --format, and the fields of JSON lines with --field"
        )
    name = "" if reader is None else reader.name
    report = build_report(replay, top)
    return {"format": name, "lines": lines.count, "bad_lines": bad.to_data(), **report}
