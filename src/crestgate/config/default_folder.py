"""Default store and rule database: files in `./.crestgate`, shared by the service and the commands.

A user who can write there can plant an admin key, or counters that admit everything. So the folder and its files must
belong to the user that runs the command, and must not be writable by others. Otherwise nothing is opened: the error
names the owner and the remedy. Read permissions of others are removed. Windows has neither owners nor modes of this
kind: there the folder has the permissions of the one that it is in.

The counters are in shared memory where the system has it (Linux), else in a SQLite database.
"""

from __future__ import annotations

import json
import os
import shlex
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from crestgate.errors import StoreError
from crestgate.runtime.file_locks import has_shared_memory

__all__ = [
    "check_default_folder",
    "default_rules_url",
    "default_store_note",
    "default_store_url",
    "has_default_rules",
    "has_default_store",
    "make_default_folder",
    "read_service_file",
    "write_service_file",
]

FOLDER = ".crestgate"
COUNTERS = "counters"
COUNTERS_DATABASE = "counters.db"
RULES = "rules.db"
SERVICE = "service.json"
"""Where the service that runs in this folder listens, and where its workers publish their state."""
MAX_SERVICE_FILE = 10_000
"""Characters."""
_HAS_OWNERS = hasattr(os, "geteuid")
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def default_store_url() -> str:
    """The URL of the counters: shared memory for all processes of this machine, or a database where there is none."""
    if has_shared_memory():
        return f"shared://{quote(_path(COUNTERS))}"
    return f"sqlite:///{quote(_path(COUNTERS_DATABASE))}"


def default_store_note() -> str:
    """Why the counters are not in shared memory; empty where they are."""
    return "" if has_shared_memory() else " (shared memory needs Linux)"


def default_rules_url() -> str:
    """The URL of the rule database."""
    return f"sqlite:///{quote(_path(RULES))}"


def has_default_store() -> bool:
    """Whether there is a counter file in the folder."""
    return os.path.exists(_path(COUNTERS if has_shared_memory() else COUNTERS_DATABASE))


def has_default_rules() -> bool:
    """Whether there is a rule database in the folder."""
    return os.path.exists(_path(RULES))


def make_default_folder(instead: str) -> None:
    """Create the folder, for this user only, if it does not exist. `instead` is the remedy in the StoreError."""
    folder = os.path.abspath(FOLDER)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except FileExistsError:
        pass  # not a folder: the check reports it
    except OSError as error:
        raise StoreError(f"cannot create the folder {folder}: {error.strerror}; {instead}") from error
    check_default_folder()


def check_default_folder() -> None:
    """StoreError if another user owns the folder or a file in it, or may write to it. No folder is fine."""
    folder = os.path.abspath(FOLDER)
    try:
        link = os.lstat(folder)
        if stat.S_ISLNK(link.st_mode):
            _check_owner(folder, link, "symbolic link")
        status = os.stat(folder)
        if not stat.S_ISDIR(status.st_mode):
            raise StoreError(f"{folder} is not a folder: move it away, or set store and rules_store")
        _check_owner(folder, status, "folder")
        _check_mode(folder, status, "folder")
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith((COUNTERS, RULES, SERVICE)):
                    with suppress(FileNotFoundError):  # SQLite removes its -wal with the last connection
                        _check_file(entry.path, entry.stat(follow_symlinks=False))
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(
            f"cannot read the folder {folder}: {error.strerror}; run this as its owner, or set store and rules_store"
        ) from error


def write_service_file(url: str, snapshots: str, workers: int) -> Callable[[], None]:
    """Let commands in this folder find the running service; returns what removes it again. Does nothing without the
    folder: such a service has its own stores, and commands name its --url."""
    if not os.path.isdir(FOLDER):
        return lambda: None
    path = _path(SERVICE)
    content = json.dumps({"pid": os.getpid(), "url": url, "snapshots": snapshots, "workers": workers})
    new = f"{path}.{os.getpid()}.new"
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(content)
    os.replace(new, path)

    def remove() -> None:
        with suppress(OSError):
            if _read(path) == content:  # not that of a service which was started later
                os.unlink(path)

    return remove


def read_service_file() -> dict[str, Any] | None:
    """What the service in this folder has written, if any. It may have been killed since."""
    try:
        found = json.loads(_read(_path(SERVICE)))
    except (OSError, ValueError):
        return None
    known = (
        isinstance(found, dict) and isinstance(found.get("snapshots"), str) and isinstance(found.get("workers"), int)
    )
    return found if known else None


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read(MAX_SERVICE_FILE)


def _check_file(path: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise StoreError(f"{path} is not a regular file: remove it, or set store and rules_store")
    _check_owner(path, status, "file")
    _check_mode(path, status, "file")
    if _HAS_OWNERS and status.st_mode & _OTHERS:
        os.chmod(path, stat.S_IMODE(status.st_mode) & ~_OTHERS)


def _check_owner(path: str, status: os.stat_result, what: str) -> None:
    user = os.geteuid() if _HAS_OWNERS else status.st_uid
    if status.st_uid != user:
        raise StoreError(
            f"the {what} {path} belongs to {_name(status.st_uid)}, and this runs as {_name(user)}: its owner can plant "
            f"admin keys and counters. Run this as {_name(status.st_uid)}, or, if you trust its contents, "
            f"`chown -hR {_name(user)} {shlex.quote(path)}`, or set store and rules_store"
        )


def _check_mode(path: str, status: os.stat_result, what: str) -> None:
    if _HAS_OWNERS and status.st_mode & _OTHERS_WRITE:
        raise StoreError(
            f"the {what} {path} can be written by others (mode {stat.S_IMODE(status.st_mode):03o}), who can plant "
            f"admin keys and counters: check its contents, then `chmod -R go-rwx {shlex.quote(path)}`, or set store "
            "and rules_store"
        )


def _name(uid: int) -> str:
    try:
        import pwd  # Windows has none, and no owners either

        return pwd.getpwuid(uid).pw_name
    except (KeyError, ModuleNotFoundError):  # in a container the user may have no name
        return str(uid)


def _path(name: str) -> str:
    """The path of a file in the folder, once the folder is checked."""
    check_default_folder()
    return os.path.join(os.path.abspath(FOLDER), name)
