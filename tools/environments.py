"""Interpreters of this machine, and clean environments with one wheel in them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from glob import glob
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 1800


class CommandError(Exception):
    """A command failed; the message has the end of what it printed."""


def run(
    *command: str | Path, cwd: Path | None = None, environment: Mapping[str, str] | None = None, user: int | None = None
) -> str:
    """Run a command, and return what it printed."""
    given = [str(part) for part in command]
    try:
        done = subprocess.run(
            given,
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": "", **(environment or {})},
            user=user,
            group=user,
            extra_groups=[] if user is not None else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandError(f"{' '.join(given[:4])}: {error}") from None
    if done.returncode:
        last = "\n".join(done.stdout.strip().splitlines()[-15:])
        raise CommandError(f"{' '.join(given[:4])}: exit code {done.returncode}\n{last}")
    return done.stdout


@dataclass(frozen=True)
class Interpreter:
    path: Path
    name: str
    """As `3.13`, `3.14t` where it is free-threaded, or `pypy3.11`."""


def supported() -> list[str]:
    """The Pythons that the classifiers of pyproject.toml name, without patch levels."""
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    last = [
        line.rpartition(" :: ")[2] for line in classifiers if line.startswith("Programming Language :: Python :: 3.")
    ]
    return [version for version in last if version.startswith("3.")]


def interpreters() -> list[Interpreter]:
    """One of each kind: on the PATH, of pyenv or uv, and those that CRESTGATE_PYTHONS names (with `:` between)."""
    patterns = ["~/.pyenv/versions/*/bin/python3", "~/.local/share/uv/python/*/bin/python3"]
    paths = [sys.executable, *os.environ.get("CRESTGATE_PYTHONS", "").split(os.pathsep)]
    paths += [shutil.which(name) or "" for version in supported() for name in (f"python{version}", f"python{version}t")]
    paths += [
        shutil.which("pypy3") or "",
        *(path for pattern in patterns for path in sorted(glob(os.path.expanduser(pattern)))),
    ]
    found: dict[str, Interpreter] = {}
    for path in filter(None, paths):
        if (name := _name_of(path)) and name.removeprefix("pypy").rstrip("t") in supported():
            found.setdefault(name, Interpreter(Path(path), name))
    return sorted(found.values(), key=lambda one: (one.name.startswith("pypy"), one.name))


def _name_of(path: str) -> str:
    code = (
        "import sys, sysconfig, venv, ensurepip; "
        "kind = 'pypy' if sys.implementation.name == 'pypy' else ''; "
        "free = 't' if sysconfig.get_config_var('Py_GIL_DISABLED') else ''; "
        "print(f'{kind}{sys.version_info[0]}.{sys.version_info[1]}{free}')"
    )
    try:
        return run(path, "-I", "-c", code).strip()
    except CommandError:
        return ""  # pyenv has commands for Pythons that are not installed


def make_environment(python: Path, folder: Path, user: int | None = None) -> Path:
    """A fresh environment; its interpreter."""
    shutil.rmtree(folder, ignore_errors=True)
    run(python, "-m", "venv", folder, user=user)
    return folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"


def without_compiler(folder: Path) -> dict[str, str]:
    """Environment variables with which no C compiler is found."""
    folder.mkdir(parents=True, exist_ok=True)
    return {"PATH": str(folder), "CC": str(folder / "no-cc"), "CXX": str(folder / "no-cc")}


def copy_tree(target: Path) -> Path:
    """The files that git knows, with what is changed in them: nothing that an earlier build left behind."""
    shutil.rmtree(target, ignore_errors=True)
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target
