"""Reads a member's native store through the supervisor, and waits for it to hold what the CLI printed.

A CLI may print its end before it has written its history (Claude Code 2.1.220: 19 to 104 ms later, observed), so one read is not enough.
"""

from __future__ import annotations

import asyncio
import time

from sandbox_manager.agents.port import SandboxAgent
from sandbox_manager.core.values import NativeLocator, StoreReading, TapFindings
from sandbox_manager.host.adapters.guest_errors import GuestOperationError
from sandbox_manager.host.adapters.guest_link import GuestLink
from sandbox_manager.host.core.store_wait import is_settled_on_disk

# What a supervisor may answer instead of bytes, and the word of StoreReading for it.
_ERRORS = {
    "ABSENT": "ABSENT",
    "SYMLINK": "SYMLINK",
    "NOT_REGULAR": "NOT_REGULAR",
    "OWNER": "OWNER",
    "NLINK": "NLINK",
    "UNREADABLE": "UNREADABLE",
    "ENOSPC": "NO_SPACE",
    "UNWRITABLE": "UNWRITABLE",
}
# The pauses grow with the time waited, so that a history which has come is seen soon after, and a late one is not read too often.
_FIRST_PAUSE_S = 0.005
_PAUSE_GROWTH = 1.25
_PAUSE_MAX_S = 0.1
_PARSE_INLINE_BYTES = 256 * 1024


class StoreWatch:
    """One member's native store. Every method may raise GuestLinkError when the supervisor does not answer."""

    def __init__(self, link: GuestLink, agent: SandboxAgent, slot: int, locator: NativeLocator) -> None:
        self._link = link
        self._agent = agent
        self._slot = slot
        self._location = agent.store_location(locator)

    async def read(self, prefix_length: int) -> StoreReading:
        """One read: digest from byte 0, digest of the prefix, the parsed segment behind it."""
        try:
            found = await self._link.read_store(
                self._slot,
                self._location.base,
                self._location.components,
                prefix_length=prefix_length,
                session=self._location.session_id,
                renderer=self._location.renderer,
            )
        except GuestOperationError as error:
            word = _ERRORS.get(error.guest_reason)
            if word is None:
                raise
            return unreadable(word, prefix_length)
        if found.tail_is_cut:
            return unreadable("TOO_LARGE", prefix_length)
        segment = None
        if found.length >= prefix_length:
            from_start = prefix_length == 0
            if len(found.tail) <= _PARSE_INLINE_BYTES:
                segment = self._agent.read_segment(found.tail, from_start=from_start)
            else:
                segment = await asyncio.to_thread(self._agent.read_segment, found.tail, from_start=from_start)
        return StoreReading(
            error=None,
            length=found.length,
            digest=found.sha256,
            prefix_length=prefix_length,
            prefix_digest=found.prefix_sha256 if found.length >= prefix_length else None,
            segment=segment,
        )

    async def await_turn(
        self, findings: TapFindings, message_id: str, prefix_length: int, wait_s: float
    ) -> tuple[StoreReading, bool]:
        """Reads until everything printed is on disk, or the wait ran out; the reading and whether it is complete.

        When it is not, the slot tries to write beside the store, so that a full or read-only disk is named as the cause.
        """
        ends_at = time.monotonic() + wait_s
        pause_s = _FIRST_PAUSE_S
        while True:
            reading = await self.read(prefix_length)
            if is_settled_on_disk(findings, message_id, reading):
                return reading, True
            if time.monotonic() + pause_s > ends_at:
                break
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * _PAUSE_GROWTH, _PAUSE_MAX_S)
        cause = await self._unwritable()
        return (unreadable(cause, prefix_length) if cause is not None else reading), False

    async def _unwritable(self) -> str | None:
        try:
            await self._link.probe_store(self._slot, self._location.base, self._location.components[:-1])
        except GuestOperationError as error:
            return {"ENOSPC": "NO_SPACE", "UNWRITABLE": "UNWRITABLE"}.get(error.guest_reason)
        return None


def unreadable(error: str, prefix_length: int) -> StoreReading:
    """A reading that gave no bytes, and why."""
    return StoreReading(
        error=error, length=None, digest=None, prefix_length=prefix_length, prefix_digest=None, segment=None
    )
