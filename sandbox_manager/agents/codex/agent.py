"""Codex 0.171.0: the one object that the host agent and the manager know it by."""

from __future__ import annotations

from sandbox_manager.agents.codex import gate_grammar, launch, store_reader
from sandbox_manager.agents.codex.tap_reader import CodexTapReader
from sandbox_manager.agents.port import GateContext, GateFrame, TapReader
from sandbox_manager.core.values import (
    LaunchSettings,
    LaunchSpec,
    NativeLocator,
    StoreLocation,
    StoreSegment,
    TapFindings,
)


class Codex:
    """Implements SandboxAgent."""

    name: str = launch.AGENT
    version: str = launch.VERSION
    executable: str = "codex/codex"
    # The answer to thread/start and thread/resume names the thread and its rollout.
    identity_known: str = "BEFORE_PROMPT"
    names_session: str = "CLI"
    has_helpers: bool = True
    needs_per_process: tuple[str, ...] = ("model", "permission_mode", "max_retries")

    def launch(self, settings: LaunchSettings) -> LaunchSpec:
        return launch.launch(settings)

    def keeps_pinned(self, spec: LaunchSpec) -> bool:
        return "check_for_update_on_startup=false" in spec.argv

    def locator(self, native_session_id: str, workspace: str) -> NativeLocator:
        """A thread that begins: the CLI names its id and its rollout, whose path holds the day and the time."""
        return NativeLocator(agent=self.name, native_session_id="", cwd=workspace, store="")

    def named_locator(self, granted: NativeLocator, findings: TapFindings, *, home: str) -> NativeLocator:
        return launch.named_locator(granted, findings, home=home)

    def store_location(self, locator: NativeLocator) -> StoreLocation:
        return launch.store_location(locator)

    def classify(self, frame: bytes, context: GateContext) -> GateFrame:
        return gate_grammar.classify(frame, context)

    def interrupt_frame(self, request_id: str, locator: NativeLocator) -> bytes:
        return gate_grammar.interrupt_frame(request_id, locator.native_session_id)

    def tap_reader(self, *, message_id: str | None, start_offset: int) -> TapReader:
        return CodexTapReader(message_id=message_id, start_offset=start_offset)

    def read_segment(self, data: bytes, *, from_start: bool) -> StoreSegment:
        return store_reader.read_segment(data, from_start=from_start)

    def must_retire(self, findings: TapFindings) -> str | None:
        """Why this process may not serve another turn; None to keep it.

        A retry is no reason: after each kind of retry the history was complete at the next resume (observed). An interrupt is: it
        leaves the running shell command alive inside the process's own books (observed); the clean-up ends the command itself.
        """
        if len(findings.session_ids) > 1:
            return "SESSION_CHANGED"
        if findings.end is None:
            return "NO_NATIVE_END"
        if findings.end.cancelled:
            return "CANCELLED"
        if not findings.message_started:
            return "MERGED_TURN"
        if not findings.lifecycle_closed:
            return "AUTONOMOUS_TURN"
        return None
