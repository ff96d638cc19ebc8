"""Runs the test-suite of the `limits` library on `crestgate.compat.limits`.

    python tests/compat/limits_suite.py [--folder FOLDER] [--version 5.8.0] [--reference] [pytest options]

The suite comes from the source distribution on PyPI, is unpacked into FOLDER beside an environment with what it needs,
and is not changed. Its tests for memory and Redis are run: one server, a Unix socket, Sentinel, clusters, with and
without passwords and TLS; those for memcached, MongoDB and Valkey are not. `--reference` runs the same tests on `limits`
itself. A failure that is not listed below is an error.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from compat.limits_servers import suite_servers  # noqa: E402 - after its folder is on the path

NEEDED = (
    *("pytest<10", "pytest-asyncio", "pytest-lazy-fixtures", "pytest-cov", "pytest-mock", "pytest-benchmark", "flaky"),
    *("redis[hiredis]", "valkey", "coredis", "pymemcache", "pymongo", "packaging"),  # conftest.py imports most of them
)
PATHS = (
    *("tests/test_limits.py", "tests/test_limit_granularities.py", "tests/test_ratelimit_parser.py"),
    *("tests/test_storage.py", "tests/test_storage_schema.py", "tests/test_strategy.py", "tests/test_utils.py"),
    *("tests/aio", "tests/storage", "tests/integration"),
)
LEFT_OUT = "not memcached and not mongodb and not valkey and not valkey_cluster and not benchmark"
WANTED = 0.95

DIFFERENCES = {
    r"test_custom_prefix": "reads the bytes of limits' own keys in Redis; Crestgate's layout is another one",
    r"Fixed\w*::test_fixed_window\[": "expects a window to start at the first hit; it is aligned to the epoch, so the "
    "test fails if it begins in an odd second",
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the test-suite of limits on crestgate.compat.limits.")
    parser.add_argument("--folder", type=Path, default=ROOT / ".venv" / "limits-suite")
    parser.add_argument("--version", help="of limits; the newest unless said")
    parser.add_argument("--reference", action="store_true", help="test limits itself")
    arguments, options = parser.parse_known_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    python = environment(arguments.folder)
    suite = unpack(arguments.folder, python, arguments.version)
    if arguments.reference:
        run(python, "-m", "pip", "install", "-q", str(suite))
    report = arguments.folder / "report.xml"
    report.unlink(missing_ok=True)
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests" / "compat")])
    mode = "reference" if arguments.reference else "shim"
    environ = {**os.environ, "PYTHONPATH": paths, "CRESTGATE_LIMITS_SUITE": mode}
    # Without coverage and Docker. Newer versions of pytest-asyncio want a setting that the suite does not have.
    settings = ("-o", "addopts=", "-o", "asyncio_default_fixture_loop_scope=function")
    command = [python, "-m", "pytest", "-p", "limits_plugin", *settings, "-q", "-m", LEFT_OUT, *PATHS]
    with suite_servers():
        subprocess.run([*command, f"--junitxml={report}", *options], cwd=suite, env=environ, check=False)
    return summarise(suite.name, report)


def environment(folder: Path) -> str:
    """The Python of an environment with what the suite needs."""
    python = folder / "venv" / "bin" / "python"
    if not python.exists():
        run(sys.executable, "-m", "venv", str(folder / "venv"))
    run(str(python), "-m", "pip", "install", "-q", *NEEDED)
    return str(python)


def unpack(folder: Path, python: str, version: str | None) -> Path:
    """The folder of the suite, downloaded by its name."""
    wanted = "limits" if version is None else f"limits=={version}"
    run(python, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", wanted, "-d", str(folder))
    archive = max(folder.glob("limits-*.tar.gz"), key=lambda path: path.stat().st_mtime)
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


def summarise(name: str, report: Path) -> int:
    """Print the result, and each failure with its reason; 1 if there is one without, or there are too many."""
    cases = list(ElementTree.parse(report).iter("testcase"))
    skipped = [case for case in cases if case.find("skipped") is not None]
    failed = [title(case) for case in cases if case.find("failure") is not None or case.find("error") is not None]
    counted = len(cases) - len(skipped)
    passed = counted - len(failed)
    print(f"\n{name}: {passed} of {counted} passed ({passed / max(counted, 1):.1%}), {len(skipped)} skipped by the suite")
    unexplained = 0
    for test in failed:
        reason = next((why for pattern, why in DIFFERENCES.items() if re.search(pattern, test)), None)
        unexplained += reason is None
        print(f"  {test}: {reason or 'NOT LISTED'}")
    return 1 if unexplained or passed < WANTED * counted else 0


def title(case: ElementTree.Element) -> str:
    return f"{case.get('classname')}::{case.get('name')}"


def run(*command: str) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    sys.exit(main())
