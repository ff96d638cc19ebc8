"""What a check answers when its store cannot: let pass, refuse, or limit in this process alone.

A store that fails must not take the application with it. The policy is the caller's: `open` (the default) admits,
`closed` denies, `local` lets a bounded in-process limiter of the same limits take over. A limit can have a policy of
its own; of those that cannot be reached, the strictest holds for all (closed, then local, then open). Each failure
is counted and logged, the log at most once a second.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence, Set
from typing import Literal, NamedTuple, get_args

from headgate.core.decision import NORMAL, Decision, Detail
from headgate.errors import ConfigError, StoreClosed, StoreError
from headgate.stores.clock import Clock
from headgate.stores.far import known_far, mistake_in
from headgate.stores.forking import fork_safe_lock
from headgate.stores.memory import MemoryStore
from headgate.stores.port import Member, Op, Outcome, PartlyAnswered, Replies, Request

__all__ = ["POLICIES", "Answered", "FailurePolicy", "OnStoreError", "answerable", "check_policy"]

OnStoreError = Literal["open", "closed", "local"]
POLICIES = get_args(OnStoreError)
STRICTEST = ("closed", "local", "open")
RETRY_CLOSED_US = 1_000_000
"""What a denial by `closed` advises: nobody knows when the store will be back, so ask again in a second."""

_log = logging.getLogger("headgate")


class Answered(NamedTuple):
    """The policy's answer to a batch, and what must be given back for it: parts that were reached and charged, of
    requests that are denied because of a part that was not reached."""

    replies: Replies
    undoing: list[Request]


class FailurePolicy:
    """Answers in a failed store's place."""

    def __init__(self, policy: OnStoreError, clock: Clock) -> None:
        self.policy = policy
        self.failures = 0
        self._clock = clock
        self._local: MemoryStore | None = None
        self._lock = fork_safe_lock()
        self._logged_at = float("-inf")
        self._unlogged = 0

    def answer(self, error: StoreError, batch: Sequence[Request]) -> Answered:
        """Outcomes for a batch that the store did not decide, or decided only in part."""
        if isinstance(error, StoreClosed):
            raise error
        mistake = mistake_in(error)
        if mistake is not None:
            raise mistake from None
        if not isinstance(error, PartlyAnswered):
            self.note(error, len(batch), _own(member for request in batch for member in request.members))
            return Answered([self._outcomes(request.op, request.members) for request in batch], [])
        missed = [
            member
            for request, reply in zip(batch, error.replies, strict=True)
            for member, item in zip(request.members, reply, strict=False)  # a repeat has no reply
            if isinstance(item, StoreError)
        ]
        failed = [reply for reply in error.replies if any(isinstance(item, StoreError) for item in reply)]
        self.note(error, len(failed), _own(missed))
        replies: Replies = []
        undoing: list[Request] = []
        for request, reply in zip(batch, error.replies, strict=True):
            outcomes, undo = self._complete(request, reply)
            replies.append(outcomes)
            if undo is not None:
                undoing.append(undo)
        return Answered(replies, undoing)

    def _complete(
        self, request: Request, reply: Sequence[Outcome | StoreError]
    ) -> tuple[list[Outcome], Request | None]:
        """What was reached binds; what was not follows the policy; and the request stays all or nothing."""
        if not reply or not request.members:
            return [], None  # decided before, under the name of its record; or only its record was missed
        pairs = list(zip(request.members, reply, strict=True))
        reached = [(member, item) for member, item in pairs if isinstance(item, Outcome)]
        missed = [member for member, item in pairs if not isinstance(item, Outcome)]
        denied = any(member.binds and not outcome.decision.allowed for member, outcome in reached)
        # Where another part denies, the stand-in must not charge either.
        answers = iter(self._outcomes(Op.PEEK if denied else request.op, missed) if missed else [])
        outcomes = [item if isinstance(item, Outcome) else next(answers) for item in reply]
        refused = any(m.binds and not o.decision.allowed for m, o in zip(request.members, outcomes, strict=True))
        if request.op is not Op.TAKE or denied or not refused:
            return outcomes, None
        back = [
            Member(member.key, member.algorithm, member.cost, True, outcome.tick, member.cost, None, outcome.token)
            for member, outcome in reached
            if outcome.decision.allowed and member.cost
        ]
        return outcomes, Request(Op.GIVE_BACK, back) if back else None

    def _outcomes(self, op: Op, members: Sequence[Member]) -> list[Outcome]:
        """What stands in for members that were not reached: all under the strictest of their policies. Those that
        do not bind hold up nothing, so for them alone it is `open`."""
        policies = {member.policy or self.policy for member in members if member.binds} or {"open"}
        policy = next(strict for strict in STRICTEST if strict in policies)
        if policy != "local":
            return [self._outcome(member, policy if member.binds else "open") for member in members]
        # Of limits that only the store knows there is nothing to go by here.
        known = [member for member in members if not known_far(member.algorithm)]
        try:
            decided = iter(self.locally(Request(op, known)))
        except StoreError:  # no room there for a limit that a caller wrote out
            return [self._outcome(member, "closed" if member.binds else "open") for member in members]
        return [self._outcome(m, "open") if known_far(m.algorithm) else next(decided) for m in members]

    def locally(self, request: Request) -> list[Outcome]:
        """What the limiter of this process, which stands in under `local`, makes of a request: also of one that gives
        back what was taken there."""
        (reply,) = self._stand_in().apply([request])
        return [Outcome(_because(outcome.decision, "fallback"), outcome.tick) for outcome in reply]

    def _stand_in(self) -> MemoryStore:
        """The limiter of this process, made when it is first needed."""
        with self._lock:
            if self._local is None:
                self._local = MemoryStore(clock=self._clock)
            return self._local

    def note(self, error: StoreError, requests: int = 1, own: Set[str] = frozenset()) -> None:
        """Count and log what a store did not answer; `own` are the policies of limits that have one of their own."""
        now = time.monotonic()
        with self._lock:
            self.failures += requests
            self._unlogged += requests
            if now - self._logged_at < 1.0:
                return
            self._logged_at = now
            unlogged, self._unlogged = self._unlogged, 0
        policy = f"{self.policy} (rules: {', '.join(sorted(own))})" if own else self.policy
        _log.warning("store error, answering by on_store_error=%s (%d since last said): %s", policy, unlogged, error)

    def _outcome(self, member: Member, policy: str) -> Outcome:
        algorithm = member.algorithm
        parts: tuple[Decision, ...] | None = () if known_far(algorithm) else None
        if member.cost > algorithm.ceiling:  # what can never pass needs no store to be denied
            return Outcome(Decision(algorithm, False, algorithm.capacity, None, 0, None), 0)
        if policy == "open":
            return Outcome(Decision(algorithm, True, algorithm.capacity, 0, 0, _detail("fail_open", parts)), 0)
        detail = _detail("fail_closed", parts)
        return Outcome(Decision(algorithm, False, 0, RETRY_CLOSED_US, RETRY_CLOSED_US, detail), 0)


def _own(members: Iterable[Member]) -> set[str]:
    """The policies of limits that have one of their own, and may hold somebody up."""
    return {member.policy for member in members if member.binds and member.policy is not None}


def check_policy(policy: object) -> None:
    if policy not in POLICIES:
        raise ConfigError(f"on_store_error must be one of {', '.join(POLICIES)}, not {policy!r}")


def answerable(op: Op) -> bool:
    """Whether an operation may be answered in the store's place. Forgetting a counter may not: it was not done."""
    return op is Op.TAKE or op is Op.PEEK


def _detail(reason: str, parts: tuple[Decision, ...] | None = None) -> Detail:
    return Detail(reason, None, NORMAL, parts)


def _because(decision: Decision, reason: str) -> Decision:
    allowed, remaining = decision.allowed, decision.remaining
    return Decision(decision._algorithm, allowed, remaining, decision._wait, decision._reset, _detail(reason))
