"""Two virtual environments, because the same source is measured twice: compiled, and as plain Python.

Crestgate is installed anew when its source has changed, and from a copy, so that neither the build of the other
environment nor anything left in the working tree gets into it.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from benchmarks.children import child, environment

__all__ = ["BUILDS", "MARK", "InstallError", "installed", "is_installed", "prepare", "python", "source_digest"]

BUILDS = ("compiled", "pure")
DRAWING = "matplotlib"
_AT_THE_TOP = shutil.ignore_patterns(".*", "build", "dist", "tests", "docs", "benchmarks")
_ANYWHERE = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so")


MARK = "installed.sha256"
"""Holds what was installed into an environment, and is there only when that was finished."""


class InstallError(Exception):
    """An environment could not be created; the message ends with the output of the installer."""


def python(root: Path, build: str) -> Path:
    return folder(root, build) / "bin" / "python"


def folder(root: Path, build: str) -> Path:
    return root / ".bench-venv" / build


def prepare(root: Path) -> None:
    """Make or refresh both environments. The first also gets the drawing library."""
    with (root / "pyproject.toml").open("rb") as file:
        wanted: list[str] = tomllib.load(file)["dependency-groups"]["bench"]
    with tempfile.TemporaryDirectory(prefix="crestgate-bench-") as temporary:
        original = Path(temporary) / "original"
        _copy_source(root, original)
        digest = source_digest(original, wanted)
        for build in BUILDS:
            if is_installed(root, build, digest):
                continue
            mark = folder(root, build) / MARK
            mark.unlink(missing_ok=True)
            if not _is_current(root, build):
                shutil.rmtree(folder(root, build), ignore_errors=True)
                folder(root, build).parent.mkdir(exist_ok=True)
                _run(root, [sys.executable, "-m", "venv", str(folder(root, build))])
            compared = [name for name in wanted if build == "compiled" or not name.startswith(DRAWING)]
            _pip(root, build, temporary, *compared)
            source = Path(temporary) / build
            shutil.copytree(original, source)
            _pip(root, build, temporary, "--force-reinstall", "--no-deps", str(source))
            mark.write_text(digest)


def installed(root: Path) -> dict[str, str]:
    """The builds to measure, with the version that each prints. Without a C compiler there is only one."""
    builds = {}
    for name in BUILDS:
        command = [str(python(root, name).with_name("crestgate")), "--version"]
        output = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True, timeout=60)
        builds[name] = output.stdout.strip()
    if "(pure Python)" not in builds["pure"]:
        raise RuntimeError(f"CRESTGATE_PURE=1 was asked for, and installed is {builds['pure']}")
    if "(compiled)" not in builds["compiled"]:
        del builds["compiled"]
    return builds


def _copy_source(root: Path, copy: Path) -> None:
    """Copy the source without the files of earlier builds."""

    def not_source(folder: str, names: list[str]) -> set[str]:
        return _ANYWHERE(folder, names) | (_AT_THE_TOP(folder, names) if Path(folder) == root else set())

    shutil.copytree(root, copy, ignore=not_source)


def is_installed(root: Path, build: str, digest: str) -> bool:
    """Whether this source was installed, to its end, into an environment that is still complete."""
    mark = folder(root, build) / MARK
    return _is_current(root, build) and mark.exists() and mark.read_text() == digest


def source_digest(source: Path, wanted: list[str]) -> str:
    """Of all files of the source, and of what it is compared with."""
    found = hashlib.sha256("\n".join(wanted).encode())
    for path in sorted(source.rglob("*")):
        if path.is_file():
            found.update(str(path.relative_to(source)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def _is_current(root: Path, build: str) -> bool:
    """Whether the environment exists, is complete, and has the running Python version."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder(root, build) / "lib" / version / "site-packages" / "pip"
    return python(root, build).exists() and packages.exists()


def _pip(root: Path, build: str, temporary: str, *arguments: str) -> None:
    variables = {"TMPDIR": temporary} | ({"CRESTGATE_PURE": "1"} if build == "pure" else {})
    _run(root, [str(python(root, build)), "-m", "pip", "install", "--quiet", *arguments], variables)


def _run(root: Path, command: list[str], variables: dict[str, str] | None = None) -> None:
    with (
        tempfile.TemporaryFile() as output,
        child(command, folder=root, variables=variables, stdout=output, stderr=subprocess.STDOUT) as process,
    ):
        if process.wait() != 0:
            output.seek(0)
            lines = output.read().decode(errors="replace").splitlines()
            raise InstallError("\n".join(["could not make the environment:", *lines[-25:]]))
