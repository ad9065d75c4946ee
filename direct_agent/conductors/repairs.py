"""Makes the request of a repair: what changes, and the record that has to be durable before it is sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from direct_agent.core.endpoint import Endpoint, EndpointKind
from direct_agent.core.projection import base_view
from direct_agent.core.request_settings import RequestSettings, requested_output
from direct_agent.ports import Compactor, FrozenRequest
from direct_agent.providers.request import frozen_request
from direct_agent.recovery.attempt_machine import RepairKind
from direct_agent.recovery.fault import Fault
from direct_agent.recovery.memory import RepairMemory
from direct_agent.recovery.overlay import Overlay, RepairRecord, overlay_of, provider_view, unsendable
from direct_agent.recovery.repaired_view import Findings, has_something_to_strip
from direct_agent.transcript import Transcript


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request with the view and settings it was made from. `record` is None for the round's first, healthy one.

    `overlay`: set when the view is repaired by one that is not active yet.
    """

    request: FrozenRequest
    view: Transcript
    settings: RequestSettings
    record: RepairRecord | None = None
    overlay: Overlay | None = None


class Repairs:
    """The requests of one round, for one history."""

    def __init__(
        self,
        endpoint: Endpoint,
        memory: RepairMemory,
        transcript: Transcript,
        findings: Findings,
        new_id: Callable[[], str],
    ) -> None:
        self._endpoint = endpoint
        self._memory = memory
        self._transcript = transcript
        self._findings = findings
        self._new_id = new_id

    def first(self, settings: RequestSettings) -> Prepared:
        """The round's first request. With a record when native Claude would refuse a part of the history for sure."""
        limit = requested_output(self._endpoint, settings)
        if self._memory.output_max is not None and (limit is None or limit > self._memory.output_max):
            settings = replace(settings, max_tokens=self._memory.output_max)
        view = provider_view(self._endpoint, self._transcript, self._memory.overlay, self._findings)
        if self._endpoint.kind is EndpointKind.NATIVE_CLAUDE and has_something_to_strip(
            view, unsendable(self._endpoint)
        ):
            overlay = overlay_of(self._transcript, is_selective=True)
            return self._repaired(RepairKind.HISTORY, settings, overlay)
        return Prepared(frozen_request(self._endpoint, view, settings), view, settings)

    async def planned(
        self, kind: RepairKind, fault: Fault, current: Prepared, compactor: Compactor | None
    ) -> Prepared | None:
        """The repaired request, or None when this repair would change nothing or has been used up."""
        match kind:
            case RepairKind.REGENERATE:
                if not has_something_to_strip(current.view):
                    record = self._memory.record(self._new_id(), kind, self._transcript, None)
                    return replace(current, record=record, overlay=None)
                return self._repaired(kind, current.settings, overlay_of(self._transcript))
            case RepairKind.HISTORY:
                if not has_something_to_strip(current.view) or not self._memory.may_repair_history(self._transcript):
                    return None
                return self._repaired(kind, current.settings, overlay_of(self._transcript))
            case RepairKind.OUTPUT_LIMIT | RepairKind.CONTEXT_LIMIT:
                return await self._within_limit(kind, fault, current, compactor)

    async def _within_limit(
        self, kind: RepairKind, fault: Fault, current: Prepared, compactor: Compactor | None
    ) -> Prepared | None:
        left = fault.limit.output_left if fault.limit is not None else None
        asked = requested_output(self._endpoint, current.settings)
        record = self._memory.record(self._new_id(), kind, self._transcript, current.overlay)
        if left is not None and left > 0 and (asked is None or left < asked):
            settings = replace(current.settings, max_tokens=left)
            request = frozen_request(self._endpoint, current.view, settings)
            return Prepared(request, current.view, settings, record, current.overlay)
        if kind is RepairKind.OUTPUT_LIMIT or compactor is None:
            return None
        view = await compactor.compact(current.view)
        if view is None:
            return None
        view = base_view(view)
        return Prepared(frozen_request(self._endpoint, view, current.settings), view, current.settings, record)

    def _repaired(self, kind: RepairKind, settings: RequestSettings, overlay: Overlay) -> Prepared:
        view = provider_view(self._endpoint, self._transcript, overlay, self._findings)
        record = self._memory.record(self._new_id(), kind, self._transcript, overlay)
        return Prepared(frozen_request(self._endpoint, view, settings), view, settings, record, overlay)
