"""What one connection is to the service: its key, its protocol version, and the commands about these.

Clients send some of them when they connect, and expect an answer although they need none: the name and version of
their library, the database, the list of commands. They are answered as far as they mean something here.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Final

import crestgate
from crestgate.errors import InvalidRequestError
from crestgate.http.client_address import peer_address
from crestgate.service.auth.guard import Refusal
from crestgate.service.errors import ApiError
from crestgate.service.resp.commands import shown, wrong_arguments
from crestgate.service.resp.encoder import EMPTY_ARRAY, EMPTY_MAP, OK, encode_bulk, encode_integer, encode_map

if TYPE_CHECKING:
    from crestgate.service.auth.guard import Guard
    from crestgate.service.auth.keys import Caller, Scope

__all__ = ["SESSION_COMMANDS", "Session"]

MAX_NAME: Final = 100
"""Bytes of a connection's name."""
PONG: Final = b"+PONG\r\n"
UNTIL_AUTH: Final = frozenset(("AUTH", "HELLO", "QUIT", "RESET"))
"""Commands that need no key."""
KEY_REQUIRED: Final = "Authentication required: send AUTH with an API key"
_ids: Final = count(1)


class Session:
    """One connection."""

    def __init__(self, guard: Guard, check_scope: Scope | None, peer: str | None) -> None:
        """`check_scope` is the scope that checks need, None where they are open; `peer` is the client's address."""
        self.id = next(_ids)
        self.address = peer_address(peer)
        self.protocol = 2
        self.name = b""
        self.closing = False
        """Whether the connection is closed behind the current reply."""
        self._guard = guard
        self._check_scope = check_scope
        self._token: bytes | None = None

    def authorize(self) -> Caller | None:
        """The caller, for checks; None for one without a key that needs none. ApiError for a caller who may not check:
        the key may have been revoked since it was sent."""
        if self._token is None:
            if self._check_scope is None:
                return None
            raise ApiError(401, KEY_REQUIRED)
        return self._admit(self._check_scope, self._token)

    def authorize_write(self) -> Caller | None:
        """The same for a command that needs the scope `write`."""
        if self._token is None:
            raise ApiError(401, KEY_REQUIRED)
        return self._admit("write", self._token)

    def _admit(self, scope: Scope | None, token: bytes) -> Caller | None:
        admitted = self._guard.admit(scope, [(b"x-api-key", token)], self.address, scope == "write")
        if isinstance(admitted, Refusal):
            raise ApiError(admitted.status, admitted.detail, admitted.headers)
        return admitted

    def answer(self, name: str, command: list[bytes]) -> bytes:
        """The reply to a command of SESSION_COMMANDS. ApiError or InvalidRequestError for one that is refused."""
        if self._check_scope is not None and self._token is None and name not in UNTIL_AUTH:
            raise ApiError(401, KEY_REQUIRED)
        return SESSION_COMMANDS[name](self, command)

    def authenticate(self, token: bytes) -> None:
        """Use this key from now on; ApiError, and nothing changes, if there is no such key."""
        if not token:
            raise ApiError(401, "unknown API key: it is empty", code="WRONGPASS")
        admitted = self._guard.admit(None, [(b"x-api-key", token)], self.address)
        if isinstance(admitted, Refusal):
            raise ApiError(admitted.status, admitted.detail, code="WRONGPASS" if admitted.status == 401 else "BUSY")
        self._token = token

    def auth(self, command: list[bytes]) -> bytes:
        """AUTH [user] key. The key says who it is: any user name will do."""
        if len(command) not in (2, 3):
            raise wrong_arguments("AUTH")
        self.authenticate(command[-1])
        return OK

    def hello(self, command: list[bytes]) -> bytes:
        """HELLO [2 | 3 [AUTH user key] [SETNAME name]]."""
        protocol = self.protocol
        if len(command) > 1:
            if command[1] not in (b"2", b"3"):
                raise ApiError(400, "unsupported protocol version: there are 2 and 3", code="NOPROTO")
            protocol = int(command[1])
        name, token = self.name, None
        position = 2
        while position < len(command):
            option, left = command[position].upper(), len(command) - position - 1
            if option == b"AUTH" and left >= 2:
                token = command[position + 2]
                position += 3
            elif option == b"SETNAME" and left >= 1:
                name = _connection_name(command[position + 1])
                position += 2
            else:
                raise InvalidRequestError("", f"Syntax error in HELLO option {shown(command[position])}")
        if token is not None:
            self.authenticate(token)
        elif self._check_scope is not None and self._token is None:
            raise ApiError(401, "HELLO must be called with the client already authenticated: HELLO 3 AUTH default KEY")
        self.protocol, self.name = protocol, name
        fields = {
            "server": encode_bulk(b"crestgate"),
            "version": encode_bulk(crestgate.__version__.encode()),
            "proto": encode_integer(protocol),
            "id": encode_integer(self.id),
            "mode": encode_bulk(b"standalone"),
            "role": encode_bulk(b"master"),
            "modules": EMPTY_ARRAY,
        }
        return encode_map(fields, protocol)

    def ping(self, command: list[bytes]) -> bytes:
        if len(command) > 2:
            raise wrong_arguments("PING")
        return PONG if len(command) == 1 else encode_bulk(command[1])

    def echo(self, command: list[bytes]) -> bytes:
        if len(command) != 2:
            raise wrong_arguments("ECHO")
        return encode_bulk(command[1])

    def quit(self, _: list[bytes]) -> bytes:
        self.closing = True
        return OK

    def reset(self, _: list[bytes]) -> bytes:
        """As if it had just connected."""
        self._token, self.protocol, self.name = None, 2, b""
        return b"+RESET\r\n"

    def select(self, command: list[bytes]) -> bytes:
        if len(command) != 2:
            raise wrong_arguments("SELECT")
        if command[1] != b"0":
            raise InvalidRequestError("", "DB index is out of range: there is one database, 0")
        return OK

    def command(self, command: list[bytes]) -> bytes:
        """COMMAND, which redis-cli calls for its hints: there are none."""
        kind = command[1].upper() if len(command) > 1 else b""
        if kind == b"COUNT":
            return encode_integer(0)
        return EMPTY_MAP if kind == b"DOCS" and self.protocol == 3 else EMPTY_ARRAY

    def client(self, command: list[bytes]) -> bytes:
        kind = command[1].upper() if len(command) > 1 else b""
        if kind == b"ID" and len(command) == 2:
            return encode_integer(self.id)
        if kind == b"GETNAME" and len(command) == 2:
            return encode_bulk(self.name or None, self.protocol)
        if kind == b"SETNAME" and len(command) == 3:
            self.name = _connection_name(command[2])
            return OK
        if kind == b"SETINFO" and len(command) == 4:
            return OK
        raise InvalidRequestError("", "unknown CLIENT subcommand: there are ID, GETNAME, SETNAME and SETINFO")

    def info(self, _: list[bytes]) -> bytes:
        """What clients look for before they send anything else: whether the server is ready, and its role."""
        lines = (
            "# Server",
            f"crestgate_version:{crestgate.__version__}",
            "redis_mode:standalone",
            "loading:0",
            "role:master",
            "",
        )
        return encode_bulk("\r\n".join(lines).encode())


SESSION_COMMANDS: Final[dict[str, Callable[[Session, list[bytes]], bytes]]] = {
    "AUTH": Session.auth,
    "CLIENT": Session.client,
    "COMMAND": Session.command,
    "ECHO": Session.echo,
    "HELLO": Session.hello,
    "INFO": Session.info,
    "PING": Session.ping,
    "QUIT": Session.quit,
    "RESET": Session.reset,
    "SELECT": Session.select,
}


def _connection_name(name: bytes) -> bytes:
    if len(name) > MAX_NAME or not name.isascii() or not name.decode().isprintable() or b" " in name:
        raise InvalidRequestError("", f"Client names are at most {MAX_NAME} letters, digits and signs, without blanks")
    return name
