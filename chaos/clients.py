"""The client processes of a run, and the control process beside them. Every wait for them is bounded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from chaos import ROOT
from chaos.network import Network
from chaos.traffic import Traffic
from integration.child_process import ChildProcess

__all__ = ["Client", "Clients", "Control", "has_pending_batch"]

PATIENCE = 60.0
CALLERS = 8
PAUSE = 0.04
"""Seconds that a caller waits between two calls, on average: the machine has to run the servers, too."""
KINDS = (("threads", "open"), ("tasks", "closed"), ("threads", "local"))
"""Each client: threads or event loops, and its failure policy."""


class _Process(ChildProcess):
    """A Python module in a child process, with messages over its standard input and output."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.program = command[-2]
        paths = [str(ROOT / "src"), str(ROOT), str(ROOT / "tests"), *filter(None, sys.path)]
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                bufsize=0,
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._in, self._out, self._buffer = self.process.stdin.fileno(), self.process.stdout.fileno(), b""

    def say(self, word: str) -> None:
        os.write(self._in, word.encode() + b"\n")


class Client(_Process):
    """One client."""

    def __init__(self, prefix: list[str], task: dict[str, Any], log: Path) -> None:
        self.number: int = task["number"]
        self.journal = Path(task["journal"])
        self.killed = False
        die = ["setpriv", "--pdeathsig", "KILL", "--"]
        super().__init__([*prefix, *die, sys.executable, "-m", "chaos.load", json.dumps(task)], log)


class Control(_Process):
    """Notes how late it wakes."""

    def __init__(self, folder: Path) -> None:
        super().__init__([sys.executable, "-m", "chaos.control"], folder / "control.log")
        self.receive(PATIENCE)

    def lateness(self) -> list[tuple[int, float]]:
        self.say("stop")
        return [(at, late) for at, late in self.receive(PATIENCE)]


class Clients:
    """All clients of a run, those that were killed among them."""

    def __init__(self, network: Network, url: Any, traffic: Traffic, seed: int, folder: Path) -> None:
        self.network = network
        self.url = url
        self.traffic = traffic
        self.seed = seed
        self.folder = folder
        self.shared = True
        self.all: list[Client] = []

    @property
    def running(self) -> list[Client]:
        return [client for client in self.all if not client.killed]

    def launch(self, kind: str, policy: str) -> Client:
        """Start one; it opens its limiter, and waits."""
        number = len(self.all) + 1
        scope = "" if self.shared else f"c{number}."
        task = {
            "url": self.url,
            "number": number,
            "kind": kind,
            "policy": policy,
            "callers": CALLERS,
            "pause": PAUSE,
            "seed": self.seed,
            "journal": str(self.folder / f"journal-{number}"),
            "stalls": str(self.folder / f"stalls-{number}"),
            "traffic": {**asdict(self.traffic), "scope": scope},
            "reads_itself": not self.shared,
        }
        client = Client(self.network.prefix, task, self.folder / f"client-{number}.log")
        self.all.append(client)
        return client

    def start(self) -> None:
        for kind, policy in KINDS if self.shared else [("threads", "open")] * len(KINDS):
            self.launch(kind, policy)
        for client in self.all:
            assert client.receive(PATIENCE) == "ready"
        for client in self.all:
            client.say("go")

    def replace(self, victim: Client) -> None:
        """Kill one, and start another in its place. Whether that can open its store now is not our concern."""
        victim.killed = True
        victim.kill()
        try:
            client = self.launch("threads", "open")
            assert client.receive(PATIENCE) == "ready"
            client.say("go")
        except AssertionError:
            self.all[-1].killed = True

    def signal(self, client: Client, number: signal.Signals) -> None:
        os.kill(client.pid, number)

    def finish(self) -> list[dict[str, Any]]:
        """Stop the load; what each client reports."""
        for client in self.running:
            client.say("stop")
        return [client.receive(PATIENCE) for client in self.running]

    def journals(self) -> list[Path]:
        return sorted(self.folder.glob("journal-*"))

    def stalls(self) -> list[Path]:
        """Of each client, and of each child that it has forked: `stalls-` and the number that its journal has."""
        return sorted(self.folder.glob("stalls-*"))

    def logs(self) -> str:
        texts = [path.read_text(errors="replace")[-1500:] for path in sorted(self.folder.glob("client-*.log"))]
        return "\n".join(filter(None, texts))

    def close(self) -> None:
        for client in self.all:
            if client.process.poll() is None:
                os.kill(client.pid, signal.SIGCONT)
            client.__exit__(None, None, None)


def has_pending_batch(journal: Path) -> bool:
    """Whether a client has sent a batch and has no answer yet, as far as the end of its journal tells."""
    with journal.open("rb") as file:
        file.seek(max(0, journal.stat().st_size - 2000))
        tail = file.read()
    # The first line may be cut by the seek, and the last one because the client is writing it now.
    lines = [json.loads(line) for line in tail.split(b"\n")[1:-1]]
    begun = {line[2] for line in lines if line[0] == "b" and len(line[4]) > 1}
    return bool(begun - {line[2] for line in lines if line[0] == "e"})
