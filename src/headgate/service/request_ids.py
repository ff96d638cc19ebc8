"""Under which id a request is in the log: its caller's own, or one that no other request of this service has."""

from __future__ import annotations

import itertools
import re
import secrets
from typing import Final, final

from headgate.service.asgi import Fields

__all__ = ["RequestIds"]

_WELL_FORMED: Final = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


@final
class RequestIds:
    """The ids of one worker."""

    def __init__(self) -> None:
        self.start = secrets.token_hex(6)
        self.numbers = itertools.count(1)

    def of(self, fields: Fields) -> str:
        """The caller's own, if it is one that can be written down; else the next of this worker."""
        told = fields.get(b"x-request-id")
        if told is not None and _WELL_FORMED.fullmatch(told):
            return told.decode()
        return f"{self.start}-{next(self.numbers):x}"
