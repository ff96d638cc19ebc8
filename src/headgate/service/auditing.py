"""Audit entries of what is done to counters: one before it is tried, and one that says what came of it.

An operator who reads the log must know whether a reset was done. The first entry is written before the store is asked,
so a worker that is killed in between leaves `reset requested` without an outcome, and never a reset that nobody knows
of. `reset failed` means that the store did not confirm it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from headgate.rules.editor import Editor

__all__ = ["audited", "note_outcome", "note_request"]

T = TypeVar("T")


async def audited(editor: Editor, action: str, subjects: Sequence[str], work: Coroutine[Any, Any, T]) -> T:
    """What comes of some work on the counters of these subjects. Nothing is done if the log cannot be written."""
    try:
        await note_request(editor, action, subjects)
    except BaseException:
        work.close()
        raise
    try:
        result = await work
    except BaseException:
        await note_outcome(editor, action, subjects, False)
        raise
    await note_outcome(editor, action, subjects, True)
    return result


async def note_request(editor: Editor, action: str, subjects: Sequence[str]) -> None:
    """Say that something is about to be tried."""
    await asyncio.to_thread(editor.note, f"{action} requested", *dict.fromkeys(subjects))


async def note_outcome(editor: Editor, action: str, subjects: Sequence[str], done: bool) -> None:
    """Say what came of it. An error is logged."""
    await asyncio.to_thread(editor.note_outcome, action, done, *dict.fromkeys(subjects))
