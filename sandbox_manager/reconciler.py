"""Looks at what nobody asks for: leases that ran out, containers that exited by themselves, sandboxes that are idle, work left half done.

Each pass takes one conversation at a time, under its lock; a host that does not answer is left for the next pass. It decides nothing
about a context: an exited container without a stop record is UNCLEAN, and whether its history holds is found out by the next turn.
"""

from __future__ import annotations

import asyncio

import structlog

from sandbox_manager.conductor.abandoning import INTERRUPTED, NOT_SENT, Abandoning
from sandbox_manager.conductor.leases import Clock
from sandbox_manager.conductor.parts import Parts, TurnKey, turn_key
from sandbox_manager.conductor.removing import Removing
from sandbox_manager.conductor.sandboxes import group_machine, record_group
from sandbox_manager.conductor.stopping import Stopping
from sandbox_manager.core.group import ContainerSeen, GroupState, Seen
from sandbox_manager.core.host_statements import ABSENT, RUNNING
from sandbox_manager.core.records import ConversationRef, GroupRecord, TurnRecord, TurnState
from standfast_chassis.errors import StandfastError

_log = structlog.get_logger("standfast.manager.reconciler")

_RUNNING = GroupState.RUNNING.value
_STOPPING = GroupState.STOPPING.value

# How soon an open turn whose runner is gone is asked about again, when it could not be given up.
_ASK_AGAIN_S = 5.0
# A claim without a grant holds nothing: it is given up this many leases after its own has run out.
_CLAIM_LEASES = 4


class Reconciler:
    """`run` it in a task of its own. `idle_stop_s` 0: idle sandboxes are left alone."""

    def __init__(
        self,
        parts: Parts,
        *,
        abandoning: Abandoning,
        stopping: Stopping,
        removing: Removing,
        clock: Clock,
        every_s: float,
        idle_stop_s: float,
    ) -> None:
        self._parts = parts
        self._abandoning = abandoning
        self._stopping = stopping
        self._removing = removing
        self._clock = clock
        self._every_s = every_s
        self._idle_stop_s = idle_stop_s
        self._idle_since: dict[str, float] = {}
        self._ask_again_at: dict[TurnKey, float] = {}

    async def adopt(self) -> None:
        """At start: every open turn gets one full lease from now. How long this process was away, nobody can tell by elapsed time."""
        for turn in await self._parts.store.open_turns():
            self._parts.leases.renew(turn_key(turn))

    async def run(self) -> None:
        """Passes for ever."""
        while True:
            try:
                await self.pass_once()
            except StandfastError as error:
                _log.warning("a pass was cut short", reason=error.reason, message=error.message)
            except Exception:  # noqa: BLE001 - the outermost loop of a task
                _log.exception("a pass failed")
            await asyncio.sleep(self._every_s)

    async def pass_once(self) -> None:
        """One look at everything."""
        await self._expire_turns()
        groups = await self._parts.store.groups()
        open_by_ref = {turn.ref for turn in await self._parts.store.open_turns()}
        for group in groups:
            ref = ConversationRef(group.tenant, group.conversation_id)
            if self._parts.locks.is_held(ref):
                # Somebody is at it; what is left undone is seen by the next pass.
                self._idle_since.pop(group.group_id, None)
                continue
            try:
                await self._look_at(group, ref, is_busy=ref in open_by_ref)
            except StandfastError as error:
                _log.info("left for the next pass", group_id=group.group_id, reason=error.reason)
        known = {group.group_id for group in groups}
        for group_id in [one for one in self._idle_since if one not in known]:
            del self._idle_since[group_id]

    async def _look_at(self, group: GroupRecord, ref: ConversationRef, *, is_busy: bool) -> None:
        match group.state:
            case "STOPPING":
                async with self._parts.locks.holding(ref):
                    group = await self._now(group)
                    if group.state == _STOPPING:
                        _log.info("going on with a stop", group_id=group.group_id)
                        await self._stopping.finish(group)
            case "REMOVING":
                async with self._parts.locks.holding(ref):
                    await self._removing.release(await self._now(group))
            case _:
                await self._compare_with_heartbeat(group, ref)
                await self._stop_if_idle(group, ref, is_busy=is_busy)

    async def _compare_with_heartbeat(self, group: GroupRecord, ref: ConversationRef) -> None:
        """A heartbeat may be older than what was done since, so it only raises the question; an inspect answers it."""
        if group.container_id is None or not self._parts.book.has_lease(group.host_id):
            return
        beat = self._parts.book.last(group.host_id)
        if beat is None or beat.containers is None or not differs(group, beat.containers_by_id()):
            return
        async with self._parts.locks.holding(ref):
            group = await self._now(group)
            if group.state not in (_RUNNING, GroupState.STOPPED.value, GroupState.UNCLEAN.value, GroupState.GONE.value):
                return
            host = await self._parts.host_of(group)
            found = await self._parts.hosts.inspect_sandbox(host, group)
            machine = group_machine(group)
            seen = Seen.RUNNING if found.state == RUNNING else Seen.ABSENT if found.state == ABSENT else Seen.EXITED
            machine.step(ContainerSeen(seen, group.container_generation, found.started_at))
            changed = await record_group(self._parts, group, machine)
            if changed.state != group.state:
                _log.warning(
                    "a container is not as it was left",
                    group_id=group.group_id,
                    container_id=group.container_id,
                    expected=group.state,
                    found=changed.state,
                    exit_code=found.exit_code,
                )

    async def _stop_if_idle(self, group: GroupRecord, ref: ConversationRef, *, is_busy: bool) -> None:
        if group.state != _RUNNING or is_busy or not self._idle_stop_s:
            self._idle_since.pop(group.group_id, None)
            return
        since = self._idle_since.setdefault(group.group_id, self._clock())
        if self._clock() - since < self._idle_stop_s:
            return
        async with self._parts.locks.holding(ref):
            found = await self._parts.store.conversation(ref)
            if found.group is None or found.group.state != _RUNNING or found.open_turns:
                self._idle_since.pop(group.group_id, None)
                return
            stopped = await self._stopping.stop_group(found.group, force=False)
            self._idle_since.pop(group.group_id, None)
            _log.info("stopped an idle sandbox", group_id=group.group_id, state=stopped.state)

    async def _expire_turns(self) -> None:
        expired = [
            turn
            for turn in await self._parts.store.open_turns()
            if not self._parts.leases.is_live(turn_key(turn)) and not self._parts.locks.is_held(turn.ref)
        ]
        keys = {turn_key(turn) for turn in expired}
        self._ask_again_at = {key: at for key, at in self._ask_again_at.items() if key in keys}
        for turn in expired:
            if turn.state is TurnState.CLAIMED and not self._is_long_over(turn):
                # Nothing renews a claim, and its runner may still be resolving the turn before it.
                continue
            if self._clock() >= self._ask_again_at.get(turn_key(turn), 0.0):
                await self._give_up(turn)

    def _is_long_over(self, turn: TurnRecord) -> bool:
        return -self._parts.leases.left_s(turn_key(turn)) > _CLAIM_LEASES * self._parts.leases.lease_s

    async def _give_up(self, turn: TurnRecord) -> None:
        key = turn_key(turn)
        async with self._parts.locks.holding(turn.ref):
            story = await self._parts.store.turn(turn.ref, turn.turn_id)
            if story is None or not story.turn.state.is_open or self._parts.leases.is_live(key):
                return
            wish = INTERRUPTED if story.turn.state is TurnState.ADMITTED else NOT_SENT
            try:
                await self._abandoning.give_up(story, wish, "ACTIVATION_EXPIRED")
                _log.info("gave up a turn whose runner is gone", turn_id=turn.turn_id, state=turn.state.value)
            except StandfastError as error:
                # It ended natively and waits for a runner that settles it, or its host does not answer.
                self._ask_again_at[key] = self._clock() + _ASK_AGAIN_S
                _log.debug("an open turn stays", turn_id=turn.turn_id, reason=error.reason)

    async def _now(self, group: GroupRecord) -> GroupRecord:
        found = await self._parts.store.group(group.group_id)
        return found if found is not None else group


def differs(group: GroupRecord, states: dict[str, str]) -> bool:
    """Whether the engine's list says something else of the container than the record."""
    state = states.get(group.container_id or "")
    match group.state:
        case "RUNNING":
            return state != RUNNING
        case "STOPPED":
            return state is None or state == RUNNING
        case "UNCLEAN":
            return state is None
        case "GONE":
            return state is not None
        case _:
            return False
