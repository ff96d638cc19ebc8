"""Makes a virtual environment with what pyproject.toml names for a purpose, as fast as it can be had.

    python -m tools.environment .venv-serve --extra server
    python -m tools.environment .venv --group test

uv installs in seconds what takes pip most of a minute, so it is used if it is on the PATH, and otherwise fetched for
this one time into a temporary folder. Where it cannot be had, or pip is configured to use another index, pip does it.
A stamp in the environment tells what was installed for which interpreter: if nothing has changed, nothing is done.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.progress import StepError, run_step

__all__ = [
    "ROOT",
    "SIZES",
    "TESTS",
    "fetch_uv",
    "install",
    "is_current",
    "missing_installer",
    "pip_command",
    "prepare",
    "requirements",
]

ROOT = Path(__file__).resolve().parent.parent
STAMP = ".ready"
SIZES = {"docs": 60, "server": 70, "test": 450}
"""Megabytes that the packages of an extra or group take, roughly, to say so before they are installed."""

TESTS = "what the tests need"
PIP_INDEX_SETTINGS = ("index-url", "no-index", "proxy")
"""Settings of pip that uv does not read, and without which it would ask somebody else."""

UV_SETTINGS = {"UV_SYSTEM_CERTS": "true", "UV_NATIVE_TLS": "true"}
"""uv trusts what the machine trusts, as pip does; the second is the name of older versions."""


def requirements(kind: str, name: str) -> list[str]:
    """The requirements of an extra or a dependency group, with those that it refers to."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)
    tables = {"extra": project["project"]["optional-dependencies"], "group": project["dependency-groups"]}
    if name not in tables[kind]:
        sys.exit(f"pyproject.toml has no {kind} {name!r}; it has {', '.join(sorted(tables[kind]))}")
    return sorted(set(_expand(tables, kind, name)))


def _expand(tables: dict[str, Any], kind: str, name: str) -> Iterator[str]:
    for entry in tables[kind][name]:
        if isinstance(entry, dict):
            yield from _expand(tables, "group", entry["include-group"])
        elif entry.startswith("crestgate["):
            for extra in entry.removeprefix("crestgate[").rstrip("]").split(","):
                yield from _expand(tables, "extra", extra.strip())
        else:
            yield entry


def _stamp_text(wanted: list[str]) -> str:
    return "\n".join([sys.version, sys.base_prefix, *wanted, ""])


def is_current(folder: Path, wanted: list[str]) -> bool:
    """Whether the environment has what is wanted, for this interpreter."""
    stamp = folder / STAMP
    return _python(folder).exists() and stamp.exists() and stamp.read_text() == _stamp_text(wanted)


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"


def missing_installer() -> str | None:
    """What to install before an environment can be made here; None if nothing."""
    if shutil.which("uv") or importlib.util.find_spec("pip") or importlib.util.find_spec("ensurepip"):
        return None
    return (
        f"{sys.executable} has neither pip nor ensurepip to make an environment with. "
        "On Debian and Ubuntu: apt-get install python3-venv. Elsewhere, install pip or uv."
    )


def prepare(folder: Path, wanted: list[str], purpose: str, megabytes: int) -> None:
    """Make the environment, or bring it up to date."""
    if is_current(folder, wanted):
        return
    if missing := missing_installer():
        sys.exit(missing)
    if not _same_interpreter(folder):
        shutil.rmtree(folder, ignore_errors=True)
        # Without pip: to install that takes longer than to install everything else with uv.
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (folder / STAMP).unlink(missing_ok=True)
    title = f"Installing {purpose} into {folder.name} (about {megabytes} MB)"
    install(folder, wanted, title)
    (folder / STAMP).write_text(_stamp_text(wanted))


def _same_interpreter(folder: Path) -> bool:
    """Whether an environment that is there can be kept: it was made by this interpreter and still starts."""
    command = [str(_python(folder)), "-c", "import sys; print(sys.version + '|' + sys.base_prefix)"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return False
    return run.stdout.strip() == f"{sys.version}|{sys.base_prefix}"


def install(folder: Path, wanted: list[str], title: str) -> None:
    """Install requirements into the environment, with uv if it can be had."""
    python = _python(folder)
    with tempfile.TemporaryDirectory(prefix="crestgate-") as temporary:
        uv = shutil.which("uv") or fetch_uv(python, Path(temporary))
        if uv:
            try:
                run_step(f"{title} with uv", [uv, "pip", "install", "--python", str(python), *wanted], UV_SETTINGS)
                return
            except StepError as error:
                print(f"uv could not: {str(error).splitlines()[-1]}")
    try:
        run_step(f"{title} with pip", [*pip_command(python), "install", "--prefer-binary", *wanted])
    except StepError as error:
        sys.exit(f"{error}\nThe packages could not be installed; pip says why above.")


def pip_command(python: Path) -> list[str]:
    """pip that installs into an environment: its own, else the interpreter's, else one that is put there first."""
    if subprocess.run([str(python), "-c", "import pip"], capture_output=True, check=False).returncode == 0:
        return [str(python), "-m", "pip"]
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip", "--python", str(python)]
    subprocess.run([str(python), "-m", "ensurepip"], check=True, stdout=subprocess.DEVNULL)
    return [str(python), "-m", "pip"]


def fetch_uv(python: Path, folder: Path) -> str | None:
    """uv from the package index, in a temporary folder; None if pip is to install everything."""
    pip = [sys.executable, "-m", "pip"] if importlib.util.find_spec("pip") else pip_command(python)
    settings = subprocess.run([*pip, "config", "list"], capture_output=True, text=True, check=False).stdout
    if any(f".{name}=" in settings for name in PIP_INDEX_SETTINGS):
        return None
    options = ["--no-deps", "--only-binary", ":all:", "--no-compile", "--root-user-action", "ignore"]
    try:
        run_step(
            "Fetching uv, which installs faster than pip", [*pip, "install", *options, "--target", str(folder), "uv"]
        )
    except StepError as error:
        print(f"uv is not to be had: {str(error).splitlines()[-1]}")
        return None
    return str(folder / "bin" / "uv")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a virtual environment, or bring it up to date.")
    parser.add_argument("folder", type=Path)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--extra", help="what an extra of pyproject.toml needs, without Crestgate itself")
    which.add_argument("--group", help="the packages of a dependency group of pyproject.toml")
    arguments = parser.parse_args()
    kind, name = ("extra", arguments.extra) if arguments.extra else ("group", arguments.group)
    purpose = {"docs": "what builds the site", "server": "what the service needs", "test": TESTS}.get(name, name)
    prepare(arguments.folder, requirements(kind, name), purpose, SIZES.get(name, 100))


if __name__ == "__main__":
    main()
