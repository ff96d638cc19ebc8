"""The bounds over all connections of a worker."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from crestgate.runtime.connection_budget import MAX_CONNECTIONS, ConnectionBudget, max_connections

LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
from crestgate.runtime.connection_budget import max_connections, raise_file_limit
print(raise_file_limit(), resource.getrlimit(resource.RLIMIT_NOFILE)[0], max_connections())
"""


@pytest.mark.parametrize(
    ("files", "connections"), [(1024, 768), (256, 192), (100, 36), (64, 2), (10, 2), (1_000_000, MAX_CONNECTIONS)]
)
def test_files_are_reserved_for_other_uses(files: int, connections: int) -> None:
    assert max_connections(files) == connections


def test_soft_limit_is_raised_to_the_hard_one() -> None:
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] >= 512
    program = LIMITED.format(soft=128, hard=512)
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert output.split() == ["512", "512", "384"]


def test_one_listener_cannot_use_all_connections() -> None:
    budget = ConnectionBudget(max_connections=8)
    assert sum([budget.admit("grpc") for _ in range(20)]) == 6
    assert sum([budget.admit("http") for _ in range(20)]) == 2
    budget.release("grpc")
    assert budget.admit("http")
    assert not budget.admit("grpc")
    assert (budget.connections("grpc"), budget.connections("http")) == (5, 3)


def test_third_listener_shares_the_same_budget() -> None:
    budget = ConnectionBudget(max_connections=8, max_bytes=100)
    assert sum([budget.admit("resp") for _ in range(20)]) == 6
    assert [budget.admit("http"), budget.admit("grpc"), budget.admit("grpc")] == [True, True, False]
    assert budget.hold("resp", 75)
    assert not budget.hold("resp", 1)
    assert budget.hold("grpc", 25)


def test_bytes_are_bounded_together() -> None:
    budget = ConnectionBudget(max_connections=8, max_bytes=100)
    assert budget.hold("http", 60)
    assert not budget.hold("grpc", 41)
    assert budget.hold("grpc", 40)
    budget.free("http", 60)
    assert budget.hold("http", 60)
    assert budget.held_bytes == 100


def test_one_listener_cannot_use_all_bytes() -> None:
    budget = ConnectionBudget(max_connections=8, max_bytes=100)
    assert not budget.hold("http", 76)
    assert budget.hold("http", 75)
    assert not budget.hold("http", 1)
    assert budget.hold("grpc", 25)
    budget.free("http", 75)
    assert budget.hold("grpc", 50)
    assert not budget.hold("grpc", 1)


def test_backlog_fits_the_reserved_files() -> None:
    for files in (256, 1024, 4096, 65_536):
        budget = ConnectionBudget(max_connections(files))
        assert 2 * budget.backlog <= files - budget.max_connections
