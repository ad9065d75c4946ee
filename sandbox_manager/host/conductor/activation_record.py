"""What the host agent's journal keeps of one activation, in the order in which it must become durable."""

from __future__ import annotations

import asyncio

from sandbox_manager.core import codec
from sandbox_manager.core.values import ActivationReport, Observation
from sandbox_manager.host.adapters.journal import Journal
from sandbox_manager.host.core.gate import Admission
from standfast_chassis.keys import SigningKey, TokenKind


class ActivationRecord:
    """One activation's rows and signed statements. All methods that write raise StandfastError when the journal could not take it."""

    def __init__(self, journal: Journal, key: SigningKey, activation_id: str) -> None:
        self.observation: Observation | None = None
        self._journal = journal
        self._key = key
        self._activation_id = activation_id
        self._process: asyncio.Task[None] | None = None

    def begin_process(self, process_generation: int, *, was_new: bool, tap_from: int) -> None:
        """Notes the process, without waiting: until FORWARDED, which waits for it, the write and the admission go side by side."""
        self._process = asyncio.get_running_loop().create_task(
            self._journal.process_found(
                self._activation_id, process_generation=process_generation, was_new=was_new, tap_from=tap_from
            )
        )
        self._process.add_done_callback(lambda task: None if task.cancelled() else task.exception())

    def report(self, report: ActivationReport) -> str:
        """The signed report."""
        return self._key.sign(codec.encode(report), TokenKind.ACTIVATION_REPORT)

    async def forwarding(self, admission: Admission, tap_offset: int) -> None:
        """FORWARDED: durable before the first byte."""
        assert self._process is not None
        await self._process
        claims = {
            "message_digest": admission.message_digest,
            "message_length": admission.message_length,
            "message_id": admission.message_id,
        }
        await self._journal.forwarding(self._activation_id, claims, tap_offset)

    async def interrupted(self, cause: str) -> None:
        """Why the turn is interrupted."""
        await self._journal.interrupted(self._activation_id, cause)

    async def observed(self, observation: Observation) -> None:
        """The observation, once and signed."""
        await self._journal.observed(
            self._activation_id,
            observation_jws=self._key.sign(codec.encode(observation), TokenKind.OBSERVATION),
            native_end_seen=observation.tap.end is not None and observation.forwarded,
            sent=observation.forwarded,
        )
        self.observation = observation
