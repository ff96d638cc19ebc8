"""Communication with a worker process, line by line: contenders run in their own processes and wait for their turns."""

from __future__ import annotations

import json
import os
import select
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.children import child

__all__ = ["ContenderError", "Worker"]

REPLY_SECONDS = 60


class ContenderError(Exception):
    """A contender failed, or did not answer in time."""


class Worker:
    """A worker process. It gets an order when it starts and a line for each turn; it exits with the stack."""

    def __init__(
        self, stack: ExitStack, python: Path, root: Path, module: str, order: dict[str, Any], name: str
    ) -> None:
        command = [str(python), "-m", module, json.dumps(order)]
        process = stack.enter_context(child(command, folder=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        assert process.stdin is not None
        assert process.stdout is not None
        self.orders = process.stdin.fileno()
        self.close_orders = process.stdin.close
        self.replies = process.stdout
        self.name = name

    def go(self) -> None:
        try:
            os.write(self.orders, b"go\n")
        except BrokenPipeError:
            raise ContenderError(f"{self.name} ended too early") from None

    def finish(self) -> None:
        self.close_orders()

    def read(self, what: str) -> Any:
        """The single value in the next line of the worker."""
        if not select.select([self.replies], [], [], REPLY_SECONDS)[0]:
            raise ContenderError(f"{self.name} did not answer within {REPLY_SECONDS} seconds")
        line = self.replies.readline()
        reply: dict[str, Any] = json.loads(line) if line else {"error": "ended too early"}
        if what not in reply:
            raise ContenderError(f"{self.name}: {reply.get('error', reply)}")
        return reply[what]
