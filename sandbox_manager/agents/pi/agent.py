"""Pi 1.6.0: the one object that the host agent and the manager know it by."""

from __future__ import annotations

from sandbox_manager.agents.naming import complete_locator
from sandbox_manager.agents.pi import gate_grammar, launch, store_reader
from sandbox_manager.agents.pi.tap_reader import PiTapReader
from sandbox_manager.agents.port import GateContext, GateFrame, TapReader
from sandbox_manager.core.values import (
    LaunchSettings,
    LaunchSpec,
    NativeLocator,
    StoreLocation,
    StoreSegment,
    TapFindings,
)


class Pi:
    """Implements SandboxAgent."""

    name: str = launch.AGENT
    version: str = "1.6.0"
    executable: str = "pi/node"
    identity_known: str = "BEFORE_PROMPT"
    # The id is ours (`--session-id`); where the session's file lies the handshake says, since its name holds a time.
    names_session: str = "HOST"
    has_helpers: bool = False
    needs_per_process: tuple[str, ...] = (
        "model",
        "permission_mode",
        "protocol",
        "max_retries",
        "context_window",
        "max_output_tokens",
    )

    def launch(self, settings: LaunchSettings) -> LaunchSpec:
        return launch.launch(settings)

    def keeps_pinned(self, spec: LaunchSpec) -> bool:
        return "--offline" in spec.argv and dict(spec.env).get("PI_OFFLINE") == "1"

    def locator(self, native_session_id: str, workspace: str) -> NativeLocator:
        return launch.locator(native_session_id, workspace)

    def named_locator(self, granted: NativeLocator, findings: TapFindings, *, home: str) -> NativeLocator:
        whole = complete_locator(granted, findings, home=home)
        launch.store_location(whole)
        return whole

    def store_location(self, locator: NativeLocator) -> StoreLocation:
        return launch.store_location(locator)

    def classify(self, frame: bytes, context: GateContext) -> GateFrame:
        # No frame of this CLI that passes names a setting or a session.
        return gate_grammar.classify(frame)

    def interrupt_frame(self, request_id: str, locator: NativeLocator) -> bytes:
        return gate_grammar.interrupt_frame(request_id)

    def tap_reader(self, *, message_id: str | None, start_offset: int) -> TapReader:
        return PiTapReader(message_id=message_id, start_offset=start_offset)

    def read_segment(self, data: bytes, *, from_start: bool) -> StoreSegment:
        return store_reader.read_segment(data, from_start=from_start)

    def must_retire(self, findings: TapFindings) -> str | None:
        """Why this process may not serve another turn; None to keep it.

        QUEUE_NOT_EMPTY: a message that was queued when the turn had just ended goes out with the next prompt (observed).
        """
        if findings.background_pending:
            return "QUEUE_NOT_EMPTY"
        if len(findings.session_ids) > 1:
            return "SESSION_CHANGED"
        if findings.end is None:
            return "NO_NATIVE_END"
        if findings.end.cancelled:
            return "CANCELLED"
        if not findings.lifecycle_closed:
            return "NOT_SETTLED"
        return None
