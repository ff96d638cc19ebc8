"""What the values of views check when they are made: whoever has one has one that can be a rule."""

from __future__ import annotations

from collections.abc import Iterable

from headgate.errors import ConfigError
from headgate.reading.fields import LARGEST, kind_of, listed

__all__ = ["check_choice", "check_name", "check_whole"]


def check_name(what: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{what} must be text of at least one character, not {kind_of(value)}")


def check_choice(what: str, value: object, choices: Iterable[str]) -> None:
    options = list(choices)
    if value not in options:
        raise ConfigError(f"{what} must be one of {listed(options)}, not {kind_of(value)}")


def check_whole(what: str, value: object, least: int, most: int = LARGEST) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ConfigError(f"{what} must be a whole number from {least} to {most}, not {kind_of(value)}")
