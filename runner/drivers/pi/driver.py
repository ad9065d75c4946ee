"""The driver of Pi 1.6.0: builds every frame, and reads the raw bytes of one activation. Pure."""

from __future__ import annotations

from runner.core.events import DriverEvent, FrameRead, NoiseLine
from runner.drivers.line_framer import Line, LineFramer
from runner.drivers.pi import frames
from runner.drivers.pi.reader import StreamReader
from runner.drivers.port import Opening

AGENT = "pi"
VERSION = "1.6.0"


class PiDriver:
    """One activation."""

    agent = AGENT

    def __init__(self, opening: Opening) -> None:
        self._framer = LineFramer(opening.start_offset)
        self._reader = StreamReader(opening.model)
        self._message_id: str | None = None
        self._interrupts = 0

    def handshake_frames(self, *, process_is_new: bool) -> list[bytes]:
        """The CLI starts or resumes by its command line; its state says which session that came to."""
        if not process_is_new:
            return []
        self._reader.handshake_written()
        return [frames.state_frame(frames.HANDSHAKE_ID)]

    def user_frames(self, text: str, *, message_id: str) -> list[bytes]:
        """A question for the session right before the message: no event of a turn names it."""
        self._message_id = message_id
        self._reader.message_written(message_id)
        return [frames.state_frame(f"who-{message_id}"), frames.prompt_frame(text, message_id=message_id)]

    def expect(self, *, process_is_new: bool, message_id: str) -> None:
        if process_is_new:
            self._reader.handshake_written()
        self._message_id = message_id
        self._reader.message_written(message_id)

    def steer_frames(self, text: str, *, message_id: str) -> list[bytes] | None:
        """Goes to the model as a user message of its own, after the reply or the tool that is under way (observed).

        One that comes when the turn has just ended stays queued and goes out with the next prompt: the process is
        retired then.
        """
        return [frames.steer_frame(text, message_id=message_id)]

    def interrupt_frames(self) -> list[bytes]:
        self._interrupts += 1
        # A kept process serves many activations: the message id keeps the request ids of two of them apart.
        return [frames.abort_frame(f"int-{self._message_id or 'none'}-{self._interrupts}")]

    def answer_unknown_frames(self, request_id: str) -> list[bytes]:
        return [frames.cancel_answer_frame(request_id)]

    def feed(self, data: bytes) -> list[DriverEvent]:
        return [event for line in self._framer.feed(data) for event in self._read(line)]

    def end_of_stream(self) -> list[DriverEvent]:
        rest = self._framer.finish()
        events: list[DriverEvent] = []
        offset = self._framer.offset
        if rest is not None:
            events.append(DriverEvent(NoiseLine(len(rest.content)), rest.end_offset, rest.content))
        events += [DriverEvent(body, offset, b"") for body in self._reader.end_of_stream()]
        return events

    def _read(self, line: Line) -> list[DriverEvent]:
        fields = frames.parse_object(line.content)
        if fields is None:
            return [DriverEvent(NoiseLine(len(line.content)), line.end_offset, line.content)]
        frame = frames.Frame(fields)
        bodies = [FrameRead(frame.kind), *self._reader.read(frame)]
        return [DriverEvent(body, line.end_offset, line.content) for body in bodies]
