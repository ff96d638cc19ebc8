"""Servers that belong together, as one: a cluster, a primary with its replica. What is done to it is done to each."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from servers.process import Server, ServerProcess

__all__ = ["ServerGroup"]


class ServerGroup(Server):
    """Several servers. They come up at the same time, and are then told of each other."""

    @property
    @abstractmethod
    def members(self) -> Sequence[ServerProcess]:
        """All of them, those first that the others need."""

    @abstractmethod
    def join(self) -> None:
        """Tell them of each other, and wait until they work together; called at every start."""

    @property
    def pids(self) -> list[int]:
        return [pid for member in self.members for pid in member.pids]

    def start(self) -> None:
        self.bring_up(self.members)
        self.join()

    def bring_up(self, members: Sequence[ServerProcess]) -> None:
        """Start those of them that do not run."""
        for member in members:
            if not member.running:
                member.launch()
        for member in members:
            member.wait_ready()

    def stop(self) -> None:
        for member in reversed(self.members):
            member.stop()

    def kill(self) -> None:
        for member in self.members:
            member.kill()

    def pause(self) -> None:
        for member in self.members:
            member.pause()

    def resume(self) -> None:
        for member in self.members:
            member.resume()

    def close(self) -> None:
        for member in self.members:
            member.close()
