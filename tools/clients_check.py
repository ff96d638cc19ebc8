"""Publishes what clients are generated from, and checks that generated clients work.

    python -m tools.clients_check                  writes dist/openapi.json and dist/crestgate-proto.zip, then checks
    python -m tools.clients_check --publish        only writes them
    python -m tools.clients_check --only go,java   checks some of the languages

For each language, the commands of docs/clients.md are run in a temporary copy of examples/clients, against a service
that is started for it: they generate, compile, and call. So what the page says is what works, and no generated code is
kept. Tools and packages come from where these languages get them; nothing is installed on the machine.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "clients.md"
CLIENTS = ROOT / "examples" / "clients"
PROTO = ROOT / "proto"
HTTP, GRPC = "127.0.0.1:8080", "127.0.0.1:8081"
"""Addresses of the service on the page."""
TIMEOUT = 1800.0
"""Seconds for one block of commands: the first run downloads what it needs."""
START_TIMEOUT = 120.0
_LISTENS = re.compile(r"^Crestgate listens on http://(\S+) with.*^  gRPC       (\S+)", re.MULTILINE | re.DOTALL)
_ANSWER = re.compile(r"(http|grpc) allowed=(true|false)\b")  # Maven may write an escape sequence in front of it


class CheckError(Exception):
    """A client that does not work; the text says why."""


class Language(NamedTuple):
    """A language that clients are generated in."""

    title: str
    """Its heading on the page."""
    tools: Mapping[str, Sequence[str]]
    """The programs that it needs, and how each prints its version."""
    install: str
    protocols: Sequence[str]
    """Those that its client calls."""


LANGUAGES = {
    "go": Language("Go", {"go": ("go", "version")}, "Go 1.24 or later", ("grpc",)),
    "typescript": Language(
        "TypeScript",
        {"node": ("node", "--version"), "npm": ("npm", "--version")},
        "Node.js 20 or later, with npm",
        ("http", "grpc"),
    ),
    "java": Language(
        "Java",
        {"javac": ("javac", "-version"), "mvn": ("mvn", "-B", "-v")},
        "a JDK, 17 or later, and Maven",
        ("http", "grpc"),
    ),
}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Publish openapi.json and proto/, and check generated clients.")
    parser.add_argument("--publish", action="store_true", help="only write the two files")
    parser.add_argument("--only", default=",".join(LANGUAGES), help="languages to check [%(default)s]")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="where to write [dist]")
    options = parser.parse_args(arguments)
    names = options.only.split(",")
    for name in names:
        if name not in LANGUAGES:
            parser.error(f"--only: no language {name!r}; there are {', '.join(LANGUAGES)}")
    openapi = publish(options.output)
    return 0 if options.publish else check(names, openapi)


def publish(folder: Path) -> Path:
    """Write the OpenAPI document and the .proto files; the path of the document."""
    folder.mkdir(parents=True, exist_ok=True)
    openapi, archive = folder / "openapi.json", folder / "crestgate-proto.zip"
    with openapi.open("wb") as output:
        subprocess.run([sys.executable, "-m", "crestgate", "openapi"], env=environment(), stdout=output, check=True)
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(PROTO.rglob("*.proto")):
            entry = zipfile.ZipInfo(str(path.relative_to(PROTO)))  # without a time: the same files, the same archive
            packed.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    for path in (openapi, archive):
        print(f"wrote {path}", flush=True)
    return openapi


def check(names: Sequence[str], openapi: Path) -> int:
    """Check the clients in these languages; the number of those that do not work, as an exit code."""
    failed = 0
    with (
        tempfile.TemporaryDirectory(prefix="crestgate-clients-") as folder,
        running_service(Path(folder, "service")) as (http, grpc),
    ):
        for name in names:
            try:
                print(f"{name}: {check_language(name, Path(folder, name), openapi, http, grpc)}", flush=True)
            except CheckError as error:
                failed += 1
                print(f"{name}: FAILED: {error}", flush=True)
    return min(failed, 1)


def check_language(name: str, folder: Path, openapi: Path, http: str, grpc: str) -> str:
    """Generate, compile and call; what was found, in one line."""
    language = LANGUAGES[name]
    missing = [tool for tool in language.tools if shutil.which(tool) is None]
    if missing:
        raise CheckError(f"{' and '.join(missing)} not found: install {language.install}")
    versions = ", ".join(f"{tool} {version(command)}" for tool, command in language.tools.items())
    shutil.copytree(CLIENTS / name, folder)
    shutil.copy(openapi, folder / "openapi.json")
    shutil.copytree(PROTO, folder / "proto", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    started = time.monotonic()
    *builds, call = blocks_of(language.title)
    for block in builds:
        run(block, folder)
    seconds = time.monotonic() - started
    output = run(call.replace(HTTP, http).replace(GRPC, grpc), folder)
    answers = _ANSWER.findall(output)
    expected = [(protocol, allowed) for protocol in language.protocols for allowed in ("true", "false")]
    if answers != expected:
        raise CheckError(f"it should have printed {expected}, and printed:\n{output}")
    calls = "; ".join(f"{protocol} allowed=true, then false" for protocol in language.protocols)
    return f"{versions}; compiled in {seconds:.0f} s; called: {calls}"


def blocks_of(title: str) -> list[str]:
    """The blocks of commands below a heading of the page; the last one calls the service."""
    section = PAGE.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    blocks: list[str] = re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    if len(blocks) < 2:
        raise CheckError(f"{PAGE.relative_to(ROOT)} has no commands under {title!r}")
    return blocks


def run(block: str, folder: Path) -> str:
    """Run commands in a shell, stopping at the first that fails; what they print."""
    process = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", block],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=TIMEOUT)
    except BaseException as error:  # also Ctrl-C: what the shell started goes with it
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            raise CheckError(f"not done within {TIMEOUT:g} s:\n{block}") from None
        raise
    if process.returncode:
        raise CheckError(f"exit code {process.returncode} of:\n{block}{output[-4000:]}")
    return output


def version(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"\d+(\.\d+)+", done.stdout + done.stderr)
    return found[0] if found is not None else "of unknown version"


def environment() -> dict[str, str]:
    """Without Crestgate's own settings; with this Python and these sources."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("CRESTGATE_")}
    env["PYTHONPATH"] = str(ROOT / "src")
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', os.defpath)}"
    return env


@contextmanager
def running_service(folder: Path) -> Iterator[tuple[str, str]]:
    """A service on free ports of loopback, where checks need no key; its HTTP and gRPC addresses."""
    folder.mkdir()
    log = folder / "output"
    command = [sys.executable, "-m", "crestgate", "serve", "--http", "0", "--grpc", "0"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, env=environment(), stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + START_TIMEOUT
        while (listens := _LISTENS.search(log.read_text())) is None:
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the service did not start:\n{log.read_text()}")
            time.sleep(0.05)
        yield listens[1], listens[2]
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
