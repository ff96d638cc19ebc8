"""PostgreSQL for the tests. It runs as a user without rights, since it refuses to run as root.

It is a family of processes: a postmaster that starts one process for each connection, each in a session of its own.
To freeze or kill the server is to do so to all of them; the postmaster first, so that it starts no more.
"""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from glob import glob
from pathlib import Path
from shutil import copytree

from servers.group import ServerGroup
from servers.machine import PATIENCE, find, gone, run, stat, template, until
from servers.process import ServerProcess

__all__ = ["Postgres", "PostgresPair"]

_SERVER, _CLIENT = "postgresql", "postgresql-client"
_SETUP = "CREATE ROLE crestgate LOGIN PASSWORD 'secret'\nCREATE DATABASE crestgate OWNER crestgate\n"


class Postgres(ServerProcess):
    """One PostgreSQL with a database `crestgate` and a user of that name, who owns it.

    `settings` are further settings, such as `{"max_connections": "5"}`.
    """

    kind = "postgres"
    farewell = signal.SIGINT

    def __init__(self, *, settings: Mapping[str, str] | None = None, port: int | None = None) -> None:
        super().__init__(port)
        self.user = _unprivileged()
        self.settings = {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.folder),
            "shared_buffers": "32MB",
            **(settings or {}),
        }
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://crestgate:secret@127.0.0.1:{self.port}/crestgate"

    @property
    def pids(self) -> list[int]:
        return [self.pid, *_children(self.pid)] if self.running else []

    def launch(self) -> None:
        if not (self.folder / "data").exists():
            copytree(_data(), self.folder / "data")
            _give(self.folder)
        super().launch()

    def command(self) -> list[str]:
        settings = [word for name, value in self.settings.items() for word in ("-c", f"{name}={value}")]
        return [_find("postgres"), "-D", str(self.folder / "data"), *settings]

    def ready(self) -> bool:
        return self.sql("SELECT 1") == "1"

    def sql(self, statements: str, patience: float = PATIENCE) -> str:
        """The result of statements as administrator, a line per row and a tab between columns."""
        who = ["-h", str(self.folder), "-p", str(self.port), "-U", "postgres", "-d", "crestgate"]
        form = [
            "--no-psqlrc",
            "--quiet",
            "--no-align",
            "--tuples-only",
            "--field-separator=\t",
            "-v",
            "ON_ERROR_STOP=1",
        ]
        return run([_find("psql", _CLIENT), *who, *form], statements, patience=patience)

    def kill(self) -> None:
        if self.running:
            super().pause()
            family = self.pids
            for pid in family:
                _signal(pid, signal.SIGKILL)
            self._wait_for_exit()
            until("its processes are gone too", lambda: all(map(gone, family)))
            self._dismiss_guard()

    def pause(self) -> None:
        """If the tests were killed now, the connections' processes would stay stopped: a guard prevents that."""
        super().pause()
        for pid in self.pids:
            _signal(pid, signal.SIGSTOP)
        self._dismiss_guard()
        watch = ["sh", "-c", 'read word || kill -KILL "$@"', "guard", *map(str, self.pids)]
        self._guard = subprocess.Popen(watch, stdin=subprocess.PIPE, start_new_session=True)

    def resume(self) -> None:
        for pid in reversed(self.pids):
            _signal(pid, signal.SIGCONT)
        self._dismiss_guard()

    def _dismiss_guard(self) -> None:
        if self._guard is not None:
            self._guard.communicate(b"go\n")
            self._guard = None


class PostgresPair(ServerGroup):
    """A primary, and a hot standby that follows it. Both stay what they were at the start, whoever is promoted."""

    def __init__(self, *, settings: Mapping[str, str] | None = None) -> None:
        self.primary = Postgres(settings=settings)
        self.replica = Postgres(settings=settings)
        self._promoted = False

    @property
    def members(self) -> list[Postgres]:
        return [self.primary, self.replica]

    @property
    def url(self) -> str:
        return self.primary.url

    def assemble(self) -> None:
        self.bring_up([self.primary])
        data = self.replica.folder / "data"
        if not data.exists():
            _give(self.replica.folder)
            source = f"host={self.primary.folder} port={self.primary.port} user=postgres"
            command = [_find("pg_basebackup", _CLIENT), "-d", source, "-D", str(data), "-c", "fast", "-R"]
            run(command, user=_unprivileged())
        self.bring_up([self.replica])
        if not self._promoted:
            until("the standby follows", lambda: self.primary.sql("SELECT count(*) FROM pg_stat_replication") == "1")

    def catch_up(self) -> None:
        """Wait until the standby has all that the primary has."""
        position = self.primary.sql("SELECT pg_current_wal_lsn()")
        behind = f"SELECT pg_last_wal_replay_lsn() >= '{position}'"
        until("the standby has caught up", lambda: self.replica.sql(behind) == "t")

    def promote(self) -> None:
        """Make the standby a primary that accepts writes, with all transactions that it received."""
        self.replica.sql("SELECT pg_promote(true, 30)")
        until("the standby is promoted", lambda: self.replica.sql("SELECT pg_is_in_recovery()") == "f")
        self._promoted = True


@cache
def _data() -> Path:
    """A data directory with our database and user, which no server runs on."""
    return template("postgres", _make_data) / "data"


def _make_data(folder: Path) -> None:
    _give(folder)
    trusting = ["--username=postgres", "--auth-local=trust", "--auth-host=scram-sha-256"]
    where = ["-D", str(folder / "data")]
    run([_find("initdb"), *where, *trusting, "--encoding=UTF8", "--locale=C", "--no-sync"], user=_unprivileged())
    run([_find("postgres"), "--single", *where, "postgres"], _SETUP, user=_unprivileged())


def _find(program: str, package: str = _SERVER) -> str:
    return find(program, package, *sorted(glob("/usr/lib/postgresql/*/bin"), reverse=True))


@cache
def _unprivileged() -> tuple[int, int] | None:
    """The user and group that it runs as, if we are root: its own where there is one."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name: (entry.pw_uid, entry.pw_gid) for entry in pwd.getpwall()}
    return known.get("postgres") or known["nobody"]


def _give(folder: Path) -> None:
    """Give a folder and its contents to the user of the server."""
    if user := _unprivileged():
        for path in [folder, *folder.rglob("*")]:
            os.chown(path, *user)


def _children(pid: int) -> list[int]:
    """The child processes of `pid` that have not exited."""
    everyone = map(int, filter(str.isdigit, os.listdir("/proc")))
    return [child for child in everyone if stat(child)[1:2] == [str(pid)] and not gone(child)]


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
