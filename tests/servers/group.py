"""A group of servers: a cluster, or a primary with its replica. Operations apply to each member."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from servers.machine import ServerError
from servers.process import Server, ServerProcess

__all__ = ["ServerGroup"]


class ServerGroup(Server):
    """Several servers. `start()` starts those that do not run, so it also restarts killed ones."""

    @property
    @abstractmethod
    def members(self) -> Sequence[ServerProcess]:
        """All members, dependencies first."""

    @abstractmethod
    def assemble(self) -> None:
        """Start them, connect them to each other, and wait until they work together; done at every start."""

    @property
    def pids(self) -> list[int]:
        return [pid for member in self.members for pid in member.pids]

    def start(self) -> None:
        try:
            self.assemble()
        except TimeoutError as error:
            logs = "\n".join(f"{member.kind} on port {member.port}:\n{member.log_tail(8)}" for member in self.members)
            raise ServerError(f"{error}; their logs end:\n{logs}") from error

    def bring_up(self, members: Sequence[ServerProcess]) -> None:
        """Start the members that do not run."""
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
