"""The built-in agent: the one object that the host agent and the manager know it by."""

from __future__ import annotations

from sandbox_manager.agents.direct import gate_grammar, launch, store_reader
from sandbox_manager.agents.direct.tap_reader import DirectTapReader
from sandbox_manager.agents.naming import complete_locator
from sandbox_manager.agents.port import GateContext, GateFrame, TapReader
from sandbox_manager.core.values import (
    LaunchSettings,
    LaunchSpec,
    NativeLocator,
    StoreLocation,
    StoreSegment,
    TapFindings,
)

_STORAGE_REASONS = frozenset({"STORAGE_FULL", "STORE_UNWRITABLE"})


class Direct:
    """Implements SandboxAgent."""

    name: str = launch.AGENT
    version: str = "1.0.0"
    executable: str = "direct/direct"
    identity_known: str = "BEFORE_PROMPT"
    names_session: str = "HOST"
    has_helpers: bool = False
    needs_per_process: tuple[str, ...] = ("model", "permission_mode", "allow_rules", "deny_rules", *launch.OPTION_NAMES)

    def launch(self, settings: LaunchSettings) -> LaunchSpec:
        return launch.launch(settings)

    def keeps_pinned(self, spec: LaunchSpec) -> bool:
        # It has no updater.
        return True

    def locator(self, native_session_id: str, workspace: str) -> NativeLocator:
        return launch.locator(native_session_id, workspace)

    def named_locator(self, granted: NativeLocator, findings: TapFindings, *, home: str) -> NativeLocator:
        return complete_locator(granted, findings, home=home)

    def store_location(self, locator: NativeLocator) -> StoreLocation:
        return launch.store_location(locator)

    def classify(self, frame: bytes, context: GateContext) -> GateFrame:
        # No frame of this agent names a setting or a session: both are on its command line.
        return gate_grammar.classify(frame)

    def interrupt_frame(self, request_id: str, locator: NativeLocator) -> bytes:
        return gate_grammar.interrupt_frame(request_id)

    def tap_reader(self, *, message_id: str | None, start_offset: int) -> TapReader:
        return DirectTapReader(message_id=message_id, start_offset=start_offset)

    def read_segment(self, data: bytes, *, from_start: bool) -> StoreSegment:
        return store_reader.read_segment(data, from_start=from_start)

    def must_retire(self, findings: TapFindings) -> str | None:
        """Why this process may not serve another turn; None to keep it.

        SESSION_NOT_WRITTEN: what it could not write it does not know either; a new process reads what is there.
        """
        if findings.reset_to is not None or len(findings.session_ids) > 1:
            return "SESSION_CHANGED"
        if findings.end is None:
            return "NO_NATIVE_END"
        if findings.end.reason in _STORAGE_REASONS:
            return "SESSION_NOT_WRITTEN"
        if findings.end.cancelled:
            return "CANCELLED"
        if not findings.message_started:
            return "NOT_ACCEPTED"
        return None
