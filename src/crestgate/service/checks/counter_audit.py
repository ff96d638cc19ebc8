"""Audit log of changes to counters: an entry before each change, and one with its outcome.

An operator must be able to tell whether a reset was done. The first entry is written before the store is called, so a
worker that is killed in between leaves `reset requested` without an outcome, and never an unrecorded reset. `reset
failed` means that the store did not confirm it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from crestgate.rules.editor import Editor

__all__ = ["audit_outcome", "note_request", "run_audited"]

T = TypeVar("T")


async def run_audited(editor: Editor, action: str, subjects: Sequence[str], work: Coroutine[Any, Any, T]) -> T:
    """Await a change to the counters of these subjects. It is not run if the audit log cannot be written."""
    try:
        await note_request(editor, action, subjects)
    except BaseException:
        work.close()
        raise
    try:
        result = await work
    except BaseException:
        await audit_outcome(editor, action, subjects, False)
        raise
    await audit_outcome(editor, action, subjects, True)
    return result


async def note_request(editor: Editor, action: str, subjects: Sequence[str]) -> None:
    """Record that a change was requested."""
    await asyncio.to_thread(editor.note, f"{action} requested", *dict.fromkeys(subjects))


async def audit_outcome(editor: Editor, action: str, subjects: Sequence[str], done: bool) -> None:
    """Record the outcome; errors are logged."""
    await asyncio.to_thread(editor.audit_outcome, action, done, *dict.fromkeys(subjects))
