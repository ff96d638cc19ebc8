"""Where counters, rules and keys are when nobody says: in a folder of the one that a command is run in.

The service and the commands use the same, so that `headgate keys` and `headgate check` find what `headgate serve` has
made.
"""

from __future__ import annotations

import os
from urllib.parse import quote

from headgate.errors import StoreError

__all__ = ["make_usual_folder", "usual_rules_store", "usual_store"]

FOLDER = ".headgate"
COUNTERS = "counters"
RULES = "rules.db"


def usual_store() -> str:
    """The URL of the counters: shared memory, for all processes of this machine."""
    return f"shared://{quote(_path(COUNTERS))}"


def usual_rules_store() -> str:
    """The URL of the rule database."""
    return f"sqlite:///{quote(_path(RULES))}"


def make_usual_folder(instead: str) -> None:
    """Make the folder if it is not there: for this user alone, as is what is in it. StoreError says what to do instead
    where it cannot be made."""
    folder = os.path.abspath(FOLDER)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot make the folder {folder}: {error.strerror}; {instead}") from error


def _path(name: str) -> str:
    return os.path.join(os.path.abspath(FOLDER), name)
