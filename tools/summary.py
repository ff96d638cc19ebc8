"""Reads the logs of `make test` and says at the end what failed, how to run it again, and what was measured.

The logs are read, and not pytest's objects, because a part that was killed leaves nothing but its log.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tools.progress import minutes

__all__ = ["Outcome", "Result", "read_log", "summary"]

RULE = re.compile(r"^=+ (?P<title>.+?) =+$")
TOTALS = re.compile(r"^(?:\d+ [a-z]+(?:, )?)+ in [\d.]+s(?: \(.*\))?$")
FAILURE = re.compile(r"^(?:FAILED|ERROR) (?P<name>[^\[]*?(?:\[.*?\])?)(?: - (?P<reason>.*))?$")
COMMANDS = {
    "doctest": "DJANGO_SETTINGS_MODULE=django.conf.global_settings PYTHONPATH=src "
    "{python} -m pytest -q --doctest-modules {name}",
    "source": "PYTHONPATH=src {python} -m pytest -q {name}",
    "compiled": "{python} -m pytest -q {name}",
}
"""How to run one failed test again, in the parts that have tests."""

PYTHON = ".venv/bin/python"
TARGETS = {"compile": "compile-for-tests"}
"""The target of the Makefile, where it is not called as the part."""

TAIL_LINES = 5


@dataclass
class Outcome:
    """What the log of a part tells."""

    counts: Counter[str] = field(default_factory=Counter)  # as pytest counts: passed, failed, errors, skipped …
    has_totals: bool = False  # pytest came to its end
    failures: list[tuple[str, str]] = field(default_factory=list)  # the test, and the reason in a few words
    figures: list[str] = field(default_factory=list)
    tail: list[str] = field(default_factory=list)  # the last lines, for parts that name no test


@dataclass
class Result:
    """How a part ended."""

    part: str
    exit_code: int | None  # None: it was not run
    seconds: float
    outcome: Outcome = field(default_factory=Outcome)
    reason: str = ""  # why it was not run, or how it ended, if the log does not tell
    excused: bool = False  # it was not run because that was asked for

    @property
    def failed(self) -> bool:
        return not self.excused and self.exit_code != 0

    @property
    def failed_count(self) -> int:
        """Failed tests; a part that failed without naming one counts as one."""
        tests = self.outcome.counts["failed"] + self.outcome.counts["error"] + self.outcome.counts["errors"]
        return tests or int(self.failed)

    @property
    def verdict(self) -> str:
        if self.exit_code is None:
            return "skipped" if self.excused else "NOT RUN"
        return "FAILED" if self.failed else "passed"


def read_log(text: str) -> Outcome:
    """Read what pytest wrote, and whatever was written around it."""
    outcome = Outcome(tail=[line for line in text.splitlines() if line.strip()][-TAIL_LINES:])
    section = ""
    for line in text.splitlines():
        if rule := RULE.match(line):
            section = rule["title"]
        elif TOTALS.match(line):
            outcome.has_totals = True
            for count, name in re.findall(r"(\d+) ([a-z]+)", line.partition(" in ")[0]):
                outcome.counts[name] += int(count)
            section = ""
        elif section == "figures" and line:
            outcome.figures.append(line)
        elif section == "short test summary info" and (failure := FAILURE.match(line)):
            outcome.failures.append((failure["name"], failure["reason"] or ""))
    return outcome


def totals(results: Sequence[Result]) -> str:
    """pytest's kind of line, over all parts."""
    passed = sum(result.outcome.counts["passed"] for result in results)
    failed = sum(result.failed_count for result in results)
    skipped = sum(result.outcome.counts["skipped"] for result in results)
    return f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else "")


def summary(results: Sequence[Result], seconds: float, logs: str) -> Iterator[str]:
    """The lines to end with. The last one says whether everything passed."""
    if any(result.outcome.figures for result in results):
        yield from ("", "Figures")
        for result in results:
            yield from (f"  {result.part:9} {figure}" for figure in result.outcome.figures)
    yield from ("", "Summary")
    for result in results:
        counts = ", ".join(
            f"{count} {name}" for name, count in result.outcome.counts.items() if not name.startswith("warn")
        )
        yield f"  {result.part:9} {result.verdict:7} {minutes(result.seconds):>6}  {counts or result.reason}".rstrip()
    failed = [result for result in results if result.failed]
    if failed:
        yield from ("", "Failed")
        for result in failed:
            yield from _failures(result, logs)
    yield from ("", totals(results))
    skipped = [f"{result.part} was skipped: {result.reason}" for result in results if result.excused]
    if failed:
        names = ", ".join(result.part for result in failed)
        yield f"make test FAILED after {minutes(seconds)}: {names}."
    else:
        yield f"make test passed in {minutes(seconds)}." + "".join(f" {text}." for text in skipped)


def _failures(result: Result, logs: str) -> Iterator[str]:
    part = result.part
    again = COMMANDS.get(part)
    for name, reason in result.outcome.failures if again else ():
        assert again is not None
        yield f"  {part:9} {name}"
        if reason:
            yield f"            {reason}"
        yield f"            {again.format(python=PYTHON, name=shlex.quote(name))}"
    if result.outcome.failures and again:
        yield f"  {part:9} all of these again: make {part} LAST=--last-failed"
    else:
        yield f"  {part:9} {result.reason or f'exit code {result.exit_code}'}"
        if result.exit_code is not None:
            yield from (f"            | {line}" for line in result.outcome.tail)
            yield f"            make {TARGETS.get(part, part)}    (log: {logs}/{part})"
