"""Claude Code 2.1.220: the one object that the host agent and the manager know it by."""

from __future__ import annotations

from sandbox_manager.agents.claude_code import gate_grammar, launch, store_reader
from sandbox_manager.agents.claude_code.tap_reader import ClaudeTapReader
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


class ClaudeCode:
    """Implements SandboxAgent."""

    name: str = launch.AGENT
    version: str = "2.1.220"
    executable: str = "claude-code/claude"
    # `initialize` on --resume answers without naming a session: the first root event of the turn names it.
    identity_known: str = "FIRST_EVENT"
    names_session: str = "HOST"
    has_helpers: bool = False
    needs_per_process: tuple[str, ...] = ("model", "permission_mode", "allow_rules", "deny_rules", "max_retries")

    def launch(self, settings: LaunchSettings) -> LaunchSpec:
        return launch.launch(settings)

    def keeps_pinned(self, spec: LaunchSpec) -> bool:
        return dict(spec.env).get("DISABLE_AUTOUPDATER") == "1"

    def locator(self, native_session_id: str, workspace: str) -> NativeLocator:
        return launch.locator(native_session_id, workspace)

    def named_locator(self, granted: NativeLocator, findings: TapFindings, *, home: str) -> NativeLocator:
        return complete_locator(granted, findings, home=home)

    def store_location(self, locator: NativeLocator) -> StoreLocation:
        return launch.store_location(locator)

    def classify(self, frame: bytes, context: GateContext) -> GateFrame:
        # No frame of this CLI names a setting or a session.
        return gate_grammar.classify(frame)

    def interrupt_frame(self, request_id: str, locator: NativeLocator) -> bytes:
        return gate_grammar.interrupt_frame(request_id)

    def tap_reader(self, *, message_id: str | None, start_offset: int) -> TapReader:
        return ClaudeTapReader(message_id=message_id, start_offset=start_offset)

    def read_segment(self, data: bytes, *, from_start: bool) -> StoreSegment:
        return store_reader.read_segment(data, from_start=from_start)

    def must_retire(self, findings: TapFindings) -> str | None:
        """Why this process may not serve another turn; None to keep it.

        BACKGROUND_PENDING comes first because it changes *how* the process must leave: with a background task pending, closing stdin
        makes it run a turn of its own, so it gets SIGTERM instead. API_RETRY_SEEN: the late `api_error` record is written when the
        next turn of the same process begins, and a later resume then skips the reply.
        """
        if findings.background_pending:
            return "BACKGROUND_PENDING"
        if findings.retry_seen:
            return "API_RETRY_SEEN"
        if findings.reset_to is not None or len(findings.session_ids) > 1:
            return "SESSION_CHANGED"
        if findings.end is None:
            return "NO_NATIVE_END"
        if findings.end.cancelled:
            return "CANCELLED"
        if not findings.message_started:
            return "NO_LIFECYCLE"
        if not findings.lifecycle_closed:
            return "LIFECYCLE_NOT_CLOSED"
        return None
