"""Winds a turn up and puts its observation together: what the turn left is ended, the store is read, the relay is asked.

Taken once, at the native end or at what came instead of it. It judges nothing; what becomes of the process is `core/disposition.py`'s.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

import structlog

from sandbox_manager.agents.port import SandboxAgent
from sandbox_manager.core.values import (
    Census,
    Generations,
    Observation,
    ProcessDisposition,
    StoreReading,
    TapFindings,
)
from sandbox_manager.host.adapters.guest_errors import GuestLinkError, GuestOperationError
from sandbox_manager.host.conductor.activation_limits import ActivationLimits, HostPolicy
from sandbox_manager.host.conductor.hosted_slot import HostedCli, HostedSlot
from sandbox_manager.host.conductor.relay_findings import findings_of
from sandbox_manager.host.conductor.sandbox import Sandbox
from sandbox_manager.host.conductor.store_watch import StoreWatch, unreadable
from sandbox_manager.host.core import disposition as rules
from sandbox_manager.host.core.gate import Admission
from sandbox_manager.host.core.grant import Grant
from sandbox_manager.host.relay.activation import RelayObservation
from standfast_chassis.errors import StandfastError

_log = structlog.get_logger("standfast.host.observing")
_NOT_WRITTEN = ("NO_SPACE", "UNWRITABLE")


@dataclass(frozen=True, slots=True)
class TurnFacts:
    """What the run knows when the turn is over. `was_sent`: the message's frame was written to the process. `exit_wait_s`: how long
    the process may take to leave by itself.
    """

    cli: HostedCli | None
    is_new: bool
    findings: TapFindings
    admission: Admission | None
    was_sent: bool
    interrupted_by: str | None
    tap_from: int
    tap_to: int
    tap_gap: bool
    exit_wait_s: float


class Observer:
    """Observes one activation."""

    def __init__(
        self,
        grant: Grant,
        agent: SandboxAgent,
        sandbox: Sandbox,
        slot: HostedSlot,
        limits: ActivationLimits,
        policy: HostPolicy,
    ) -> None:
        self.locator = grant.locator  # made whole by the run, where the CLI names something of it itself
        self._grant = grant
        self._agent = agent
        self._sandbox = sandbox
        self._slot = slot
        self._limits = limits
        self._policy = policy

    @property
    def watch(self) -> StoreWatch:
        """The member's native store."""
        return StoreWatch(self._sandbox.link, self._agent, self._slot.number, self.locator)

    def generations(self, cli: HostedCli | None) -> Generations:
        """The fencing numbers of this activation."""
        return Generations(
            container=self._grant.container_generation,
            process=cli.process_generation if cli is not None else 0,
            activation=self._grant.activation_generation,
        )

    async def wind_up(self, facts: TurnFacts, *, end_process: bool) -> tuple[Observation, Census | None]:
        """Ends what the turn left and observes. A sandbox that is lost meanwhile is observed blind. Never raises GuestLinkError."""
        relay = await self._end_relay()
        try:
            with suppress(GuestOperationError):
                # A process that is gone has no deposit any more.
                await self._slot.deposit_interrupt(b"", 0.0)
            census, left_in_order = await self._clean_up(facts, end_process)
            reading, complete, census, left_in_order = await self._read_store(facts, census, left_in_order)
            decided = self._decide(facts, census, complete, end_process, left_in_order)
            if decided.what is not ProcessDisposition.KEPT and census.kept:
                census = await self._slot.reclaim((), self._limits.quiesce_timeout_s)
        except GuestLinkError as failure:
            _log.warning("the sandbox was lost during the clean-up", reason=failure.reason)
            return self._blind(facts, relay), None
        return self._observation(facts, reading, census, relay, decided), census

    async def blind(self, facts: TurnFacts) -> Observation:
        """The observation of a turn whose sandbox does not answer any more."""
        return self._blind(facts, await self._end_relay())

    async def not_sent(self, facts: TurnFacts, store: StoreReading | None, reason: str) -> Observation:
        """The observation of an activation that came to nothing before its message."""
        relay = await self._end_relay()
        what = (
            rules.Disposition(ProcessDisposition.RECLAIM_FIRST, reason)
            if facts.is_new
            else rules.Disposition(ProcessDisposition.KEPT, "NOTHING_SENT")
        )
        return replace(self._observation(facts, store, None, relay, what), interrupted_by=reason)

    # --- private ----------------------------------------------------------------------------------------------------

    async def _clean_up(self, facts: TurnFacts, end_process: bool) -> tuple[Census, bool | None]:
        """The census, and whether the process left in order (None: it was not asked to)."""
        cli = facts.cli
        quiesce_s = self._limits.quiesce_timeout_s
        if cli is None or end_process or cli.exit is not None or facts.findings.end is None:
            return await self._slot.reclaim((), quiesce_s), None
        if self._rule(facts) is not None or self._interrupted(facts) is not None:
            # Before anything else is ended: a background task that dies would make the process run a turn of its own.
            left = await self._slot.leave(_leave_by(facts), facts.exit_wait_s)
            return await self._slot.reclaim((), quiesce_s), left
        return await self._slot.reclaim(cli.family, quiesce_s), None

    async def _read_store(
        self, facts: TurnFacts, census: Census, left_in_order: bool | None
    ) -> tuple[StoreReading, bool, Census, bool | None]:
        grant, watch = self._grant, self.watch
        prefix = grant.store.prefix_length
        wait_s = self._limits.store_wait_s if census.kept or not census.complete else 0.0
        reading, complete = await watch.await_turn(facts.findings, grant.message_id, prefix, wait_s)
        if complete or not census.kept:
            return reading, complete, census, left_in_order
        # What is not on disk now may never be: the process writes it on its way out, or the turn is not proved.
        left_in_order = await self._slot.leave(_leave_by(facts), facts.exit_wait_s)
        census = await self._slot.reclaim((), self._limits.quiesce_timeout_s)
        again, is_there = await watch.await_turn(facts.findings, grant.message_id, prefix, 0.0)
        # A disk that was full while the turn was to be written stays the cause, though the CLI's leaving has freed a block of it.
        if is_there or (reading.error not in _NOT_WRITTEN and (again.error is None or reading.error is not None)):
            reading = again
        return reading, is_there, census, left_in_order

    def _decide(
        self, facts: TurnFacts, census: Census, complete: bool, end_process: bool, left_in_order: bool | None
    ) -> rules.Disposition:
        was_alive = facts.cli is not None and (facts.cli.exit is None or left_in_order is not None)
        rule = self._rule(facts)
        if rule is None and left_in_order is not None and self._interrupted(facts) is None:
            rule = "STORE_PROMISED"
        decided = rules.decide(
            rules.AfterTurn(
                findings=facts.findings,
                expected_session_id=self.locator.native_session_id,
                census=census,
                agent_rule=rule,
                interrupted_by=self._interrupted(facts),
                process_alive=was_alive and not end_process,
                tap_gap=facts.tap_gap,
                store_is_complete=complete,
            ),
            self._policy.disposition,
        )
        if decided.what is ProcessDisposition.RETIRED and left_in_order is False:
            return rules.Disposition(ProcessDisposition.RECLAIM_FIRST, "EXIT_NOT_CONFIRMED", decided.leave_by)
        return decided

    def _rule(self, facts: TurnFacts) -> str | None:
        return self._agent.must_retire(facts.findings) if self._policy.disposition.retire_rules_on else None

    def _interrupted(self, facts: TurnFacts) -> str | None:
        # An interrupt that came too late for the turn to feel it changes nothing.
        end = facts.findings.end
        return facts.interrupted_by if end is None or end.cancelled else None

    async def _end_relay(self) -> RelayObservation | None:
        try:
            return await self._sandbox.relay.end_activation(
                self._sandbox.group_id, self._slot.name, self._grant.activation_id
            )
        except StandfastError as failure:
            _log.info("the relay knows nothing of the activation", reason=failure.reason)
            return None

    def _blind(self, facts: TurnFacts, relay: RelayObservation | None) -> Observation:
        return self._observation(
            facts,
            unreadable("UNREADABLE", self._grant.store.prefix_length),
            None,
            relay,
            rules.Disposition(ProcessDisposition.RECLAIM_FIRST, "SANDBOX_LOST"),
        )

    def _observation(
        self,
        facts: TurnFacts,
        store: StoreReading | None,
        census: Census | None,
        relay: RelayObservation | None,
        decided: rules.Disposition,
    ) -> Observation:
        cli, grant = facts.cli, self._grant
        admission = facts.admission if facts.was_sent else None
        return Observation(
            activation_id=grant.activation_id,
            turn_id=grant.turn_id,
            group_id=grant.group_id,
            member_id=grant.member_id,
            generations=self.generations(cli),
            container=self._sandbox.facts,
            locator=self.locator,
            message_id=grant.message_id,
            message_digest=None if admission is None else admission.message_digest,
            message_length=None if admission is None else admission.message_length,
            forwarded=facts.was_sent,
            process_was_new=facts.is_new,
            process_alive=cli is not None and cli.exit is None,
            exit_code=None if cli is None else cli.exit_code,
            tap_from=facts.tap_from,
            tap_to=facts.tap_to,
            tap_gap=facts.tap_gap,
            tap=facts.findings,
            store=store,
            census=census,
            relay=None if relay is None else findings_of(relay),
            disposition=decided.what,
            disposition_reason=decided.reason,
            interrupted_by=facts.interrupted_by,
        )


def _leave_by(facts: TurnFacts) -> rules.LeaveBy:
    # With a background task pending a closed stdin makes Claude Code run a turn of its own; SIGTERM does not (observed).
    return rules.LeaveBy.TERMINATE if facts.findings.background_pending else rules.LeaveBy.CLOSE_STDIN
