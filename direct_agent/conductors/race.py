"""Runs one piece of work against a cancellation: whoever comes first, and nothing is left running."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from direct_agent.ports import Cancellation

T = TypeVar("T")

CLOSE_S = 0.4
"""How long cancelled work may take to let go; a stuck stream must not hold the caller half a second."""


async def against_cancel(work: Coroutine[Any, Any, T], cancel: Cancellation) -> T | None:
    """The work's result; None when the cancellation came first, or came while the work was finishing."""
    if cancel.is_set():
        work.close()
        return None
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_watched(cancel))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        # A result that arrives together with the cancellation is discarded, however complete it is.
        if cancel.is_set() or not task.done():
            return None
        return task.result()
    finally:
        for each in (task, watch):
            each.cancel()
        await asyncio.wait({task, watch}, timeout=CLOSE_S)


async def _watched(cancel: Cancellation) -> None:
    await cancel.wait()
