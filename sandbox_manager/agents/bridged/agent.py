"""A server behind the bridge: the one object that the host agent and the manager know it by."""

from __future__ import annotations

from sandbox_manager.agents.bridged import gate_grammar, launch, store_reader
from sandbox_manager.agents.bridged.product import Product
from sandbox_manager.agents.bridged.tap_reader import BridgedTapReader
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


class BridgedAgent:
    """Implements SandboxAgent."""

    identity_known: str = "BEFORE_PROMPT"
    names_session: str = "CLI"
    needs_per_process: tuple[str, ...] = ("model", "permission_mode", "allow_rules", "deny_rules", *launch.OPTIONS)

    def __init__(self, product: Product) -> None:
        self.name: str = product.name
        self.version: str = product.version
        self.executable: str = product.executable
        self._product = product

    def launch(self, settings: LaunchSettings) -> LaunchSpec:
        return launch.launch(self._product, settings)

    def keeps_pinned(self, spec: LaunchSpec) -> bool:
        return launch.keeps_pinned(self._product, spec)

    def locator(self, native_session_id: str, workspace: str) -> NativeLocator:
        return launch.locator(self._product, native_session_id, workspace)

    def named_locator(self, granted: NativeLocator, findings: TapFindings, *, home: str) -> NativeLocator:
        whole = complete_locator(granted, findings, home=home)
        launch.store_location(self._product, whole)
        return whole

    def store_location(self, locator: NativeLocator) -> StoreLocation:
        return launch.store_location(self._product, locator)

    def classify(self, frame: bytes, context: GateContext) -> GateFrame:
        return gate_grammar.classify(frame, context)

    def interrupt_frame(self, request_id: str) -> bytes:
        return gate_grammar.interrupt_frame(request_id)

    def tap_reader(self, *, message_id: str | None, start_offset: int) -> TapReader:
        return BridgedTapReader(message_id=message_id, start_offset=start_offset)

    def read_segment(self, data: bytes, *, from_start: bool) -> StoreSegment:
        return store_reader.read_segment(data, from_start=from_start)

    def must_retire(self, findings: TapFindings) -> str | None:
        """Why this process may not serve another turn; None to keep it.

        WAKEUP_PENDING: the server would begin a turn of its own later; it gets SIGTERM. What the bridge itself found comes by its own
        word: a foreign prompt, a reply that nobody of us gave.
        """
        if findings.background_pending:
            return "WAKEUP_PENDING"
        if findings.retire_reason is not None:
            return findings.retire_reason
        if len(findings.session_ids) > 1:
            return "SESSION_CHANGED"
        if findings.end is None:
            return "NO_NATIVE_END"
        if findings.end.cancelled:
            return "CANCELLED"
        return None
