"""What a scenario says when something is not as it must be."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

_POLL_S = 0.05
_WAIT_S = 30.0


class LabCheckError(AssertionError):
    """Something is not as it must be; the message names what was expected and what was found."""


def check(found: object, expected: object, what: str, context: object = "") -> None:
    """Raises LabCheckError unless they are equal. `context` is shown with the difference."""
    if found != expected:
        raise LabCheckError(f"{what}: expected {expected!r}, found {found!r}" + (f"\n{context}" if context else ""))


def check_that(holds: bool, what: str, context: object = "") -> None:
    """Raises LabCheckError unless it holds. `what` is a claim."""
    if not holds:
        raise LabCheckError(f"does not hold: {what}" + (f"\n{context}" if context else ""))


async def until(holds: Callable[[], bool], what: str, *, timeout_s: float = _WAIT_S) -> None:
    """Waits for a state. Raises LabCheckError after the time."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        check_that(time.monotonic() < deadline, f"within {timeout_s} s: {what}")
        await asyncio.sleep(_POLL_S)
