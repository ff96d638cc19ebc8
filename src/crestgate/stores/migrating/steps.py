"""Steps: what to send to which store next, without I/O. Each is a generator, and several run side by side.

A step yields calls and is sent their replies, in the same order. `run_together` lets several advance at the same pace,
so that a batch of any size takes as many round trips as its slowest request.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TypeAlias, TypeVar

from crestgate.errors import StoreError
from crestgate.stores.multi_node import Round, RoundResults
from crestgate.stores.port import Outcome, PartialStoreError, Request

__all__ = ["Call", "Reply", "Steps", "as_rounds", "outcomes_of", "run_together"]

T = TypeVar("T")
Call: TypeAlias = tuple[int, Request]
"""A store's number, and the request to send there."""
Reply: TypeAlias = Sequence[Outcome | StoreError]
Steps: TypeAlias = Generator[list[Call], list[Reply], T]


def run_together(steps: Sequence[Steps[T]]) -> Steps[list[T | StoreError]]:
    """Run all of them side by side; returns their results, or the errors that they raised."""
    results: list[T | StoreError | None] = [None] * len(steps)
    calls: list[list[Call]] = [[] for _ in steps]
    active = list(range(len(steps)))

    def advance(index: int, replies: list[Reply] | None) -> bool:
        try:
            calls[index] = next(steps[index]) if replies is None else steps[index].send(replies)
        except StopIteration as finished:
            results[index] = finished.value
        except StoreError as error:
            results[index] = error
        else:
            return True
        return False

    active = [index for index in active if advance(index, None)]
    while active:
        replies = iter((yield [call for index in active for call in calls[index]]))
        parts = [(index, [next(replies) for _ in calls[index]]) for index in active]
        active = [index for index, part in parts if advance(index, part)]
    return [result for result in results if result is not None]


def as_rounds(steps: Steps[T]) -> Generator[Round, RoundResults, T]:
    """The same as rounds: the requests for each store, in order."""
    try:
        calls = next(steps)
        while True:
            round_: Round = {}
            positions = []
            for store, request in calls:
                requests = round_.setdefault(store, [])
                positions.append((store, len(requests)))
                requests.append(request)
            results: RoundResults = (yield round_) if round_ else {}
            replies = [
                _reply(results[store], position, request)
                for (store, position), (_, request) in zip(positions, calls, strict=True)
            ]
            calls = steps.send(replies)
    except StopIteration as finished:
        result: T = finished.value
        return result


def _reply(result: Sequence[Reply] | StoreError, position: int, request: Request) -> Reply:
    if isinstance(result, PartialStoreError):
        return result.outcomes[position]
    if isinstance(result, StoreError):
        return [result] * max(len(request.members), 1)
    return result[position]


def outcomes_of(reply: Reply) -> list[Outcome]:
    """The outcomes of a call; StoreError if one is missing."""
    outcomes = [item for item in reply if isinstance(item, Outcome)]
    if len(outcomes) < len(reply):
        raise next(item for item in reply if isinstance(item, StoreError))
    return outcomes
