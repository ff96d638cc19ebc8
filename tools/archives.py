"""What an sdist and a wheel must contain, and what not: a forgotten file shows only on somebody else's machine."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path, PurePosixPath

from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).resolve().parent.parent
NEEDED_TO_BUILD = (
    "LICENSE",
    "PKG-INFO",
    "README.md",
    "proto/crestgate/v1/rate_limiter.proto",
    "pyproject.toml",
    "setup.py",
    "tools/__init__.py",
    "tools/build_backend.py",
)
"""In an sdist, beside every file of src."""
NOT_RELEASED = (".venv", "__pycache__", "benchmarks", "build", "chaos", "dist", "tests")
"""Folders that belong to neither."""
BUILD_FILES = (".c", ".h", ".o", ".pyc")
"""How the names of files end that only a build needs."""


def source_files() -> set[str]:
    """The files of the package, as they are named in a wheel."""
    found = (path.relative_to(ROOT / "src") for path in (ROOT / "src" / "crestgate").rglob("*") if path.is_file())
    return {
        path.as_posix() for path in found if not {"__pycache__"} & {*path.parts} and path.suffix not in (".pyc", ".so")
    }


def _stray(names: set[str]) -> list[str]:
    return sorted(
        name for name in names if {*NOT_RELEASED} & {*PurePosixPath(name).parts} or name.endswith(BUILD_FILES)
    )


def sdist_faults(path: Path) -> list[str]:
    """What is wrong with an sdist."""
    with tarfile.open(path) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    wanted = {*NEEDED_TO_BUILD, *(f"src/{name}" for name in source_files())}
    faults = [f"{name} is missing" for name in sorted(wanted - names)]
    return faults + [f"{name} does not belong there" for name in _stray(names)]


def wheel_faults(path: Path) -> list[str]:
    """What is wrong with a wheel, compiled or not."""
    with zipfile.ZipFile(path) as archive:
        names = {*archive.namelist()}
    faults = [f"{name} is missing" for name in sorted(source_files() - names)]
    faults += [f"{name} does not belong there" for name in _stray(names)]
    libraries = [name for name in names if name.endswith((".so", ".pyd"))]
    folders = {PurePosixPath(name).parts[0] for name in names if not name.endswith((".so", ".pyd"))}
    faults += [f"{name} is not of the package" for name in sorted(folders) if not name.startswith("crestgate")]
    pure = {tag.abi for tag in parse_wheel_filename(path.name)[3]} == {"none"}
    if pure and libraries:
        faults.append(f"{sorted(libraries)[0]} is compiled, and the name of the wheel says that nothing is")
    if not pure and not libraries:
        faults.append("nothing is compiled, and the name of the wheel says that it is")
    return faults


def release_faults(folder: Path, identifiers: list[str]) -> list[str]:
    """Which files of a whole release are not there: one sdist, the pure wheel, a wheel for each build identifier."""
    wheels = [parse_wheel_filename(path.name)[3] for path in folder.glob("*.whl")]
    faults = [] if len(list(folder.glob("*.tar.gz"))) == 1 else ["there must be one sdist"]
    if not any(str(tag) == "py3-none-any" for tags in wheels for tag in tags):
        faults.append("the pure wheel is missing")
    for identifier in identifiers:
        python, _, platform = identifier.partition("-")
        system, _, machine = platform.partition("_")
        if not any(
            tag.abi == python and tag.platform.startswith(system) and tag.platform.endswith(machine)
            for tags in wheels
            for tag in tags
        ):
            faults.append(f"no wheel for {identifier}")
    return faults
