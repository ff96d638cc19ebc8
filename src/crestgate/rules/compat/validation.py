"""Validation of policies and client limits when they are constructed."""

from __future__ import annotations

from collections.abc import Iterable

from crestgate.errors import ConfigError
from crestgate.loader.fields import MAX_INTEGER, describe, join_names

__all__ = ["check_choice", "check_name", "check_whole"]


def check_name(name: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise ConfigError.of(name, f"must be text of at least one character, not {describe(value)}")


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    options = list(choices)
    if value not in options:
        raise ConfigError.of(name, f"must be one of {join_names(options)}, not {describe(value)}")


def check_whole(name: str, value: object, minimum: int, maximum: int = MAX_INTEGER) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
        raise ConfigError.of(name, f"must be a whole number from {minimum} to {maximum}, not {describe(value)}")
