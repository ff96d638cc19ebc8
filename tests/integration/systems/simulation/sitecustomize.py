"""Makes this process look like one on another system, as far as Python code can tell: CRESTGATE_TEST_SYSTEM names it.

Python imports this module when it starts (it is on PYTHONPATH), also in workers that a service spawns. What belongs to
Python and to other packages is imported first, because it is built for this system; then the name of the system, and
the modules and names that it does not have, are taken away from what is imported afterwards: Crestgate.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

STANDARD = """
    asyncio concurrent.futures getpass importlib.metadata logging.config mmap multiprocessing.connection selectors
    multiprocessing.popen_spawn_posix multiprocessing.resource_tracker multiprocessing.spawn shutil sqlite3 ssl
    subprocess tempfile urllib.request webbrowser zoneinfo
""".split()
OTHERS = """
    alembic.command alembic.runtime.migration anyio._backends._asyncio django.conf fastapi fastapi.openapi.docs flask
    fastapi.openapi.utils google.protobuf.descriptor_pb2 grpc.aio httptools httpx msgspec opentelemetry.trace
    prometheus_client psycopg.pq pymysql redis.asyncio requests rich.console rich.table sqlalchemy.dialects.mysql
    sqlalchemy.dialects.sqlite starlette.routing structlog typer.main uvicorn yaml
""".split()
MODULES = {
    "win32": ("fcntl", "grp", "pwd", "resource", "syslog", "termios", "uvloop"),
    "darwin": ("uvloop",),
    "darwin-ofd": ("uvloop",),
    "pypy": ("uvloop",),
}
NAMES: dict[str, dict[ModuleType, tuple[str, ...]]] = {
    "win32": {
        os: (
            *("O_CLOEXEC", "O_NOFOLLOW", "O_DIRECTORY", "fchmod", "fork", "forkpty", "getegid", "geteuid", "getgid"),
            *("getuid", "killpg", "posix_fallocate", "posix_spawn", "pread", "pwrite", "register_at_fork"),
            *("sched_getaffinity", "sched_yield", "set_blocking", "setsid", "uname"),
        ),
        signal: ("SIGHUP", "SIGKILL", "SIGQUIT", "SIGUSR1", "SIGUSR2", "pthread_sigmask", "set_wakeup_fd"),
        socket: ("AF_UNIX", "MSG_DONTWAIT", "SO_REUSEPORT"),
        select: ("POLLIN", "POLLOUT", "epoll", "poll"),
    },
    "darwin": {os: ("posix_fallocate", "sched_getaffinity", "sched_yield"), select: ("epoll",)},
    "darwin-ofd": {os: ("posix_fallocate", "sched_getaffinity", "sched_yield"), select: ("epoll",)},
    "pypy": {gc: ("freeze", "unfreeze"), sys: ("getrefcount",)},
}
"""macOS has the locks of open file descriptions in new versions (`darwin-ofd`), and not in old ones."""


class Missing(MetaPathFinder):
    """Finds nothing, and says so, for modules that the system does not have."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None


def simulate(system: str) -> None:
    for name in (*STANDARD, *OTHERS):
        importlib.import_module(name)
    for name in [one for one in sys.modules if one.partition(".")[0] in MODULES[system]]:
        del sys.modules[name]
    sys.meta_path.insert(0, Missing(MODULES[system]))
    socket.socketpair.__defaults__ = (socket.AF_UNIX, socket.SOCK_STREAM, 0)  # on Windows it needs no Unix sockets
    for module, names in NAMES[system].items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    if system == "darwin":
        import fcntl

        for name in ("F_OFD_GETLK", "F_OFD_SETLK", "F_OFD_SETLKW"):
            delattr(fcntl, name)
    if system != "pypy":
        sys.platform = system.partition("-")[0]


if given := os.environ.get("CRESTGATE_TEST_SYSTEM"):
    simulate(given)
