"""What a driver is: frames out, events in, for one CLI. Pure: no clock, no I/O, no asyncio, no grpc.

One driver object serves one activation. Time belongs to the conductor; no driver of this house needs a clock.
"""

from __future__ import annotations

from typing import Protocol

from runner.core.events import DriverEvent


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

    def interrupt_frames(self) -> list[bytes]:
        """The native interrupt of the running turn."""

    def answer_unknown_frames(self, request_id: str) -> list[bytes]:
        """The native refusal of a request that this driver does not know or may not answer."""

    def feed(self, data: bytes) -> list[DriverEvent]:
        """Takes the next raw bytes, in any cuts. Never raises on what the CLI prints.

        Events come in the order of the bytes. Content that may not be passed on yet is held back and comes with the
        frame that frees it, or never.
        """

    def end_of_stream(self) -> list[DriverEvent]:
        """The stream is over: what is left in the buffer is noise."""
