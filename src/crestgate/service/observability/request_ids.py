# mypyc: compile
"""Request ids for the log: the caller's own `X-Request-Id`, or a generated one that is unique in this service."""

from __future__ import annotations

import re
import secrets
from typing import Final, final

from crestgate.service.context import Fields

__all__ = ["RequestIds"]

_WELL_FORMED: Final = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


@final
class RequestIds:
    """Assigns the request ids of one worker."""

    def __init__(self) -> None:
        self.prefix = secrets.token_hex(6)
        self.number = 0
        """Of the last one. It is decimal because compiled code writes no other base without a call of Python's."""

    def of(self, fields: Fields) -> str:
        """The caller's id if it is well formed, else a new one."""
        given = fields.get(b"x-request-id")
        if given is not None and _WELL_FORMED.fullmatch(given):
            return given.decode()
        self.number += 1
        return f"{self.prefix}-{self.number}"
