"""The driver of the built-in agent: builds every frame, and reads the raw bytes of one activation. Pure."""

from __future__ import annotations

from runner.core.answers import Answer
from runner.core.events import DriverEvent, FrameRead, NoiseLine
from runner.drivers.direct import frames
from runner.drivers.direct.reader import NAMING_SOURCE, StreamReader
from runner.drivers.line_framer import Line, LineFramer
from runner.drivers.port import Opening

AGENT = "direct"
VERSION = "1.0.0"
OPTIONS = (
    "protocol",
    "contract",
    "thinking",
    "effort",
    "max_tokens",
    "wait_budget_s",
    "turn_limit_s",
    "transport_retries",
)
RULE_TOOLS = ("edit", "list", "multi_edit", "read", "search", "shell", "write")
NAMING_FRAMES = frozenset({NAMING_SOURCE})


class DirectDriver:
    """One activation."""

    agent = AGENT

    def __init__(self, opening: Opening) -> None:
        self._framer = LineFramer(opening.start_offset)
        self._reader = StreamReader()
        self._message_id: str | None = None
        self._interrupts = 0

    def handshake_frames(self, *, process_is_new: bool) -> list[bytes]:
        if not process_is_new:
            return []
        self._reader.handshake_written()
        return [frames.initialize_frame()]

    def user_frames(self, text: str, *, message_id: str) -> list[bytes]:
        self._message_id = message_id
        self._reader.message_written(message_id)
        return [frames.user_frame(text, message_id=message_id)]

    def expect(self, *, process_is_new: bool, message_id: str) -> None:
        if process_is_new:
            self._reader.handshake_written()
        self._message_id = message_id
        self._reader.message_written(message_id)

    def steer_frames(self, text: str, *, message_id: str) -> list[bytes] | None:
        return [frames.steer_frame(text, message_id=message_id)]

    def interrupt_frames(self) -> list[bytes]:
        self._interrupts += 1
        # A kept process serves many activations: the message id keeps the request ids of two of them apart.
        return [frames.interrupt_frame(f"int-{self._message_id or 'none'}-{self._interrupts}")]

    def answer_frames(self, request_id: str, answer: Answer) -> list[bytes]:
        return [self._reader.requests.answer(request_id, answer)]

    def answer_unknown_frames(self, request_id: str) -> list[bytes]:
        return [frames.permission_frame(request_id, allow=False, message="this driver does not answer such requests")]

    def feed(self, data: bytes) -> list[DriverEvent]:
        return [event for line in self._framer.feed(data) for event in self._read(line)]

    def end_of_stream(self) -> list[DriverEvent]:
        rest = self._framer.finish()
        offset = self._framer.offset
        events = [] if rest is None else [DriverEvent(NoiseLine(len(rest.content)), rest.end_offset, rest.content)]
        return events + [DriverEvent(body, offset, b"") for body in self._reader.end_of_stream()]

    def _read(self, line: Line) -> list[DriverEvent]:
        frame = frames.parse_frame(line.content)
        if frame is None:
            return [DriverEvent(NoiseLine(len(line.content)), line.end_offset, line.content)]
        bodies = [FrameRead(frame.type), *self._reader.read(frame)]
        return [DriverEvent(body, line.end_offset, line.content) for body in bodies]
