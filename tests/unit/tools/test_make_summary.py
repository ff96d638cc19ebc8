"""The end of `make test`, from logs as pytest writes them."""

from __future__ import annotations

from tools.summary import Result, read_log, summary

SOURCE = """\
CRESTGATE_EXPECT="pure Python" PYTHONPATH=src .venv/bin/python -m pytest -q tests
........F.......................E............s.......................... [100%]
=================================== FAILURES ===================================
_________________________________ test_kills[] _________________________________
FAILED not a name: this is what a test printed
9 passed in 1.00s, says a test, too
=================================== figures ====================================
test_kills[shared]: 200 kills, 29,740 chains
test_threads[8-1]: 10 admitted of 20,000
============================= slowest 10 durations =============================
39.13s setup    tests/unit/test_a.py::test_slow
=========================== short test summary info ============================
SKIPPED [1] tests/unit/test_package.py:95: needs the compiled build
FAILED tests/unit/test_a.py::test_kills[10 per minute - gcra] - AssertionError: assert [1] == [2] - no
ERROR tests/unit/test_b.py::test_plain - RuntimeError: [Errno 2]
2 failed, 8864 passed, 1 skipped, 2 warnings, 1 error in 598.27s (0:09:58)
make[1]: *** [Makefile:87: source] Error 1
"""
DOCTEST = "........ [100%]\n90 passed, 1 warning in 4.86s\n"
CHECK = "ruff check .\ntools/a.py:1:1: F401 unused import\nmake[1]: *** [Makefile:49: check] Error 1\n"


def result(part: str, exit_code: int | None, log: str, **more: object) -> Result:
    return Result(part, exit_code, 61.0, read_log(log), **more)  # type: ignore[arg-type]


def test_reads_counts_figures_and_names_of_failures() -> None:
    outcome = read_log(SOURCE)
    assert outcome.has_totals
    assert dict(outcome.counts) == {"failed": 2, "passed": 8864, "skipped": 1, "warnings": 2, "error": 1}
    assert outcome.figures == [
        "test_kills[shared]: 200 kills, 29,740 chains",
        "test_threads[8-1]: 10 admitted of 20,000",
    ]
    assert outcome.failures == [
        ("tests/unit/test_a.py::test_kills[10 per minute - gcra]", "AssertionError: assert [1] == [2] - no"),
        ("tests/unit/test_b.py::test_plain", "RuntimeError: [Errno 2]"),
    ]


def test_summary_of_a_failed_run_names_what_failed_and_how_to_run_it_again() -> None:
    results = [result("check", 2, CHECK), result("doctest", 0, DOCTEST), result("source", 2, SOURCE)]
    lines = list(summary(results, 1500, ".venv/logs"))
    text = "\n".join(lines)
    assert "  source    test_kills[shared]: 200 kills, 29,740 chains" in lines
    assert (
        "PYTHONPATH=src .venv/bin/python -m pytest -q 'tests/unit/test_a.py::test_kills[10 per minute - gcra]'" in text
    )
    assert "make source LAST=--last-failed" in text
    assert "            | tools/a.py:1:1: F401 unused import" in lines
    assert "            make check    (log: .venv/logs/check)" in lines
    assert lines[-2] == "8954 passed, 4 failed, 1 skipped"  # two tests, an error, and `check`
    assert lines[-1] == "make test FAILED after 25:00: check, source."


def test_summary_of_a_passed_run() -> None:
    lines = list(summary([result("check", 0, ""), result("doctest", 0, DOCTEST)], 75, ".venv/logs"))
    assert "Failed" not in lines
    assert lines[-2:] == ["90 passed, 0 failed", "make test passed in 1:15."]


def test_part_that_could_not_run_fails_unless_that_was_asked_for() -> None:
    missing = [result("doctest", 0, DOCTEST), result("compiled", None, "", reason="no C compiler")]
    lines = list(summary(missing, 75, ".venv/logs"))
    assert lines[-2:] == ["90 passed, 1 failed", "make test FAILED after 1:15: compiled."]
    asked = [result("doctest", 0, DOCTEST), result("compiled", None, "", reason="COMPILED=no", excused=True)]
    lines = list(summary(asked, 75, ".venv/logs"))
    assert lines[-2:] == ["90 passed, 0 failed", "make test passed in 1:15. compiled was skipped: COMPILED=no."]
