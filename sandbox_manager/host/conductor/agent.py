"""The host agent: one engine's sandboxes, the activations that run in them, and what its journal says of former ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog

from sandbox_manager.agents.registry import agent_named
from sandbox_manager.core import codec
from sandbox_manager.core.values import (
    Census,
    ContainerFacts,
    Generations,
    NativeLocator,
    Observation,
    ProcessDisposition,
    StoreReading,
)
from sandbox_manager.host.adapters.guest_errors import GuestLinkError
from sandbox_manager.host.adapters.journal import ActivationRow, Journal
from sandbox_manager.host.conductor.activation_limits import ActivationLimits, HostPolicy
from sandbox_manager.host.conductor.activation_run import ActivationRun
from sandbox_manager.host.conductor.inbound import InterruptCame
from sandbox_manager.host.conductor.sandbox import Sandbox
from sandbox_manager.host.conductor.sandboxes import Sandboxes
from sandbox_manager.host.conductor.store_watch import StoreWatch
from sandbox_manager.host.core.grant import Grant
from sandbox_manager.host.errors import (
    ActivationUnknownError,
    ContainerChangedError,
    HostError,
    TokenInvalidError,
)
from standfast_chassis.errors import StandfastError, TokenRejectedError
from standfast_chassis.keys import PublicKey, SigningKey, TokenKind, verify_claims
from standfast_chassis.task_pool import TaskPool
from standfast_chassis.tracing import Tracing

_log = structlog.get_logger("standfast.host")

_OBSERVE_RETRY_FIRST_S = 0.2
_OBSERVE_RETRY_MAX_S = 5.0


class HostLeaseError(HostError):
    """This host's lease is over: it may start, admit and push nothing until the manager answers again."""

    reason = "HOST_UNAVAILABLE"


class HostAgent:
    """Made by the server. `manager_key` and `lease_left_s` come from the registration."""

    def __init__(
        self,
        *,
        key: SigningKey,
        journal: Journal,
        sandboxes: Sandboxes,
        tasks: TaskPool,
        tracing: Tracing,
        taps: Path,
        limits: ActivationLimits,
        policy: HostPolicy,
        evidence: Callable[[], Awaitable[Mapping[str, Any]]],
        manager_key: Callable[[], PublicKey | None],
        lease_left_s: Callable[[], float],
        require_isolation: Callable[[str], None],
    ) -> None:
        self.key = key
        self.journal = journal
        self.sandboxes = sandboxes
        self._tasks = tasks
        self._tracing = tracing
        self._taps = taps
        self._limits = limits
        self._policy = policy
        self._evidence = evidence
        self._manager_key = manager_key
        self._lease_left_s = lease_left_s
        self._require_isolation = require_isolation
        self._runs: dict[str, ActivationRun] = {}
        self._ends: dict[str, asyncio.Task[None]] = {}

    # --- activations ------------------------------------------------------------------------------------------------

    async def attach(self, token: str) -> ActivationRun:
        """Opens an activation and starts its run. Raises HostError: nothing was started then."""
        self.require_lease()
        grant = Grant.read(self._claims(token, TokenKind.ATTACH))
        agent = agent_named(grant.agent)
        self._require_isolation(grant.permission_mode)
        sandbox = self.sandboxes.running(grant.group_id, grant.container_generation)
        if (sandbox.facts.container_id, sandbox.facts.nonce) != (grant.container_id, grant.nonce):
            raise ContainerChangedError(
                f"group {grant.group_id}: expected container {grant.container_id}, found "
                f"{sandbox.facts.container_id}; or another creation nonce. Nothing was sent.",
                {"expected": grant.container_id, "found": sandbox.facts.container_id},
            )
        slot = sandbox.slots[grant.slot]
        slot.hold(grant.activation_id)
        recording = asyncio.ensure_future(self.journal.attach(self._claims(token, TokenKind.ATTACH)))
        try:
            await asyncio.shield(recording)
        except HostError:
            slot.let_go(grant.activation_id)
            raise
        except BaseException:
            # The runner left in the middle of the write: it comes to be on record all the same, and nobody will run it.
            slot.let_go(grant.activation_id)
            self._observe_later(grant.activation_id, recording)
            raise
        run = ActivationRun(
            grant,
            agent=agent,
            sandbox=sandbox,
            slot=slot,
            journal=self.journal,
            key=self.key,
            tracing=self._tracing,
            taps=self._taps,
            limits=self._limits,
            policy=self._policy,
        )
        try:
            task = self._tasks.start(run.run, name=grant.activation_id)
        except StandfastError:
            slot.let_go(grant.activation_id)
            self._observe_later(grant.activation_id)
            raise
        self._runs[grant.activation_id] = run
        self._ends[grant.activation_id] = task
        task.add_done_callback(lambda _: self._over(run))
        return run

    def admission(self, token: str) -> Mapping[str, Any]:
        """The claims of an admission. Raises TokenInvalidError, HostLeaseError."""
        self.require_lease()
        return self._claims(token, TokenKind.ADMISSION)

    def interrupt(self, activation_id: str) -> Awaitable[Any] | None:
        """Interrupts a running activation; what it returns ends when the activation has."""
        run, task = self._runs.get(activation_id), self._ends.get(activation_id)
        if run is None or task is None:
            return None

        async def finish() -> None:
            await run.offer(InterruptCame("CANCEL", None))
            await asyncio.wait({task}, timeout=self._limits.interrupt_wait_s + 2 * self._limits.quiesce_timeout_s)

        return finish()

    def _over(self, run: ActivationRun) -> None:
        self._runs.pop(run.grant.activation_id, None)
        self._ends.pop(run.grant.activation_id, None)
        if run.observation is None:
            # It broke off: the journal could not be written, or a fault of ours. Without an observation its turn stays open for ever.
            self._observe_later(run.grant.activation_id)

    def _observe_later(self, activation_id: str, recording: asyncio.Future[None] | None = None) -> None:
        """`recording`: the write of its row, where that may not be over."""
        try:
            self._tasks.start(lambda: self._observe_broken(activation_id, recording), name=f"observe {activation_id}")
        except StandfastError as failure:
            _log.warning("left for the next start", activation_id=activation_id, reason=failure.reason)

    async def _observe_broken(self, activation_id: str, recording: asyncio.Future[None] | None) -> None:
        """Observes an activation whose run broke off, as soon as the journal takes it."""
        if recording is not None:
            with suppress(StandfastError):
                await recording
        pause_s = _OBSERVE_RETRY_FIRST_S
        while True:
            try:
                row = await self.journal.row(activation_id)
                if row.observation_jws is None:
                    await self._observe_orphan(row, "HOST_FAULT")
                return
            except ActivationUnknownError:
                return  # it was never recorded, so nothing was started for it
            except StandfastError as failure:
                _log.error("an activation that broke off is not observed yet", reason=failure.reason)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _OBSERVE_RETRY_MAX_S)

    # --- stores, evidence, leases -----------------------------------------------------------------------------------

    async def read_store(
        self, group_id: str, container_generation: int, slot: int, locator: NativeLocator, prefix_length: int
    ) -> tuple[str, StoreReading]:
        """The container read in, and the reading."""
        sandbox = self.sandboxes.running(group_id, container_generation)
        watch = StoreWatch(sandbox.link, agent_named(locator.agent), slot, locator)
        return sandbox.facts.container_id, await watch.read(prefix_length)

    async def evidence(self) -> Mapping[str, Any]:
        """This host measured anew."""
        return await self._evidence()

    def require_lease(self) -> None:
        """Raises HostLeaseError when the host lease is over."""
        left_s = self._lease_left_s()
        if left_s <= 0:
            raise HostLeaseError(
                f"this host's lease ended {-left_s:.1f} s ago; nothing is started or admitted until the manager "
                "answers its heartbeat.",
            )

    def tap_path(self, activation_id: str) -> Path:
        """Where an activation's raw bytes are kept."""
        return self._taps / f"{activation_id}.tap"

    def _claims(self, token: str, kind: TokenKind) -> dict[str, Any]:
        key = self._manager_key()
        if key is None:
            raise TokenInvalidError("this host is not registered yet, so it knows no manager's key. Retry later.")
        try:
            return verify_claims(token, key, kind)
        except TokenRejectedError as failure:
            raise TokenInvalidError(failure.message, failure.metadata) from failure

    # --- after a restart --------------------------------------------------------------------------------------------

    async def reconcile(self) -> None:
        """Observes what a former run of this process left open: slots emptied, and said to be interrupted by its death.

        What that run saw is gone with it, the relay's record too: no end is claimed for such a turn (design chapter 13).
        """
        for row in await self.journal.unobserved():
            try:
                await self._observe_orphan(row, "HOST_RESTART")
            except StandfastError as failure:
                _log.error(
                    "an activation of a former run could not be observed",
                    activation_id=row.activation_id,
                    reason=failure.reason,
                )

    async def _observe_orphan(self, row: ActivationRow, because: str) -> None:
        grant = Grant.read(row.token)
        facts = ContainerFacts(grant.container_id, "", grant.nonce, "")
        census = None
        try:
            sandbox = self.sandboxes.running(grant.group_id, grant.container_generation)
            facts = sandbox.facts
            census = await self._empty_slot(sandbox, grant)
        except (HostError, GuestLinkError) as failure:
            _log.info("the slot of an interrupted activation is not emptied here", reason=failure.reason)
        agent = agent_named(grant.agent)
        admission = row.admission or {}
        observation = Observation(
            activation_id=grant.activation_id,
            turn_id=grant.turn_id,
            group_id=grant.group_id,
            member_id=grant.member_id,
            generations=Generations(
                grant.container_generation, row.process_generation or 0, grant.activation_generation
            ),
            container=facts,
            locator=grant.locator,
            message_id=grant.message_id,
            message_digest=admission.get("message_digest"),
            message_length=admission.get("message_length"),
            forwarded=row.was_forwarded,
            process_was_new=bool(row.process_was_new),
            process_alive=False,
            exit_code=None,
            tap_from=row.tap_from or 0,
            tap_to=row.tap_forwarded or row.tap_from or 0,
            tap_gap=True,
            tap=agent.tap_reader(message_id=grant.message_id, start_offset=row.tap_from or 0).findings(),
            store=None,
            census=census,
            relay=None,
            disposition=ProcessDisposition.RECLAIM_FIRST,
            disposition_reason=because,
            interrupted_by=because,
        )
        await self.journal.observed(
            row.activation_id,
            observation_jws=self.key.sign(codec.encode(observation), TokenKind.OBSERVATION),
            native_end_seen=False,
            sent=row.was_forwarded,
        )

    async def _empty_slot(self, sandbox: Sandbox, grant: Grant) -> Census:
        """Ends what the activation left. A slot that another activation holds by now was emptied by that: SlotBusyError."""
        slot = sandbox.slots[grant.slot]
        slot.hold(grant.activation_id)
        try:
            with suppress(StandfastError):
                await sandbox.relay.end_activation(grant.group_id, slot.name, grant.activation_id)
            census = await slot.reclaim((), self._limits.quiesce_timeout_s)
            slot.release(ProcessDisposition.RECLAIM_FIRST, census)
            return census
        finally:
            slot.let_go(grant.activation_id)
