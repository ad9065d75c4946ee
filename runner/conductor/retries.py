"""Asks again while a neighbour is away. Only for calls that are idempotent by their own ids; never for user input."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from runner.core.errors import HostUnavailableError, ManagerUnavailableError
from standfast_chassis.errors import StandfastError

T = TypeVar("T")

_log = structlog.get_logger("standfast.runner.retries")

# Answers that mean: ask again. PENDING: the host agent is still observing.
_ASK_AGAIN = frozenset(
    {
        "OBSERVATION_PENDING",
        "HOST_UNAVAILABLE",
        "MANAGER_UNAVAILABLE",
        "ENGINE_UNAVAILABLE",
        "SUPERVISOR_UNAVAILABLE",
        "STORE_BUSY",
        "QUEUE_FULL",
        "STORE_CLOSED",
        "TASKS_CLOSED",
        "INTERNAL",
    }
)


def is_away(error: StandfastError) -> bool:
    """The neighbour itself gave no answer."""
    return isinstance(error, (ManagerUnavailableError, HostUnavailableError))


def is_passing(error: StandfastError) -> bool:
    """It may be otherwise in a moment."""
    return is_away(error) or error.reason in _ASK_AGAIN


async def ask(
    call: Callable[[], Awaitable[T]],
    *,
    what: str,
    first_s: float,
    max_s: float,
    for_s: float | None,
    again: Callable[[StandfastError], bool] = is_passing,
) -> T:
    """Calls until it answers; `for_s` None: for as long as the task lives. Raises the last error after `for_s`."""
    loop = asyncio.get_running_loop()
    deadline = None if for_s is None else loop.time() + for_s
    wait_s = first_s
    is_first = True
    while True:
        try:
            return await call()
        except StandfastError as error:
            if not again(error) or (deadline is not None and loop.time() + wait_s > deadline):
                raise
            if is_first:
                _log.info("asking again", what=what, reason=error.reason)
                is_first = False
        # Many turns wait for one manager: they must not all come back in the same instant.
        await asyncio.sleep(wait_s * random.uniform(0.8, 1.2))
        wait_s = min(wait_s * 2, max_s)
