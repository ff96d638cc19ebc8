"""macOS, Windows and PyPy: everything imports, what works there works, and what needs Linux says so in one sentence.

The systems are simulated: see simulation/sitecustomize.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from crestgate.config.settings import load_settings
from integration.service.service_process import Service
from integration.systems.other_system import environment_of, run_on
from servers.process import GivenServer
from servers.redis import RedisServer

SYSTEMS = ["win32", "darwin", "darwin-ofd", "pypy"]
NOT_LINUX = SYSTEMS[:3]
SENTENCE = "shared:// needs Linux (open file description locks); use memory://, sqlite:///file or redis:// here"


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_module_imports(system: str, tmp_path: Path) -> None:
    lines = run_on(
        system,
        """
        import importlib, pkgutil, sys
        import crestgate
        skipped = ("crestgate.__main__", "crestgate.stores.sql.migrations.env")  # they run when they are imported
        failed, count = [], 0
        for module in pkgutil.walk_packages(crestgate.__path__, "crestgate."):
            if module.name in skipped:
                continue
            try:
                importlib.import_module(module.name)
                count += 1
            except Exception as error:
                failed.append(f"{module.name}: {type(error).__name__}: {error}")
        print(sys.platform, count > 250, failed)
        """,
        tmp_path,
    )
    assert lines == [f"{'linux' if system == 'pypy' else system.partition('-')[0]} True []"]


@pytest.mark.parametrize("system", SYSTEMS)
def test_memory_and_sqlite_decide(system: str, tmp_path: Path) -> None:
    lines = run_on(
        system,
        """
        import asyncio
        from crestgate import AsyncLimiter, Limiter

        for url in ("memory://", "sqlite:///counters.db?timeout_ms=30000"):
            with Limiter(url) as limiter:
                print(limiter.title, [limiter.check("user:42", "2/hour").allowed for _ in range(3)])

        async def main():
            async with AsyncLimiter("sqlite:///counters.db?timeout_ms=30000") as limiter:
                print((await limiter.check("user:42", "2/hour")).allowed)

        asyncio.run(main())
        """,
        tmp_path,
    )
    assert lines[0] == "the memory of this process [True, True, False]"
    assert lines[1].endswith("counters.db [True, True, False]")
    assert lines[2] == "False"


@pytest.mark.parametrize("system", NOT_LINUX)
def test_shared_memory_says_what_it_needs(system: str, tmp_path: Path) -> None:
    lines = run_on(
        system,
        """
        from crestgate import ConfigError, Limiter
        from crestgate.stores.shared import SharedStore

        for open_one in (
            lambda: Limiter("shared://name"),
            lambda: Limiter("shared:///tmp/counters?max_keys=10"),
            lambda: Limiter(["memory://", "shared://name"]),
            lambda: Limiter.from_config(environ={"CRESTGATE_STORE": "shared://name"}),
            lambda: SharedStore("counters"),
        ):
            try:
                open_one()
            except ConfigError as error:
                print(error)
        """,
        tmp_path,
    )
    assert lines == [SENTENCE, SENTENCE, SENTENCE, f"CRESTGATE_STORE: store: {SENTENCE}", SENTENCE]
    assert not (tmp_path / "counters").exists()


def test_locks_in_files_work_where_files_can_be_locked(tmp_path: Path) -> None:
    program = """
        from crestgate import ConfigError
        from crestgate.locks import open_locks

        try:
            with open_locks("file:///" + __import__("os").getcwd()[1:]) as locks, locks.hold("client:42") as lease:
                with locks.guarded(lease):
                    print("held", lease.version > 0)
        except ConfigError as error:
            print(error)
        """
    assert run_on("darwin", program, tmp_path) == ["held True"]
    assert run_on("win32", program, tmp_path) == [
        "file:// locks need flock, which this system does not have; use sqlite:///file or redis:// here"
    ]


def test_redis_works_without_poll_and_kernel_timeouts(redis_server: RedisServer | GivenServer, tmp_path: Path) -> None:
    lines = run_on(
        "win32",
        """
        import asyncio, sys, time
        from crestgate import AsyncLimiter, ConfigError, Limiter

        url = f"{sys.argv[1]}?prefix=win32&timeout_ms=30000"
        with Limiter(url) as limiter:
            limiter.reset("user:42", "2/hour")
            print([limiter.check("user:42", "2/hour").allowed for _ in range(3)])
            time.sleep(0.05)  # longer than a connection is assumed to be alive: it is looked at
            print(limiter.check("user:42", "2/hour").allowed)

        async def main():
            async with AsyncLimiter(url) as limiter:
                print((await limiter.check("user:42", "2/hour")).allowed)
                await asyncio.sleep(0.05)
                print((await limiter.check("user:43", "2/hour")).allowed)
                await limiter.reset("user:43", "2/hour")

        asyncio.run(main())
        try:
            Limiter("redis+unix:///tmp/redis.sock")
        except ConfigError as error:
            print(error)
        """,
        tmp_path,
        redis_server.url,
    )
    assert lines[:4] == ["[True, True, False]", "False", "False", "True"]
    assert lines[4].endswith("this system has no Unix sockets: write redis://host:6379/0")


def test_reload_by_signal_needs_one(tmp_path: Path) -> None:
    lines = run_on(
        "win32",
        """
        from crestgate import ConfigError, Limiter

        try:
            Limiter.from_config(environ={"CRESTGATE_STORE": "memory://"}, sighup=True)
        except ConfigError as error:
            print(error)
        """,
        tmp_path,
    )
    assert lines == ["sighup=True needs SIGHUP, which this system does not have: call reload() yourself"]


@pytest.mark.parametrize(("system", "workers"), [("darwin", 1), ("darwin-ofd", 2), ("win32", 1)])
def test_service_without_settings_counts_in_sqlite(system: str, workers: int, serve: Callable[..., Service]) -> None:
    environment = {**environment_of(system), "CRESTGATE_PLANS__GOLD": "2/day"}
    service = serve(environment=environment, arguments=("--workers", str(workers)))
    banner = next(line for line in service.output.splitlines() if line.startswith("  counters"))
    assert banner.endswith("counters.db (shared memory needs Linux)")
    assert (service.folder / ".crestgate" / "counters.db").exists()
    reasons: list[str] = []
    with service.client(service.key) as client:
        while "limited" not in reasons and len(reasons) < 1000:  # on a busy machine some are answered by the policy
            reasons.append(client.post("/api/v1/check", json={"key": "user:42", "plans": ["gold"]}).json()["reason"])
        assert reasons[-1] == "limited"
        assert reasons.count("ok") <= 2
        assert client.get("/api/v1/rules").status_code == 200, "callers are counted too, in memory or in SQLite"
    assert service.stop() == 0
    assert "Traceback" not in service.logged


def test_several_workers_need_signals(tmp_path: Path) -> None:
    lines = run_on(
        "win32",
        """
        import sys
        from crestgate.cli import main

        sys.stderr = sys.stdout
        print(main(["serve", "--workers", "2"]))
        """,
        tmp_path,
    )
    assert lines == [
        "crestgate: server.workers: 2 workers share their sockets and are stopped by signals, which needs Linux or "
        "macOS; run one worker here",
        "2",
    ]


@pytest.mark.parametrize("system", NOT_LINUX)
def test_config_check_says_where_counters_will_be(system: str, tmp_path: Path) -> None:
    (tmp_path / "crestgate.yaml").write_text("")
    lines = run_on(system, "from crestgate.cli import main; print(main(['config', 'check']))", tmp_path)
    store = next(line for line in lines if line.startswith("  store"))
    assert store == f"  store           sqlite:///{tmp_path}/.crestgate/counters.db (shared memory needs Linux)"
    assert lines[-1] == "0"


def test_commands_use_the_same_counters(tmp_path: Path) -> None:
    program = "from crestgate.cli import main; print(main(['check', 'user:42', '--limit', '1/hour', '--json']))"
    assert run_on("win32", program, tmp_path)[-1] == "0"
    assert run_on("win32", program, tmp_path)[-1] == "1"
    assert (tmp_path / ".crestgate" / "counters.db").exists()


def test_here_shared_memory_is_the_default(tmp_path: Path) -> None:
    """The counterpart: nothing of this changes what Linux does."""
    assert load_settings(None, {"CRESTGATE_STORE": "shared://name"}).store == "shared://name"
