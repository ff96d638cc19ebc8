"""MariaDB for the tests: one server, or a primary with a replica that can be promoted.

To make a data directory takes seconds, so it is made once and copied for each server. The copies are alike to the
last transaction, which is what lets a replica follow from the beginning.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from shutil import copytree

from servers.group import ServerGroup
from servers.machine import PATIENCE, ServerError, find, run, template, until
from servers.process import ServerProcess

__all__ = ["MariaDB", "MariaDBPair"]

_SERVER, _CLIENT = "mariadb-server", "mariadb-client"
_SMALL = ["--no-defaults", "--innodb-log-file-size=16M", "--innodb-use-native-aio=0", "--performance-schema=OFF"]
_AS_WE_ARE = ["--user=root"] if os.geteuid() == 0 else []
_SETUP = """\
FLUSH PRIVILEGES;
DELETE FROM mysql.global_priv WHERE User = '' OR User = 'root' AND Host <> 'localhost';
FLUSH PRIVILEGES;
CREATE DATABASE crestgate;
CREATE USER crestgate@'%' IDENTIFIED BY 'secret';
GRANT ALL ON crestgate.* TO crestgate@'%';
CREATE USER replica@'%' IDENTIFIED BY 'secret';
GRANT REPLICATION SLAVE ON *.* TO replica@'%';
"""


class MariaDB(ServerProcess):
    """One MariaDB with a database `crestgate`, a user of that name for it, and a binary log.

    `flush_log` is `innodb_flush_log_at_trx_commit`: with 1, what is committed survives the machine. `settings` are
    further settings, such as `{"max_connections": "5"}`.
    """

    kind = "mariadb"

    def __init__(
        self, *, flush_log: int = 1, settings: Mapping[str, str] | None = None, port: int | None = None
    ) -> None:
        super().__init__(port)
        self.socket = self.folder / "mariadb.sock"
        self.settings = {
            "datadir": str(self.folder / "data"),
            "tmpdir": str(self.folder),
            "socket": str(self.socket),
            "pid-file": str(self.folder / "pid"),
            "bind-address": "127.0.0.1",
            "port": str(self.port),
            "server-id": str(self.port),
            "log-bin": "binlog",
            "skip-name-resolve": "ON",
            "innodb-flush-log-at-trx-commit": str(flush_log),
            "innodb-buffer-pool-size": "64M",
            "key-buffer-size": "1M",
            "aria-pagecache-buffer-size": "8M",
        }
        self.settings |= {name.replace("_", "-"): value for name, value in (settings or {}).items()}

    @property
    def url(self) -> str:
        return f"mysql://crestgate:secret@127.0.0.1:{self.port}/crestgate"

    def launch(self) -> None:
        if not (self.folder / "data").exists():
            copytree(_data(), self.folder / "data")
        super().launch()

    def command(self) -> list[str]:
        settings = [f"--{name}={value}" for name, value in self.settings.items()]
        return [find("mariadbd", _SERVER), *_SMALL, *_AS_WE_ARE, *settings]

    def ready(self) -> bool:
        return self.sql("SELECT 1") == "1"

    def sql(self, statements: str, patience: float = PATIENCE) -> str:
        """The result of statements as administrator, a line per row and a tab between columns."""
        return self._ask(statements, patience, "--batch", "--skip-column-names")

    def row(self, statement: str) -> dict[str, str]:
        """The first row of a result as administrator, by column name; empty if there is none."""
        lines = self._ask(statement, PATIENCE, "--vertical").splitlines()
        return {name.strip(): value for name, found, value in (line.partition(": ") for line in lines) if found}

    def _ask(self, statements: str, patience: float, *form: str) -> str:
        who = ["--no-defaults", f"--socket={self.socket}", "--user=root", "--database=crestgate"]
        return run([find("mariadb", _CLIENT), *who, *form], statements, patience=patience)


class MariaDBPair(ServerGroup):
    """A primary, and a replica that follows it and takes no writes.

    With `semi_sync`, a commit on the primary returns once the replica has it, or after `semi_sync_timeout` seconds
    without. `primary` and `replica` stay what they were at the start, whoever is promoted.
    """

    def __init__(
        self, *, semi_sync: bool = False, semi_sync_timeout: float = 10, settings: Mapping[str, str] | None = None
    ) -> None:
        on_primary, on_replica = {"read-only": "OFF"}, {"read-only": "ON"}
        if semi_sync:
            milliseconds = str(int(semi_sync_timeout * 1000))
            on_primary |= {"rpl-semi-sync-master-enabled": "ON", "rpl-semi-sync-master-timeout": milliseconds}
            on_primary |= {"rpl-semi-sync-master-wait-point": "AFTER_SYNC"}
            on_replica |= {"rpl-semi-sync-slave-enabled": "ON"}
        self.semi_sync = semi_sync
        self.primary = MariaDB(settings={**on_primary, **(settings or {})})
        self.replica = MariaDB(settings={**on_replica, **(settings or {})})
        self._promoted = False

    @property
    def members(self) -> list[MariaDB]:
        return [self.primary, self.replica]

    @property
    def url(self) -> str:
        return self.primary.url

    def assemble(self) -> None:
        self.bring_up(self.members)
        if self._promoted:
            return
        self.replica.sql(
            "STOP SLAVE; CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_USER='replica', MASTER_PASSWORD='secret', "
            f"MASTER_PORT={self.primary.port}, MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1; START SLAVE"
        )
        until("the replica follows", lambda: self.status()["Slave_IO_Running"] == "Yes")
        if self.semi_sync:
            counted = "SHOW STATUS LIKE 'Rpl_semi_sync_master_clients'"
            until("the primary waits for its replica", lambda: self.primary.sql(counted).split()[-1:] == ["1"])

    def status(self) -> dict[str, str]:
        """The replication status, as in SHOW SLAVE STATUS; empty once it is promoted."""
        return self.replica.row("SHOW SLAVE STATUS")

    def catch_up(self) -> None:
        """Wait until the replica has all that the primary has."""
        position = self.primary.sql("SELECT @@gtid_binlog_pos")
        answer = self.replica.sql(f"SELECT MASTER_GTID_WAIT('{position}', {PATIENCE})")
        if answer != "0":
            raise ServerError(f"the replica did not catch up: {self.status()}")

    def promote(self) -> None:
        """Make the replica a primary that accepts writes, with all transactions that it received."""
        self.replica.sql("STOP SLAVE IO_THREAD")

        def applied() -> bool:
            now = self.status()
            if now["Slave_SQL_Running"] != "Yes":
                raise ServerError(f"the replica stopped: {now['Last_SQL_Error']}")
            read, done = ("Master_Log_File", "Read_Master_Log_Pos"), ("Relay_Master_Log_File", "Exec_Master_Log_Pos")
            return [now[name] for name in read] == [now[name] for name in done]

        until("the replica has done what it received", applied)
        self.replica.sql("STOP SLAVE; RESET SLAVE ALL; SET GLOBAL read_only = OFF")
        self.replica.settings["read-only"] = "OFF"
        self._promoted = True


@cache
def _data() -> Path:
    """A data directory with our database and users, which no server runs on."""
    return template("mariadb", _make_data) / "data"


def _make_data(folder: Path) -> None:
    """Make it in this folder.

    With a folder of its own for temporary tables: a server that starts removes all that it finds there, and other test
    processes make their data at the same time.
    """
    where = [f"--datadir={folder / 'data'}", f"--tmpdir={folder}", *_AS_WE_ARE]
    trusting = ["--auth-root-authentication-method=normal", "--skip-test-db"]
    run([find("mariadb-install-db", _SERVER), *_SMALL, *where, *trusting])
    run([find("mariadbd", _SERVER), *_SMALL, *where, "--bootstrap"], _SETUP)
