"""Finds programs that are missing on this machine, and installs their Debian packages only if that needs no password.

    python -m tools.system_packages servers      what the tests start, from Redis to Chromium
    python -m tools.system_packages load         what the benchmark loads the service with: optional
    python -m tools.system_packages chaos        what steps the clocks of servers: optional
    python -m tools.system_packages go           what h2spec is compiled with

As root and with apt-get, packages are installed. Otherwise the command is printed for whoever may run it.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "KINDS",
    "can_install",
    "explain",
    "install",
    "install_command",
    "missing_for_compiling",
    "missing_packages",
    "sentence",
]


@dataclass(frozen=True)
class Program:
    """A program, the Debian package that has it, and the variable that names a server in its place."""

    name: str
    package: str
    variable: str = ""


SERVERS = (
    Program("redis-server", "redis-server", "CRESTGATE_TEST_REDIS_URL"),
    Program("openssl", "openssl", "CRESTGATE_TEST_REDIS_URL"),
    Program("mariadbd", "mariadb-server", "CRESTGATE_TEST_MYSQL_URL"),
    Program("postgres", "postgresql", "CRESTGATE_TEST_POSTGRES_URL"),
    Program("nginx", "nginx"),
    Program("promtool", "prometheus"),
    Program("chromium", "chromium"),
)
KINDS = {
    "servers": SERVERS,
    "load": (Program("wrk", "wrk"), Program("h2load", "nghttp2-client")),
    "chaos": (Program("faketime", "faketime"),),
    "go": (Program("go", "golang-go"),),
}
GOALS = {"servers": "`make test`", "load": "`make bench`", "chaos": "`make chaos`", "go": "`make h2spec`"}
OPTIONAL = ("load", "chaos")
SERVER_FOLDERS = ["/usr/local/sbin", "/usr/sbin", *map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin")))]


def missing_packages(kind: str) -> list[str]:
    """The Debian packages of the programs that are neither installed nor replaced by a server that is named."""
    path = os.pathsep.join([os.environ.get("PATH", ""), *SERVER_FOLDERS])
    return [
        program.package
        for program in KINDS[kind]
        if not os.environ.get(program.variable or "-") and not shutil.which(program.name, path=path)
    ]


def missing_for_compiling() -> list[str]:
    """The Debian packages without which the hot modules cannot be compiled for this interpreter."""
    compiler = next(
        (found for name in (os.environ.get("CC", ""), "cc", "gcc") if name and (found := _which(name))), None
    )
    headers = sysconfig.get_paths()["include"]
    packages = [] if compiler else ["gcc", "libc6-dev"]
    if not (Path(headers) / "Python.h").exists():
        packages.append("python3-dev")
    if compiler and not packages:
        command = [*compiler, "-fsyntax-only", "-I", headers, "-x", "c", "-"]
        probe = subprocess.run(command, input="#include <Python.h>\n", capture_output=True, text=True, check=False)
        return [] if probe.returncode == 0 else ["gcc", "libc6-dev"]
    return packages


def _which(command: str) -> list[str] | None:
    words = shlex.split(command)
    return words if shutil.which(words[0]) else None


def can_install() -> bool:
    """Whether packages can be installed without asking anybody for a password."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install_command(packages: list[str]) -> str:
    return f"apt-get install --no-install-recommends {' '.join(packages)}"


def sentence(what: str, packages: list[str]) -> str:
    """What is missing, and how to get it, for somebody whose machine cannot install it by itself."""
    if shutil.which("apt-get"):
        return f"{what} not installed here: {', '.join(packages)}. As root: {install_command(packages)}"
    names = ", ".join(packages)
    return (
        f"{what} not installed here, and there is no apt-get to install it with. Debian's packages are called {names}."
    )


def install(packages: list[str]) -> None:
    """Install packages, as root; CalledProcessError if that fails."""
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-q"], check=True, env=environ)
    subprocess.run(["apt-get", "install", "-y", "-q", "--no-install-recommends", *packages], check=True, env=environ)


def explain(kind: str, packages: list[str]) -> str:
    """Which packages are missing, and what can be done without them."""
    text = sentence(f"What {GOALS[kind]} needs is", packages)
    if kind == "servers":
        named = sorted({program.variable for program in SERVERS if program.package in packages and program.variable})
        text += f"\nOr name servers that run already in {', '.join(named)}." if named else ""
        text += "\n`make quick` needs none of them."
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description="Find programs that are missing, and install them where root does it.")
    parser.add_argument("kind", choices=sorted(KINDS))
    kind = parser.parse_args().kind
    packages = missing_packages(kind)
    if not packages:
        return
    problem = explain(kind, packages)
    if can_install():
        print(f"Installing Debian packages: {', '.join(packages)}", flush=True)
        try:
            install(packages)
            return
        except subprocess.CalledProcessError as error:
            problem = f"{shlex.join(error.cmd)} failed with exit code {error.returncode}"
    if kind not in OPTIONAL:
        sys.exit(problem)
    print(problem)


if __name__ == "__main__":
    main()
