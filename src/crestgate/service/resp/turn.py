# mypyc: compile
"""The commands of one connection that came together, answered in their order.

Checks and peeks in a row are decided in one call of the store, whatever stands between them that changes nothing. A
command that does (AUTH, RL.RESET) waits until all before it are decided. Where the store answers at once, so does the
turn; else it says that it waits, and the connection awaits it. Every command has a reply, and an error is the reply to
its own command alone.
"""

from __future__ import annotations

from time import perf_counter
from typing import Final, final

from crestgate.core.decision import Decision
from crestgate.errors import InvalidRequestError
from crestgate.limiter.pending_check import PendingCheck, try_decide
from crestgate.service.auth.guard import Guard
from crestgate.service.auth.keys import Scope
from crestgate.service.checks.service import CheckService
from crestgate.service.checks.slices import work_of
from crestgate.service.context import CallContext
from crestgate.service.errors import ApiError, error_response
from crestgate.service.observability.request_ids import RequestIds
from crestgate.service.observability.request_log import RequestLog
from crestgate.service.resp.commands import USAGES, CheckCommands, shown
from crestgate.service.resp.encoder import encode_decision, encode_error, encode_integer, encode_throttle
from crestgate.service.resp.session import SESSION_COMMANDS, Session
from crestgate.stores.port import Op

__all__ = ["DONE", "MAX_TURN_COMMANDS", "MORE", "WAITS", "RespService", "Turn"]

PLANE: Final = "resp"
"""The label in metrics. The status beside it is that of HTTP."""
MAX_TURN_COMMANDS: Final = 128
"""Commands that are handled in one turn of the event loop."""
MAX_TURN_WORK: Final = 128
"""The same in counters that are decided."""
MAX_TURN_SECONDS: Final = 0.001
"""The same in time, for commands that take longer than usual, or a slow machine."""
LOOK_WORK: Final = 32
"""Work between two looks at the clock."""
ERROR_WORK: Final = 4
"""What a refused command counts: an error takes longer than a check."""
CHECK_WORK: Final = 2
"""What each counter of RL.CHECK counts: its limit may have to be parsed."""
DONE: Final = 0
"""All commands of a turn are answered."""
WAITS: Final = 1
"""Something has to be awaited."""
MORE: Final = 2
"""There is more to do, in another turn of the event loop."""
CODES: Final = {401: "NOAUTH", 403: "NOPERM", 429: "BUSY", 503: "UNAVAILABLE"}
"""The first word of an error by its status; ERR for any other."""
THROTTLE: Final = "CL.THROTTLE"
CHECK: Final = "RL.CHECK"
PEEK: Final = "RL.PEEK"
FORGET: Final = "RL.RESET"
THERE_ARE: Final = f"there are {', '.join(USAGES)}, and no keys to read or write"
STATELESS: Final = frozenset(("PING", "ECHO", "COMMAND", "INFO", "SELECT"))
NAMES: Final[dict[bytes, str]] = {
    spelling: name
    for name in [*USAGES, *SESSION_COMMANDS]
    for spelling in (name.encode(), name.lower().encode(), name.capitalize().encode())
}


@final
class RespService:
    """What all connections of one worker share."""

    def __init__(self, checks: CheckService, guard: Guard, check_scope: Scope | None, log: RequestLog) -> None:
        """`check_scope` is the scope that checks need on this listener, None where they are open."""
        self.checks = checks
        self.guard = guard
        self.check_scope = check_scope
        self.log = log
        self.metrics = checks.metrics
        self.commands = CheckCommands(checks)
        self.request_ids = RequestIds()

    def open_session(self, peer: str | None) -> Session:
        return Session(self.guard, self.check_scope, peer)


@final
class Turn:
    """Commands that are being answered. `advance` until it says DONE, and `wait` whenever it says WAITS."""

    def __init__(self, service: RespService, session: Session, commands: list[list[bytes]]) -> None:
        self.service = service
        self.session = session
        self.replies: list[bytes] = []
        self.work = 0
        """In this turn of the event loop."""
        self._commands = commands
        self._index = 0
        self._authorized = False
        self._refusal: bytes | None = None
        """The reply to checks of a caller who may not make them."""
        self._may_write = False
        self._run: list[PendingCheck] = []
        """Checks that are prepared, and not decided yet."""
        self._places: list[int] = []
        """For each of them, the index of its reply."""
        self._names: list[str] = []
        """For each of them, its command."""
        self._reset: PendingCheck | None = None
        call = CallContext({"method": "", "path": PLANE, "headers": ()}, {}, service.request_ids.of({}))
        call.address = session.address
        call.started = perf_counter()
        self._call = call

    def advance(self) -> int:
        """Answer commands as far as that can be done at once: DONE, WAITS or MORE."""
        commands = self._commands
        self.work = 0
        look = LOOK_WORK
        end = perf_counter() + MAX_TURN_SECONDS
        while self._index < len(commands) and not self.session.closing:
            if self.work >= look:
                look = self.work + LOOK_WORK
                if self.work >= MAX_TURN_WORK or perf_counter() > end:
                    return MORE if self._decide() else WAITS
            command = commands[self._index]
            name = NAMES.get(command[0]) or NAMES.get(command[0].upper(), "")
            if name in (THROTTLE, CHECK, PEEK):
                self._prepare(name, command)
            elif name in STATELESS or not name:
                self._answer(name, command)
            elif not self._decide():
                return WAITS
            elif name == FORGET:
                self._index += 1
                if self._prepare_reset(command):
                    return WAITS
                continue
            else:
                self._answer(name, command)
                self._authorized = False
            self._index += 1
        return DONE if self._decide() else WAITS

    async def wait(self) -> None:
        """Await what `advance` waits for."""
        if self._reset is not None:
            await self._forget(self._reset)
        elif self._run:
            checks = self.service.checks
            try:
                with checks.span(self._call, "batch"):
                    decisions = await checks.limiter.decide(self._run)
            except Exception as error:  # noqa: BLE001 - each command gets a reply in any case
                self._fail_run(error)
            else:
                self._finish(decisions)

    def _authorize(self) -> None:
        """Look up whether the caller may check, once for checks in a row."""
        self._authorized = True
        self._refusal = None
        self._may_write = False
        call = self._call
        try:
            call.caller = self.session.authorize()
            self._may_write = call.may_write
        except Exception as error:  # noqa: BLE001 - as above
            self._refusal = self._error(error)

    def _prepare(self, name: str, command: list[bytes]) -> None:
        """Add a check to those that are decided next, or reply with its error."""
        if not self._authorized:
            self._authorize()
        if self._refusal is not None:
            self.work += 1
            self.replies.append(self._refusal)
            return
        commands = self.service.commands
        try:
            if name == THROTTLE:
                pending = commands.throttle(command, self._may_write)
                self.work += 1
            else:
                pending = commands.check(Op.TAKE if name == CHECK else Op.PEEK, name, command, self._may_write)
                self.work += CHECK_WORK * work_of(pending)
        except Exception as error:  # noqa: BLE001 - as above
            self.service.checks.ceiling.admit(1)
            self._refuse(name, error)
            return
        self._places.append(len(self.replies))
        self._names.append(name)
        self._run.append(pending)
        self.replies.append(b"")

    def _decide(self) -> bool:
        """Decide the checks that are prepared; False if that has to be awaited."""
        if self._run:
            checks = self.service.checks
            self._admit()
            decisions = try_decide(checks.backend, self._run) if checks.tracer is None else None
            if decisions is None:
                return False
            self._finish(decisions)
        return True

    def _admit(self) -> None:
        """Count the checks against the limit of this node. Those that exceed it are refused."""
        ceiling = self.service.checks.ceiling
        weights = [weight_of(pending) for pending in self._run]
        if ceiling.admit(sum(weights)) is None:
            return
        run, places, names = self._run, self._places, self._names
        self._run, self._places, self._names = [], [], []
        for i in range(len(run)):
            refusal = ceiling.admit(weights[i])
            if refusal is None:
                self._run.append(run[i])
                self._places.append(places[i])
                self._names.append(names[i])
            else:
                self.replies[places[i]] = self._error(ApiError(refusal.status, refusal.detail))

    def _finish(self, decisions: list[Decision]) -> None:
        """Count the decisions, and reply with them."""
        service, call = self.service, self._call
        checks, metrics = service.checks, service.metrics
        metrics.set_time(checks.clock.ticks())
        protocol = self.session.protocol
        for i in range(len(decisions)):
            decision, pending = decisions[i], self._run[i]
            if pending.op is Op.TAKE:
                checks.count(call, pending, decision)
            name = self._names[i]
            throttles = name == THROTTLE
            self.replies[self._places[i]] = (
                encode_throttle(decision) if throttles else encode_decision(decision, protocol)
            )
            if service.log.checks:
                call.scope["method"] = name
                service.log.check(call, 200, perf_counter() - call.started)
        metrics.count_request(PLANE, 200, len(decisions))
        checks.observe(call, len(decisions), len(decisions) > 1)
        self._clear()

    def _fail_run(self, error: Exception) -> None:
        """Reply with an error to all checks that were to be decided."""
        for place in self._places:
            self.replies[place] = self._error(error)
        self._clear()

    def _clear(self) -> None:
        self._run = []
        self._places = []
        self._names = []

    def _prepare_reset(self, command: list[bytes]) -> bool:
        """RL.RESET: whether there is a reset to await."""
        call = self._call
        try:
            call.caller = self.session.authorize_write()
            self._reset = self.service.commands.check(Op.RESET, FORGET, command, True)
        except Exception as error:  # noqa: BLE001 - as above
            self._refuse(FORGET, error)
            return False
        return True

    async def _forget(self, pending: PendingCheck) -> None:
        service, call = self.service, self._call
        call.scope["method"] = FORGET
        self._reset = None
        self._authorized = False
        try:
            members = await service.checks.reset(call, pending)
        except Exception as error:  # noqa: BLE001 - as above
            self._refuse(FORGET, error)
            return
        self.replies.append(encode_integer(len(members)))
        service.metrics.count_request(PLANE, 200)
        if service.log.calls:
            service.log.call(call, 200, perf_counter() - call.started)

    def _answer(self, name: str, command: list[bytes]) -> None:
        """Reply to a command that decides nothing."""
        self.work += 1
        try:
            if not name:
                raise InvalidRequestError("", f"unknown command {shown(command[0])}: {THERE_ARE}")
            self.replies.append(self.session.answer(name, command))
            self.service.metrics.count_request(PLANE, 200)
        except Exception as error:  # noqa: BLE001 - as above
            self._refuse(name, error)

    def _refuse(self, name: str, error: Exception) -> None:
        """Reply to a command with an error."""
        self.work += ERROR_WORK
        self._call.scope["method"] = name
        self.replies.append(self._error(error))

    def _error(self, error: Exception) -> bytes:
        service = self.service
        response = error_response(self._call, error, service.log)
        service.metrics.count_request(PLANE, response.status)
        code: str = response.members.get("code") or CODES.get(response.status, "ERR")
        detail = response.detail if response.status != 500 else f"{response.detail}: {self._call.request_id}"
        return encode_error(code, detail)


def weight_of(pending: PendingCheck) -> int:
    """What a check counts against the limit of the node: one for each limit that it names, one for rules."""
    return 1 if pending.dimensions is not None else max(len(pending.members), 1)
