"""What an installed Crestgate must do on any machine: run after each build, on nothing but the wheel.

    python tools/smoke.py                    import, version, checks in memory and in shared memory
    python tools/smoke.py --expect compiled  and it must be that build
    python tools/smoke.py --http             and `crestgate serve` answers one check; needs the extra `server`

Needs the standard library only, and must not find the source tree: what is tested is what was installed.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

PATIENCE = 60.0
"""Seconds until `crestgate serve` must have answered: a busy machine is not a fault."""


def check_version(expected: str) -> str:
    run = subprocess.run([sys.executable, "-m", "crestgate", "--version"], capture_output=True, text=True, check=True)
    script = Path(sys.executable).with_name("crestgate")
    if script.exists():
        by_script = subprocess.run([str(script), "--version"], capture_output=True, text=True, check=True)
        assert by_script.stdout == run.stdout, f"{by_script.stdout!r} is not {run.stdout!r}"
    shown = run.stdout.strip()
    assert not expected or shown.endswith(f"({expected})"), f"{shown}: expected the build to be {expected}"
    return shown


def check_decisions(url: str) -> None:
    from crestgate import Limiter

    with Limiter(url) as limiter:
        allowed = [limiter.check("user:42", "3/hour").allowed for _ in range(5)]
    assert allowed == [True, True, True, False, False], f"{url}: {allowed}"


def check_shared(folder: Path) -> None:
    """Two processes, one counter."""
    url = f"shared://{folder / 'counters'}"
    code = f"from crestgate import Limiter; print(Limiter({url!r}).check('user:1', '2/hour').allowed)"
    shown = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=folder
        ).stdout.strip()
        for _ in range(3)
    ]
    assert shown == ["True", "True", "False"], f"{url}: {shown}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def check_http(folder: Path) -> None:
    """`crestgate serve` with its defaults answers one check."""
    http, grpc = free_port(), free_port()
    environment = {
        **os.environ,
        "CRESTGATE_SERVER__HTTP": f"127.0.0.1:{http}",
        "CRESTGATE_SERVER__GRPC": f"127.0.0.1:{grpc}",
    }
    log = folder / "serve.log"
    with log.open("w") as file:
        command = [sys.executable, "-m", "crestgate", "serve"]
        service = subprocess.Popen(command, cwd=folder, env=environment, stdout=file, stderr=file)
    try:
        answer = _first_answer(f"http://127.0.0.1:{http}", service, log)
        assert answer["allowed"] is True, answer
    finally:
        service.terminate()
        try:
            service.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            service.kill()
            raise


def _first_answer(url: str, service: subprocess.Popen[bytes], log: Path) -> dict[str, object]:
    body = json.dumps({"context": {"ip": "192.0.2.1", "path": "/orders", "method": "GET"}}).encode()
    request = urllib.request.Request(f"{url}/api/v1/check", body, {"Content-Type": "application/json"})
    until = time.monotonic() + PATIENCE
    while True:
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as response:
                answer: dict[str, object] = json.load(response)
                return answer
        except urllib.error.HTTPError as error:
            raise AssertionError(f"HTTP {error.code}: {error.read().decode()}") from None
        except OSError as error:
            if service.poll() is not None or time.monotonic() > until:
                raise AssertionError(f"`crestgate serve` did not answer ({error}): {log.read_text()}") from None
            time.sleep(0.05)


def main() -> int:
    parser = argparse.ArgumentParser(description="Checks an installed Crestgate.")
    parser.add_argument("--expect", default="", help="'compiled' or 'pure Python'")
    parser.add_argument("--http", action="store_true", help="also start `crestgate serve`")
    options = parser.parse_args()
    import crestgate

    source = Path(__file__).resolve().parent.parent / "src"
    assert not Path(crestgate.__file__).resolve().is_relative_to(source), "this is the source tree, nothing installed"
    print(check_version(options.expect), "on", sys.version.split()[0], flush=True)
    check_decisions("memory://")
    done = ["memory"]
    with tempfile.TemporaryDirectory() as name:
        if sys.platform == "linux":  # elsewhere shared:// says that it needs Linux
            check_shared(Path(name))
            done.append("shared memory")
        if options.http:
            check_http(Path(name))
            done.append("HTTP")
    print(f"ok: {', '.join(done)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
