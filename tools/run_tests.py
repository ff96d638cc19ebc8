"""`make test`: says what it will do, does it part by part, and ends with a summary.

    python -m tools.run_tests make .venv [--without-compiled]

The parts are targets of the Makefile; each can be run alone. The compiler works beside the first ones. Without a C
compiler everything is tested from the source, and the run fails at its end unless COMPILED=no said that this is meant.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import BinaryIO

from tools import system_packages
from tools.environment import SIZES, TESTS, is_current, missing_installer, prepare, requirements
from tools.progress import minutes
from tools.summary import Outcome, Result, read_log, summary

PARTS = {
    "check": "lint, types, import contracts and generated files",
    "doctest": "the examples in docstrings",
    "source": "tests from the source, in plain Python",
    "compile": "the compiled build, which was started at the beginning",
    "compiled": "tests of the compiled build",
}
MINUTES = 25
"""How long all of it takes on two cores, to say so before."""

QUIET_SECONDS = 60.0
"""How long a part may say nothing until somebody else says that it still runs."""

TEST_PARTS = ("doctest", "source", "compiled")


class Runner:
    """Runs the parts, and keeps what became of each."""

    def __init__(self, make: str, venv: Path) -> None:
        self.make = make
        self.logs = venv / "logs"
        self.start = time.monotonic()
        self.results: list[Result] = []
        self.count = 0
        self.current = ("compile", self.start)  # the part that runs, and since when

    def elapsed(self) -> str:
        return minutes(time.monotonic() - self.start)

    def title(self, part: str, parts: int) -> None:
        self.count += 1
        self.current = (part, time.monotonic())
        print(f"\n##### {self.count}/{parts} {part}: {PARTS[part]} (at {self.elapsed()})", flush=True)

    def run(self, part: str, *variables: str) -> None:
        """Run a part and show its output."""
        command = [self.make, "--no-print-directory", part, *variables]
        with (
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process,
            (self.logs / part).open("wb") as log,
        ):
            assert process.stdout is not None
            try:
                self.show(part, process.stdout.fileno(), log)
            except BaseException:
                process.terminate()  # make stops what it has started
                raise
        self.end(part, process.returncode, time.monotonic() - self.current[1])

    def show(self, part: str, descriptor: int, log: BinaryIO) -> None:
        """Copy the output as it comes, with the time at the end of each line of pytest's progress."""
        while True:
            if not select.select([descriptor], [], [], QUIET_SECONDS)[0]:
                sys.stdout.write(f"\n… {part} still runs (at {self.elapsed()})\n")
                sys.stdout.flush()
                continue
            data = os.read(descriptor, 65536)
            if not data:
                return
            log.write(data)
            sys.stdout.buffer.write(data.replace(b"%]\n", f"%]  {self.elapsed()}\n".encode()))
            sys.stdout.buffer.flush()

    def end(self, part: str, exit_code: int, seconds: float) -> None:
        outcome = read_log((self.logs / part).read_text(errors="replace"))
        reason = f"killed by {signal.Signals(-exit_code).name}" if exit_code < 0 else ""
        if part in TEST_PARTS and not outcome.has_totals:
            exit_code, reason = exit_code or 1, reason or "ended without a result: it was killed, or could not start"
        self.results.append(Result(part, exit_code, seconds, outcome, reason))

    def skip(self, part: str, reason: str, excused: bool) -> None:
        self.results.append(Result(part, None, 0.0, Outcome(), reason, excused))


def announce(venv: Path, wanted: list[str], packages: list[str], compiling: list[str], without_compiled: bool) -> None:
    """Say what will be installed, what is missing, and how long it takes."""
    print(f"Everything, from the source and compiled: about {MINUTES} minutes on two cores. `make quick` takes two.")
    size = SIZES["test"]
    current = is_current(venv, wanted)
    print(f"  Python packages  {'are installed' if current else f'about {size} MB will be installed'} in {venv}")
    names = ", ".join(packages)
    if packages:
        verb = "will be installed with apt-get" if system_packages.can_install() else "are missing"
        print(f"  Debian packages  {verb}: {names}")
    else:
        print("  Debian packages  none are missing, and root is not needed")
    if without_compiled:
        print("  C compiler       not needed: COMPILED=no")
    elif compiling and not system_packages.can_install():
        print("  C compiler       missing: everything is tested from the source, and this run will fail at its end")
        print(f"                   {system_packages.sentence('What it needs is', compiling)}")
        print("                   `make test COMPILED=no` does without and passes")
    print(f"  logs             {venv}/logs", flush=True)


def install_packages(packages: list[str], servers: list[str]) -> None:
    """Install what is missing, or leave before minutes are spent."""
    if packages and system_packages.can_install():
        try:
            system_packages.install(packages)
        except subprocess.CalledProcessError as error:
            sys.exit(
                f"apt-get failed with exit code {error.returncode}; it says why above.\nmake test FAILED: not started."
            )
    elif servers:
        sys.exit(f"{system_packages.explain('servers', servers)}\nmake test FAILED: not started.")


def run_parts(runner: Runner, without_compiled: bool, compiling: list[str]) -> None:
    """The compiler beside the checks and the tests from the source, then the tests of what it made."""
    if without_compiled or compiling:
        reason = "COMPILED=no" if without_compiled else f"no C compiler; {system_packages.install_command(compiling)}"
        for part in ("check", "doctest"):
            runner.title(part, 3)
            runner.run(part)
        runner.title("source", 3)
        runner.run("source", "COMPILED_ONLY=")  # what would be tested once, compiled, is tested here
        runner.skip("compiled", reason, excused=without_compiled)
        return
    begun = time.monotonic()
    with (runner.logs / "compile").open("wb") as log:
        command = [runner.make, "--no-print-directory", "compile-for-tests"]
        compiler = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        for part in ("check", "doctest", "source"):
            runner.title(part, 5)
            runner.run(part)
        runner.title("compile", 5)
        while compiler.poll() is None:
            try:
                compiler.wait(QUIET_SECONDS)
            except subprocess.TimeoutExpired:
                print(f"… still compiling (at {runner.elapsed()})", flush=True)
    finally:
        if compiler.poll() is None:
            compiler.terminate()
            compiler.wait()
    print((runner.logs / "compile").read_text(errors="replace"), end="")
    runner.end("compile", compiler.returncode, time.monotonic() - begun)
    if compiler.returncode == 0:
        runner.title("compiled", 5)
        runner.run("compiled")
    else:
        runner.skip("compiled", "the compiled build could not be made", excused=False)


def main() -> None:
    parser = argparse.ArgumentParser(description="Run every part of the test suite.")
    parser.add_argument("make")
    parser.add_argument("venv", type=Path)
    parser.add_argument("--without-compiled", action="store_true", help="leave out the compiled build, and pass")
    arguments = parser.parse_args()
    venv, without_compiled = arguments.venv, arguments.without_compiled
    wanted = requirements("group", "test")
    servers = system_packages.missing_packages("servers")
    compiling = [] if without_compiled else system_packages.missing_for_compiling()
    announce(venv, wanted, [*servers, *compiling], compiling, without_compiled)
    if missing := missing_installer():
        sys.exit(f"{missing}\nmake test FAILED: not started.")
    install_packages([*servers, *compiling], servers)
    prepare(venv, wanted, TESTS, SIZES["test"])
    runner = Runner(arguments.make, venv)
    runner.logs.mkdir(exist_ok=True)
    for log in runner.logs.iterdir():
        log.unlink()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stopped by others is interrupted, too
    try:
        run_parts(runner, without_compiled, [] if without_compiled else system_packages.missing_for_compiling())
    except KeyboardInterrupt:
        part, begun = runner.current
        runner.results.append(Result(part, 130, time.monotonic() - begun, Outcome(), "interrupted"))
    for line in summary(runner.results, time.monotonic() - runner.start, str(runner.logs)):
        print(line, flush=True)
    sys.exit(int(any(result.failed for result in runner.results)))


if __name__ == "__main__":
    main()
