"""Runs the test-suite of the `limits` library on `crestgate.compat.limits`.

    python tests/compat/limits_suite.py [--folder FOLDER] [--version 5.8.0] [pytest options]

The suite comes from the source distribution on PyPI, is unpacked into FOLDER beside an environment with what it needs,
and is not changed. Its tests for memory and Redis are run: one server, a Unix socket, Sentinel, clusters, with and
without passwords and TLS; those for memcached, MongoDB and Valkey are not. A failure that is not listed below is an
error.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ET
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from compat.limits_servers import suite_servers  # noqa: E402 - after its folder is on the path

NEEDED = (
    *("pytest<10", "pytest-asyncio", "pytest-lazy-fixtures", "pytest-cov", "pytest-mock", "pytest-benchmark", "flaky"),
    *("redis[hiredis]", "valkey", "pymemcache", "pymongo", "packaging"),  # conftest.py imports most of them
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
    arguments, options = parser.parse_known_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    python = environment(arguments.folder)
    suite = unpack(arguments.folder, python, arguments.version)
    report = arguments.folder / "report.xml"
    report.unlink(missing_ok=True)
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests" / "compat")])
    environ = {**os.environ, "PYTHONPATH": paths}
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
    results: dict[str, set[str]] = {}  # a test that the suite marks as flaky may be there twice
    for case in ET.parse(report).iter("testcase"):
        title = f"{case.get('classname')}::{case.get('name')}"
        results.setdefault(title, set()).update(part.tag for part in case)
    skipped = [title for title, parts in results.items() if "skipped" in parts]
    failed = [title for title, parts in results.items() if parts & {"failure", "error"}]
    counted = len(results) - len(skipped)
    passed = counted - len(failed)
    share = passed / max(counted, 1)
    print(f"\n{name}: {passed} of {counted} passed ({share:.1%}), {len(skipped)} skipped by the suite")
    unexplained = 0
    for test in failed:
        reason = next((why for pattern, why in DIFFERENCES.items() if re.search(pattern, test)), None)
        unexplained += reason is None
        print(f"  {test}: {reason or 'NOT LISTED'}")
    return 1 if unexplained or share < WANTED else 0


def run(*command: str) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    sys.exit(main())
