"""Installs the compiled build into an environment, unless it is there already.

    python -m tools.compile .venv-serve                  for `make serve`
    python -m tools.compile .venv --for-tests            for `make compiled`

For tests, the C compiler does not optimise: that takes half of the time, and they measure nothing. What is compiled is
a copy of the source, so two builds do not disturb each other and none leaves anything behind in the working tree.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.environment import ROOT, pip_command
from tools.progress import StepError, run_step
from tools.system_packages import missing_for_compiling, sentence

__all__ = ["STAMP", "compile_into", "copy_source", "is_fresh", "source_digest"]

STAMP = ".compiled"
SOURCES = ("src", "tools", "setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")
BUILT = ("__pycache__", "*.egg-info", "*.so")


def is_fresh(environment: Path) -> bool:
    """Whether the compiled build there was made of the source as it is now."""
    stamp = environment / STAMP
    return stamp.exists() and stamp.read_text() == source_digest()


def source_digest() -> str:
    """Tells whether the source is the same: by what it says, since switching branches changes the times of files."""
    digest = hashlib.sha256((ROOT / "setup.py").read_bytes())
    for path in sorted((ROOT / "src").rglob("*")):
        if path.suffix in (".py", ".lua"):
            digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def copy_source(folder: Path) -> None:
    """Copy what a build reads, and nothing that an earlier one made."""
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns(*BUILT))
        else:
            shutil.copy(ROOT / name, folder)


def compile_into(environment: Path, for_tests: bool) -> None:
    """Compile and install; leaves with a sentence if that cannot be done here."""
    if is_fresh(environment):
        print(f"The compiled build in {environment.name} is up to date.")
        return
    if missing := missing_for_compiling():
        sys.exit(sentence("The hot modules cannot be compiled. What a C compiler needs is", missing))
    python = environment / "bin" / "python"
    (environment / STAMP).unlink(missing_ok=True)
    digest = source_digest()
    with tempfile.TemporaryDirectory(prefix="crestgate-") as temporary:
        copy_source(Path(temporary))
        options = ["--force-reinstall", "--no-deps", *["--no-build-isolation"] * for_tests, temporary]
        uv = None if for_tests else shutil.which("uv")
        install = [uv, "pip", "install", "--python", str(python)] if uv else [*pip_command(python), "install"]
        level = {"CRESTGATE_OPT_LEVEL": "0"} if for_tests else {}
        try:
            run_step("Compiling the hot modules, which takes minutes", [*install, *options], level)
        except StepError as error:
            sys.exit(f"{error}\nThe hot modules could not be compiled.")
    # From where no source is: that would be imported in place of what was installed.
    command = [str(python.absolute().with_name("crestgate")), "--version"]
    version = subprocess.run(command, capture_output=True, text=True, check=True, cwd=environment).stdout.strip()
    print(version)
    if "(compiled)" not in version:
        sys.exit("The build fell back to pure Python: unset CRESTGATE_PURE, or see what `pip install -v .` says.")
    (environment / STAMP).write_text(digest)


def main() -> None:
    parser = argparse.ArgumentParser(description="Install the compiled build, if the source has changed since.")
    parser.add_argument("environment", type=Path)
    parser.add_argument("--for-tests", action="store_true", help="without optimisation, by what is installed there")
    arguments = parser.parse_args()
    compile_into(arguments.environment, arguments.for_tests)


if __name__ == "__main__":
    main()
