"""The failure policy: what a check returns when its store cannot decide.

A store that fails must not take the application down. `open` (the default) admits, `closed` denies, and `local` limits
in this process alone, by a bounded store of its own, to this instance's share of each limit (limit_share.py). A limit
can have its own policy; of the limits that cannot be decided, the strictest policy applies to all (closed, then local,
then open). Each failure is counted, and logged at most once a second.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence, Set
from typing import NamedTuple

from crestgate.core.decision import NORMAL, Decision, Detail
from crestgate.core.failure_policies import FAILURE_POLICIES, OnStoreError
from crestgate.errors import ConfigError, StoreClosedError, StoreError
from crestgate.limiter.limit_share import LimitShares
from crestgate.limiter.outages import OutageWatch, RecentAnswers
from crestgate.runtime.clock import Clock
from crestgate.runtime.fork_safety import fork_safe_lock
from crestgate.stores.memory import MemoryStore
from crestgate.stores.port import BatchOutcomes, Member, Op, Outcome, PartialStoreError, Request
from crestgate.stores.server_side_limits import is_server_side, rejection_in

__all__ = ["FailurePolicy", "Fallback", "check_policy", "is_answerable"]

BY_STRICTNESS = ("closed", "local", "open")
RETRY_CLOSED_US = 1_000_000
"""The retry time of a denial by `closed`: nobody knows when the store will be back, so retry in a second."""

_log = logging.getLogger("crestgate")


class Fallback(NamedTuple):
    """The policy's replies to a batch, and the requests that undo what must be given back for them: parts that were
    charged, of requests that are denied because another part could not be decided."""

    replies: BatchOutcomes
    undo: list[Request]


class FailurePolicy:
    """Replies in place of a store that failed."""

    def __init__(self, policy: OnStoreError, clock: Clock, instances: int = 1) -> None:
        self.policy = policy
        self.shares = LimitShares(instances)
        self.failures = 0
        self.on_failure: Callable[[StoreError, int], None] | None = None
        """Called with each error, and the number of requests that it failed."""
        self.recent = RecentAnswers()
        self.outages: OutageWatch | None = None
        """Set by the backend of a store with servers."""
        self._clock = clock
        self._local: MemoryStore | None = None
        self._lock = fork_safe_lock()
        self._logged_at = float("-inf")
        self._unlogged = 0

    def answer(self, error: StoreError, batch: Sequence[Request]) -> Fallback:
        """Outcomes for a batch that the store did not decide, or decided only in part."""
        if isinstance(error, StoreClosedError):
            raise error
        rejection = rejection_in(error)
        if rejection is not None:
            raise rejection from None
        if not isinstance(error, PartialStoreError):
            self.record(error, len(batch), _policies_of(member for request in batch for member in request.members))
            self._count_answers(error, len(batch))
            return Fallback([self._outcomes(request.op, request.members) for request in batch], [])
        missed = [
            member
            for request, reply in zip(batch, error.outcomes, strict=True)
            for member, item in zip(request.members, reply, strict=False)  # a replayed request has no outcomes
            if isinstance(item, StoreError)
        ]
        failed = [reply for reply in error.outcomes if any(isinstance(item, StoreError) for item in reply)]
        self.record(error, len(failed), _policies_of(missed))
        self._count_answers(error, len(failed))
        replies: BatchOutcomes = []
        undo: list[Request] = []
        for request, reply in zip(batch, error.outcomes, strict=True):
            outcomes, request_undo = self._complete(request, reply)
            replies.append(outcomes)
            if request_undo is not None:
                undo.append(request_undo)
        return Fallback(replies, undo)

    def _complete(
        self, request: Request, reply: Sequence[Outcome | StoreError]
    ) -> tuple[list[Outcome], Request | None]:
        """Members that the store decided count as decided, the policy decides the others, and the request stays all or
        nothing. Returns the outcomes, and the request that gives back what must not stay charged."""
        if not reply or not request.members:
            return [], None  # replayed; or only its record failed
        pairs = list(zip(request.members, reply, strict=True))
        decided = [(member, item) for member, item in pairs if isinstance(item, Outcome)]
        missed = [member for member, item in pairs if not isinstance(item, Outcome)]
        denied = any(member.binds and not outcome.decision.allowed for member, outcome in decided)
        # Where another member denies, the local store must not charge either.
        answers = iter(self._outcomes(Op.PEEK if denied else request.op, missed) if missed else [])
        outcomes = [item if isinstance(item, Outcome) else next(answers) for item in reply]
        refused = any(m.binds and not o.decision.allowed for m, o in zip(request.members, outcomes, strict=True))
        if request.op is not Op.TAKE or denied or not refused:
            return outcomes, None
        back = [
            Member(member.key, member.algorithm, member.cost, True, outcome.tick, member.cost, None, outcome.token)
            for member, outcome in decided
            if outcome.decision.allowed and member.cost and not member.peeks
        ]
        return outcomes, Request(Op.GIVE_BACK, back) if back else None

    def _outcomes(self, op: Op, members: Sequence[Member]) -> list[Outcome]:
        """Outcomes for members that the store did not decide, all under the strictest of their policies. Members that
        do not bind deny nothing, so for them alone it is `open`."""
        policies = {member.policy or self.policy for member in members if member.binds} or {"open"}
        policy = next(policy for policy in BY_STRICTNESS if policy in policies)
        if policy != "local":
            return [self._outcome(member, policy if member.binds else "open") for member in members]
        # Limits that only the store knows cannot be decided here.
        known = [member for member in members if not is_server_side(member.algorithm)]
        try:
            decided = iter(self.decide_locally(Request(op, known)))
        except StoreError:  # no room there for a limit that a caller wrote out
            return [self._outcome(member, "closed" if member.binds else "open") for member in members]
        return [self._outcome(m, "open") if is_server_side(m.algorithm) else next(decided) for m in members]

    def decide_locally(self, request: Request) -> list[Outcome]:
        """Outcomes of the local store that `local` uses; also for a request that gives back what was taken there."""
        if self.shares.instances > 1:
            request = Request(request.op, self.shares.members(request.members))
        (reply,) = self.local_store().apply([request])
        return [Outcome(_with_reason(outcome.decision, "fallback"), outcome.tick) for outcome in reply]

    def local_store(self) -> MemoryStore:
        """The store of the policy `local`, created when it is first needed."""
        with self._lock:
            if self._local is None:
                self._local = MemoryStore(clock=self._clock)
            return self._local

    def record(self, error: StoreError, requests: int = 1, own: Set[str] = frozenset()) -> None:
        """Count and log requests that the store did not decide; `own` are policies of single limits."""
        if self.on_failure is not None:
            self.on_failure(error, requests)
        now = time.monotonic()
        with self._lock:
            self.failures += requests
            self._unlogged += requests
            if now - self._logged_at < 1.0:
                return
            self._logged_at = now
            unlogged, self._unlogged = self._unlogged, 0
        policy = f"{self.policy} (rules: {', '.join(sorted(own))})" if own else self.policy
        _log.warning("store error, applying on_store_error=%s (%d since last logged): %s", policy, unlogged, error)

    def _count_answers(self, error: StoreError, checks: int) -> None:
        with self._lock:
            self.recent.add(checks, time.monotonic(), str(error))
        if self.outages is not None:
            self.outages.answered(checks)

    def _outcome(self, member: Member, policy: str) -> Outcome:
        algorithm = member.algorithm
        parts: tuple[Decision, ...] | None = () if is_server_side(algorithm) else None
        if member.cost > algorithm.ceiling:  # what can never pass needs no store to be denied
            return Outcome(Decision(algorithm, False, algorithm.capacity, None, 0, None), 0)
        if policy == "open":
            return Outcome(Decision(algorithm, True, algorithm.capacity, 0, 0, _detail("fail_open", parts)), 0)
        detail = _detail("fail_closed", parts)
        return Outcome(Decision(algorithm, False, 0, RETRY_CLOSED_US, RETRY_CLOSED_US, detail), 0)


def _policies_of(members: Iterable[Member]) -> set[str]:
    """The policies that binding limits have of their own."""
    return {member.policy for member in members if member.binds and member.policy is not None}


def check_policy(policy: object) -> None:
    if policy not in FAILURE_POLICIES:
        raise ConfigError(f"on_store_error must be one of {', '.join(FAILURE_POLICIES)}, not {policy!r}")


def is_answerable(op: Op) -> bool:
    """Whether a policy may answer an operation. A reset may not be answered: it was not done."""
    return op is Op.TAKE or op is Op.PEEK


def _detail(reason: str, parts: tuple[Decision, ...] | None = None) -> Detail:
    return Detail(reason, None, NORMAL, parts)


def _with_reason(decision: Decision, reason: str) -> Decision:
    allowed, remaining = decision.allowed, decision.remaining
    return Decision(decision.algorithm, allowed, remaining, decision.wait_us, decision.reset_us, _detail(reason))
