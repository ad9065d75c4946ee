"""What a driver is: frames out, events in, for one CLI. Pure: no clock, no I/O, no asyncio, no grpc.

One driver object serves one activation. Time belongs to the conductor; no driver of this house needs a clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from runner.core.events import DriverEvent


@dataclass(frozen=True, slots=True)
class Opening:
    """What one activation is opened with. `start_offset` is the tap offset of the first byte that will be fed.

    `native_session_id` is None for a session that begins and whose id the CLI names in its handshake; `store` is the
    locator's, None while it is not known; `workspace` is the working folder; the settings are the conversation's.
    """

    start_offset: int = 0
    native_session_id: str | None = None
    store: str | None = None
    resumes: bool = False
    workspace: str = ""
    model: str | None = None
    permission_mode: str = "auto"
    options: Mapping[str, str] = field(default_factory=dict)


class Driver(Protocol):
    """One CLI's protocol, for one activation."""

    agent: str

    def handshake_frames(self, *, process_is_new: bool) -> list[bytes]:
        """The frames of the native start or resume; empty for a running process. Each frame is one line with its line
        end.
        """

    def user_frames(self, text: str, *, message_id: str) -> list[bytes]:
        """The one user frame. The text goes byte for byte."""

    def expect(self, *, process_is_new: bool, message_id: str) -> None:
        """For reading a recorded activation: the frames were written by an earlier reader, nothing is to be written
        now.
        """

    def steer_frames(self, text: str, *, message_id: str) -> list[bytes] | None:
        """A further message into the turn that runs. None: this CLI cannot do that."""

    def interrupt_frames(self) -> list[bytes]:
        """The native interrupt of the running turn."""

    def answer_unknown_frames(self, request_id: str) -> list[bytes]:
        """The native refusal of a request that this driver does not know or may not answer."""

    def feed(self, data: bytes) -> list[DriverEvent]:
        """Takes the next raw bytes, in any cuts. Never raises on what the CLI prints.

        FramesDue among the events asks for frames that are to be written at once.

        Events come in the order of the bytes. Content that may not be passed on yet is held back and comes with the
        frame that frees it, or never.
        """

    def end_of_stream(self) -> list[DriverEvent]:
        """The stream is over: what is left in the buffer is noise."""
