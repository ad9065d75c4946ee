"""Brings a group's container to RUNNING, and checks that it is the recorded one. The transitions are core/group.py's.

Group id and nonce are durable before a container is made; a clean stop is void, durably, before the container starts again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sandbox_manager.adapters.store_port import Update
from sandbox_manager.attestors.manifest import compare
from sandbox_manager.conductor.parts import Parts
from sandbox_manager.core.evidence import evidence_items
from sandbox_manager.core.group import (
    CleanStop,
    ContainerSeen,
    Ensured,
    EnsureFailed,
    EnsureWanted,
    Group,
    GroupState,
    Seen,
    StopVoided,
)
from sandbox_manager.core.host_statements import RUNNING, SandboxStatement
from sandbox_manager.core.records import ConversationRef, GroupRecord, HostRecord
from sandbox_manager.core.refusals import (
    AttestationRefusedError,
    ContextLostError,
    HostAnsweredError,
    HostUnavailableError,
    ImageRetiredError,
    NotAdmittedError,
)

_DOCKER_WORKSPACE = "/workspace"
_MEASURED_MAX = 10_000


@dataclass(frozen=True, slots=True)
class ReadySandbox:
    """The group with its running container. `was_started`: it did not run, or not without a break, before this call."""

    group: GroupRecord
    host: HostRecord
    started_at: str
    workspace: str
    was_started: bool


def group_machine(record: GroupRecord) -> Group:
    """The machine of a recorded group."""
    stop = None
    if record.stopped_container_id and record.stopped_started_at and record.stopped_finished_at:
        stop = CleanStop(record.stopped_container_id, record.stopped_started_at, record.stopped_finished_at)
    return Group(
        GroupState(record.state),
        container_generation=record.container_generation,
        container_id=record.container_id,
        image_id=record.image_id,
        started_at=record.started_at,
        clean_stop=stop,
    )


def group_record(record: GroupRecord, machine: Group) -> GroupRecord:
    """The record with what the machine has become."""
    stop = machine.clean_stop
    return replace(
        record,
        state=machine.state.value,
        container_id=machine.container_id,
        image_id=machine.image_id,
        started_at=machine.started_at,
        stopped_container_id=stop.container_id if stop else None,
        stopped_started_at=stop.started_at if stop else None,
        stopped_finished_at=stop.finished_at if stop else None,
    )


async def record_group(parts: Parts, record: GroupRecord, machine: Group) -> GroupRecord:
    """Makes the machine's state durable; returns the record as it now is."""
    changed = group_record(record, machine)
    if changed == record:
        return record
    await parts.store.commit([Update(changed)])
    return replace(changed, revision=changed.revision + 1)


class Sandboxes:
    """Starts and checks containers."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        # By group, the run of its container whose measuring was compared. Kept in memory: what is not known here is asked again.
        self._measured: dict[str, tuple[str | None, str | None]] = {}

    async def running(self, ref: ConversationRef, group: GroupRecord, *, has_history: bool) -> ReadySandbox:
        """The group's container, running and shown to be the recorded one.

        `has_history`: a turn has settled in it, so another container is no substitute. Raises ContextLostError, ImageRetiredError,
        AttestationRefusedError, and what the host calls raise.
        """
        self._require_accepted(group)
        host = await self._parts.host_of(group)
        for _ in range(2):
            machine = group_machine(group)
            machine.step(EnsureWanted())
            if machine.state is GroupState.VOIDING:
                machine.step(StopVoided())
            group = await record_group(self._parts, group, machine)
            try:
                found = await self._parts.hosts.ensure_sandbox(host, group, ref.label, "")
            except HostAnsweredError as error:
                group = await self._not_started(group, machine, error)
                if error.reason != "CONTAINER_GONE":
                    raise
                if has_history:
                    raise _gone(group) from error
                # Nothing was settled in it: there is no history to lose, and the turn gets a container of the next generation.
                group = await self._next_generation(group)
                continue
            _require_running(host, found)
            self._require_same(group, found, has_history=has_history)
            return await self._checked(group, machine, host, found)
        raise HostUnavailableError(
            f"host {host.host_id} says twice that a container it was asked to make is gone; look at its engine.",
            {"host_id": host.host_id, "group_id": group.group_id},
        )

    def _require_same(self, group: GroupRecord, found: SandboxStatement, *, has_history: bool) -> None:
        """That the container which answers is the recorded one."""
        pairs: list[tuple[str | None, str | None]] = [
            (group.container_id or found.container_id, found.container_id),
            (group.image_id or found.image_id, found.image_id),
            (group.nonce, found.nonce),
        ]
        for expected, observed in pairs:
            if expected == observed:
                continue
            cure = "Bring the recorded container back; the one that answers is another"
            if not has_history:
                raise NotAdmittedError("CONTAINER_CHANGED", expected=str(expected), observed=str(observed), cure=cure)
            raise ContextLostError(
                "CONTAINER_CHANGED",
                cure=f"{cure}.",
                readable="the turns' records outside the sandbox",
                expected=str(expected),
                observed=str(observed),
            )

    async def _checked(
        self, group: GroupRecord, machine: Group, host: HostRecord, found: SandboxStatement
    ) -> ReadySandbox:
        assert found.container_id is not None
        assert found.started_at is not None
        was_started = found.started_now or found.created_now or found.started_at != group.started_at
        # Somebody else may have restarted a running one since: then it was not one run.
        machine.step(ContainerSeen(Seen.RUNNING, group.container_generation, found.started_at))
        machine.step(EnsureWanted())
        if machine.state is not GroupState.RUNNING:
            machine.step(Ensured(found.container_id, found.image_id or "", found.started_at))
        workspace = found.workspace or group.workspace or self._default_workspace(host)
        group = await record_group(self._parts, replace(group, workspace=workspace), machine)
        self._require_accepted(group)
        is_new = found.started_now or found.created_now
        if found.measured is not None or (was_started and not is_new):
            # Also of one that runs by now: a start whose measuring was refused leaves it running, and what it measured still holds.
            self._require_pins(found, host)
            self._note_measured(group, found)
        # One that has just been started measures itself while its CLI starts: `require_measured` is asked before anything is admitted.
        return ReadySandbox(group, host, found.started_at, workspace, was_started)

    async def require_measured(self, group: GroupRecord, started_at: str) -> None:
        """That this very run of the container has measured itself, and is as pinned. Asked before an admission into a new start.

        Raises AttestationRefusedError, HostUnavailableError, and what the host calls raise.
        """
        if self._measured.get(group.group_id) == (group.container_id, started_at):
            return
        host = await self._parts.host_of(group)
        found = await self._parts.hosts.inspect_sandbox(host, group, with_measured=True)
        _require_running(host, found)
        if (found.container_id, found.started_at) != (group.container_id, started_at):
            raise HostUnavailableError(
                f"host {host.host_id}: expected the run of container {group.container_id} that began at {started_at}, found one of "
                f"{found.container_id} that began at {found.started_at}; nothing was sent, retry.",
                {"host_id": host.host_id, "expected": started_at, "found": found.started_at or ""},
            )
        self._require_pins(found, host)
        self._note_measured(group, found)

    def _note_measured(self, group: GroupRecord, found: SandboxStatement) -> None:
        if len(self._measured) >= _MEASURED_MAX:
            self._measured.clear()
        self._measured[group.group_id] = (found.container_id, found.started_at)

    async def _not_started(self, group: GroupRecord, machine: Group, error: HostAnsweredError) -> GroupRecord:
        gone = error.reason == "CONTAINER_GONE"
        if error.reason in ("ENGINE_UNAVAILABLE", "SUPERVISOR_UNAVAILABLE"):
            return group  # not known: the next Ensure says
        if machine.state is GroupState.STARTING:
            machine.step(EnsureFailed(gone=gone))
        elif gone:
            machine.step(ContainerSeen(Seen.ABSENT, group.container_generation))
        return await record_group(self._parts, group, machine)

    async def _next_generation(self, group: GroupRecord) -> GroupRecord:
        fresh = replace(
            group,
            state=GroupState.PLANNED.value,
            container_generation=group.container_generation + 1,
            nonce=self._parts.new_id(),
            container_id=None,
            image_id=None,
            workspace=None,
            started_at=None,
        )
        await self._parts.store.commit([Update(fresh)])
        return replace(fresh, revision=fresh.revision + 1)

    def _require_accepted(self, group: GroupRecord) -> None:
        accepted = self._parts.manifest.accepted_images
        if group.image_id is not None and group.image_id not in accepted:
            raise ImageRetiredError(
                f"The container's image {group.image_id} is not accepted by this release, which accepts {', '.join(accepted)}. "
                "Nothing was touched; open it with a release that accepts the image.",
                {"found": group.image_id, "expected": ",".join(accepted), "container_id": group.container_id or ""},
            )

    def _require_pins(self, found: SandboxStatement, host: HostRecord) -> None:
        """What the supervisor measured at the container's start, of itself and the CLIs: a retained one can drift after its first check."""
        pins = self._parts.manifest.pins
        # Image, protocol and launch are not the supervisor's to measure: they were compared before, and at the host's registration.
        items = {f"cli.{cli.name}.updater": "off" for cli in pins.clis}
        items |= {"image_id": self._parts.manifest.image_id, "protocol_version": pins.protocol_version}
        items |= evidence_items(found.measured or {})
        for reason in compare(pins, items):
            raise AttestationRefusedError(
                reason.code,
                f"The sandbox on host {host.host_id} measured itself at its start: expected {reason.expected}, found "
                f"{reason.found}. Nothing was sent; put the pinned one back.",
                {"expected": reason.expected, "found": reason.found, "host_id": host.host_id},
            )

    def _default_workspace(self, host: HostRecord) -> str:
        if host.engine == "docker":
            return _DOCKER_WORKSPACE
        raise AttestationRefusedError(
            "EVIDENCE_MISSING",
            f"host {host.host_id} did not say where the sandbox's workspace is; expected a path.",
            {"item": "workspace", "host_id": host.host_id},
        )


def _require_running(host: HostRecord, found: SandboxStatement) -> None:
    if found.state != RUNNING or found.container_id is None or found.started_at is None:
        raise HostUnavailableError(
            f"host {host.host_id}: expected a running container, found one that is {found.state}; retry.",
            {"host_id": host.host_id, "state": found.state},
        )


def _gone(group: GroupRecord) -> ContextLostError:
    return ContextLostError(
        "CONTAINER_GONE",
        cure="Bring the container with its writable layer back on its host; else open a new conversation.",
        readable="the turns' records outside the sandbox",
        expected=f"container {group.container_id}",
        observed="none of that id",
    )
