"""Machine resources for the test servers: programs, ports, folders, and process states.

Ports are below the ephemeral range, so that no outgoing connection takes one by chance while its server is down.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import random
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

__all__ = [
    "PATIENCE",
    "TEMPLATES",
    "ServerError",
    "find",
    "free_port",
    "gone",
    "private_folder",
    "remove",
    "run",
    "stat",
    "template",
    "until",
]

PATIENCE = 30.0
"""Seconds after which we give up on a server. Nothing that works comes near it."""

TEMPLATES = "CRESTGATE_TEST_TEMPLATES"
"""The environment variable with a folder in which processes share templates; else each makes its own."""

may_start_servers = True
"""False under `--no-servers`: whoever would start one is skipped."""

_PORTS = range(10_000, 22_000)
_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/sbin")
_us = os.getpid()
_handed_out: set[int] = set()
_folders: set[Path] = set()


class ServerError(RuntimeError):
    """A server is not installed, did not start, or does not do what it should."""


def find(program: str, package: str, *folders: str) -> str:
    """The path of a program; if it is missing, an error that names the package."""
    path = shutil.which(program) or shutil.which(program, path=os.pathsep.join([*folders, *_FOLDERS]))
    if path is None:
        raise ServerError(
            f"{program} is not installed: `make servers`, or `apt-get install {package}`; "
            "or name a server that runs already, see CRESTGATE_TEST_…_URL in tests/conftest.py"
        )
    return path


def run(
    command: Sequence[str],
    words: str = "",
    *,
    patience: float = PATIENCE,
    environment: Mapping[str, str] | None = None,
    user: tuple[int, int] | None = None,
) -> str:
    """The output of a command, run as this user and group; an error with its stderr, if it fails."""
    uid, gid = user or (None, None)
    done = subprocess.run(
        command,
        input=words.encode(),
        capture_output=True,
        timeout=patience,
        env={**os.environ, **(environment or {})},
        user=uid,
        group=gid,
        extra_groups=None if gid is None else [],
        cwd="/",
    )
    if done.returncode != 0:
        raise ServerError(f"{command[0]}: {(done.stderr or done.stdout).decode(errors='replace')[-2000:].strip()}")
    return done.stdout.decode(errors="replace").removesuffix("\n")


def free_port(*beside: int) -> int:
    """A free port of 127.0.0.1, whose neighbours at the given distances are free too."""
    for port in random.sample(_PORTS, len(_PORTS)):
        wanted = {port, *(port + step for step in beside)}
        if not wanted & _handed_out and all(map(_is_free, wanted)):
            _handed_out.update(wanted)
            return port
    raise ServerError("no port is free")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def private_folder(kind: str) -> Path:
    """A new folder, which is removed when the tests end, or earlier."""
    folder = Path(tempfile.mkdtemp(prefix=f"crestgate-{kind}-"))
    _folders.add(folder)
    return folder


def template(kind: str, make: Callable[[Path], None]) -> Path:
    """A folder that `make` has filled, which takes seconds for a database; to be copied."""
    shared = os.environ.get(TEMPLATES)
    if not shared:
        folder = private_folder(f"{kind}-template")
        make(folder)
        return folder
    folder = Path(shared) / kind
    with Path(f"{folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not Path(f"{folder}.done").exists():
            remove(folder)  # of one that was killed half-way
            folder.mkdir(mode=0o700)
            make(folder)
            Path(f"{folder}.done").touch()
    return folder


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    _folders.discard(folder)


@atexit.register
def _remove_all() -> None:
    if os.getpid() == _us:  # not at the end of a fork of the tests
        for folder in list(_folders):
            remove(folder)


def until(what: str, true: Callable[[], bool], patience: float = PATIENCE) -> None:
    """Poll until the condition is true."""
    deadline = time.monotonic() + patience
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {patience:g} s: {what}")
        time.sleep(0.01)


def gone(pid: int) -> bool:
    """Whether a process has exited."""
    return stat(pid)[:1] in ([], ["Z"])


def stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat: state, parent, and so on (proc(5)); empty if it has exited."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
