"""The services in other languages, installed by package name into a folder that git does not look at."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from benchmarks.children import child

__all__ = ["GUBERNATOR", "NOT_PACKAGED", "RATELIMIT", "NotInstalledError", "Program", "install_program"]

INSTALL_SECONDS = 600


@dataclass(frozen=True)
class Program:
    """A Go program: its package, its version, and the name of what is installed."""

    name: str
    package: str
    version: str

    @property
    def executable(self) -> str:
        return self.package.rpartition("/")[2]


RATELIMIT = Program(
    "envoyproxy/ratelimit", "github.com/envoyproxy/ratelimit/src/service_cmd", "v1.4.1-0.20260122083618-3fb702589d36"
)
GUBERNATOR = Program("gubernator", "github.com/gubernator-io/gubernator/v2/cmd/gubernator", "v2.13.0")
NOT_PACKAGED = """\
limitador: its server is not packaged, only its library is. The targets beside it, over gRPC in memory and over HTTP,
are not measured here."""


class NotInstalledError(Exception):
    """Why a program cannot take part."""


def install_program(root: Path, program: Program) -> Path:
    """The executable, installed if this version is not there yet. NotInstalledError says why it cannot be."""
    folder = root / ".bench-venv" / "go" / program.version
    executable = folder / program.executable
    if executable.exists():
        return executable
    go = shutil.which("go")
    if go is None:
        raise NotInstalledError(f"{program.name}: there is no Go compiler (apt-get install golang-go)")
    print(f"  installing {program.name} {program.version}", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    command = [go, "install", f"{program.package}@{program.version}"]
    with child(command, folder=folder, variables={"GOBIN": str(folder)}, stderr=subprocess.PIPE) as process:
        try:
            _, written = process.communicate(timeout=INSTALL_SECONDS)
        except subprocess.TimeoutExpired:
            raise NotInstalledError(f"{program.name}: not installed within {INSTALL_SECONDS} s") from None
    if process.returncode != 0 or not executable.exists():
        raise NotInstalledError(f"{program.name} {program.version}: {_reason(written.decode(errors='replace'))}")
    return executable


def _reason(output: str) -> str:
    """The last line of the installer, without addresses."""
    lines = output.strip().splitlines() or ["nothing was said"]
    what = "its checksum could not be verified" if "verifying module" in lines[-1] else "it could not be installed"
    return f"{what} ({lines[-1].rpartition(': ')[2]})"
