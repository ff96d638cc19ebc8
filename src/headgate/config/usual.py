"""Where counters, rules and keys are when nobody says: in a folder of the one that a command is run in.

The service and the commands use the same, so that `headgate keys` and `headgate check` find what `headgate serve` has
made.

Whoever can write there can plant an admin key, or counters that admit everything. So the folder and what is in it must
belong to the user that runs the command (root's own where that is root), and nobody else may write to it. Otherwise
nothing is opened: the error says who owns it and what to do. Files that others can only read are closed to them.
"""

from __future__ import annotations

import os
import pwd
import shlex
import stat
from contextlib import suppress
from urllib.parse import quote

from headgate.errors import StoreError

__all__ = [
    "check_usual_folder",
    "has_usual_rules",
    "has_usual_store",
    "make_usual_folder",
    "usual_rules_store",
    "usual_store",
]

FOLDER = ".headgate"
COUNTERS = "counters"
RULES = "rules.db"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def usual_store() -> str:
    """The URL of the counters: shared memory, for all processes of this machine."""
    return f"shared://{quote(_path(COUNTERS))}"


def usual_rules_store() -> str:
    """The URL of the rule database."""
    return f"sqlite:///{quote(_path(RULES))}"


def has_usual_store() -> bool:
    """Whether there is a counter file in the folder."""
    return os.path.exists(_path(COUNTERS))


def has_usual_rules() -> bool:
    """Whether there is a rule database in the folder."""
    return os.path.exists(_path(RULES))


def make_usual_folder(instead: str) -> None:
    """Make the folder if it is not there: for this user alone, as is what is in it. StoreError says what to do instead
    where it cannot be made."""
    folder = os.path.abspath(FOLDER)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except FileExistsError:
        pass  # it is something else, which the check says
    except OSError as error:
        raise StoreError(f"cannot make the folder {folder}: {error.strerror}; {instead}") from error
    check_usual_folder()


def check_usual_folder() -> None:
    """StoreError if somebody else owns the folder or a file in it, or may write to it. Without the folder, nothing."""
    folder = os.path.abspath(FOLDER)
    try:
        link = os.lstat(folder)
        if stat.S_ISLNK(link.st_mode):
            _check_owner(folder, link, "symbolic link")
        found = os.stat(folder)
        if not stat.S_ISDIR(found.st_mode):
            raise StoreError(f"{folder} is not a folder: move it away, or set store and rules_store")
        _check_owner(folder, found, "folder")
        _check_mode(folder, found, "folder")
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith((COUNTERS, RULES)):
                    with suppress(FileNotFoundError):  # SQLite removes its -wal when the last one closes it
                        _check_file(entry.path, entry.stat(follow_symlinks=False))
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(
            f"cannot look into the folder {folder}: {error.strerror}; run this as its owner, or set store and "
            "rules_store"
        ) from error


def _check_file(path: str, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise StoreError(f"{path} is not a regular file: remove it, or set store and rules_store")
    _check_owner(path, found, "file")
    _check_mode(path, found, "file")
    if found.st_mode & _OTHERS:
        os.chmod(path, stat.S_IMODE(found.st_mode) & ~_OTHERS)


def _check_owner(path: str, found: os.stat_result, what: str) -> None:
    ours = os.geteuid()
    if found.st_uid != ours:
        raise StoreError(
            f"the {what} {path} belongs to {_name(found.st_uid)}, and this runs as {_name(ours)}: its owner can plant "
            f"admin keys and counters. Run this as {_name(found.st_uid)}, or, if you know what is in it, "
            f"`chown -hR {_name(ours)} {shlex.quote(path)}`, or set store and rules_store"
        )


def _check_mode(path: str, found: os.stat_result, what: str) -> None:
    if found.st_mode & _OTHERS_WRITE:
        raise StoreError(
            f"the {what} {path} can be written by others (mode {stat.S_IMODE(found.st_mode):03o}), who can plant admin "
            f"keys and counters: look at what is in it, then `chmod -R go-rwx {shlex.quote(path)}`, or set store and "
            "rules_store"
        )


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # a container's user may have a number only
        return str(uid)


def _path(name: str) -> str:
    """The path of a file in the folder, which is found safe before anybody uses it."""
    check_usual_folder()
    return os.path.join(os.path.abspath(FOLDER), name)
