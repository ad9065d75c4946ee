"""What one CLI's file on the sandbox side offers: launch spec, gate grammar, tap reader, store reader, bookkeeping.

All of it is pure. The runner's driver for the same CLI is written apart and shares no code with this side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sandbox_manager.core.values import (
    LaunchSettings,
    LaunchSpec,
    NativeLocator,
    StoreLocation,
    StoreSegment,
    TapFindings,
)


@dataclass(frozen=True, slots=True)
class GateContext:
    """What a frame towards the CLI may name: the settings of the grant, and the session. No runner can choose other ones.

    `locator` is None until the CLI has named a session that it names itself.
    """

    workspace: str
    permission_mode: str
    model: str | None
    options: tuple[tuple[str, str], ...]
    locator: NativeLocator | None
    resumes: bool


@dataclass(frozen=True, slots=True)
class HandshakeFrame:
    """A frame of the native handshake: allowed to a new process, before an admission. Each `step` passes once."""

    request_id: str
    step: str = "start"


@dataclass(frozen=True, slots=True)
class FenceFrame:
    """A request that only reads, to which the CLI's answer marks a place in its output. Allowed once a message is admitted."""

    request_id: str


@dataclass(frozen=True, slots=True)
class UserFrame:
    """A user's message. `text` are the decoded text bytes with the agent's listed decoration taken off.

    `literal` is False when the CLI would take this very frame as a command of its own and not as text for the model.
    """

    text: bytes
    message_id: str | None
    literal: bool = True


@dataclass(frozen=True, slots=True)
class AnswerFrame:
    """An answer to a request that the CLI opened."""

    request_id: str


@dataclass(frozen=True, slots=True)
class InterruptFrame:
    """A native interrupt of the running turn."""

    request_id: str


@dataclass(frozen=True, slots=True)
class ForbiddenFrame:
    """Anything else. `why` names what was expected and what was found, with no content of it."""

    why: str


GateFrame = HandshakeFrame | FenceFrame | UserFrame | AnswerFrame | InterruptFrame | ForbiddenFrame


class TapReader(Protocol):
    """Reads one activation's raw bytes, in any cuts, and says what they prove."""

    def feed(self, data: bytes) -> None:
        """Takes the next raw bytes of the CLI's stdout. Never raises on what the CLI prints."""

    def findings(self) -> TapFindings:
        """What is known now. Cheap enough to ask after each feed."""


class SandboxAgent(Protocol):
    """One CLI, as the sandbox side knows it."""

    name: str
    version: str  # the exact pin
    executable: str  # its path relative to the tool folder, e.g. "claude-code/claude"
    identity_known: str  # BEFORE_PROMPT or FIRST_EVENT
    names_session: str  # who names a session that begins: HOST (its id is granted) or CLI (its handshake says it)
    has_helpers: bool  # whether it starts processes of its own before its native start is answered, which must stay as long as it does
    needs_per_process: tuple[str, ...]  # setting names that need a new process

    def launch(self, settings: LaunchSettings) -> LaunchSpec:
        """The command line, environment and files of one process. The prompt is never in argv; no secret is in argv."""

    def keeps_pinned(self, spec: LaunchSpec) -> bool:
        """Whether a process started like this leaves its own program alone: its updater is off."""

    def locator(self, native_session_id: str, workspace: str) -> NativeLocator:
        """The locator of a session that begins in that workspace; what the CLI is to name itself is empty in it."""

    def named_locator(self, granted: NativeLocator, findings: TapFindings, *, home: str) -> NativeLocator:
        """The granted locator made whole by what the CLI named in its handshake. `home` is the member's, absolute.

        Raises AgentLocatorError when something that it had to name is missing, or is no place of this CLI's in that home.
        """

    def store_location(self, locator: NativeLocator) -> StoreLocation:
        """Where that session's native store lies."""

    def classify(self, frame: bytes, context: GateContext) -> GateFrame:
        """What one line towards the CLI is, by the agent's own small grammar. One frame is one line with its line end.

        A frame that names other settings or another session than `context` is forbidden.
        """

    def interrupt_frame(self, request_id: str, locator: NativeLocator) -> bytes:
        """The native interrupt of the session's running turn, for the host agent's own use when the work's call is lost."""

    def tap_reader(self, *, message_id: str | None, start_offset: int) -> TapReader:
        """A reader for one activation. `message_id` is the admitted message's native id; None reads by order."""

    def read_segment(self, data: bytes, *, from_start: bool) -> StoreSegment:
        """Parses a store's bytes from a record boundary on. `from_start` says that nothing lies before them."""

    def must_retire(self, findings: TapFindings) -> str | None:
        """The reason why a process may not serve another turn after this one, by the agent's own rules; None to keep it."""
