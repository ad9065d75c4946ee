"""The driver of OpenCode 1.18.33 and Kilo 7.7.7 behind the bridge: builds every frame, reads the raw bytes of one activation.

Pure. One driver for both: what differs between the two, the bridge deals with.
"""

from __future__ import annotations

from runner.core.answers import (
    Answer,
    AnswerShapeError,
    PermissionAnswer,
    QuestionAnswer,
    RejectAnswer,
    check_answer,
)
from runner.core.events import DriverEvent, FrameRead, NoiseLine
from runner.drivers.http_bridge import frames
from runner.drivers.http_bridge.reader import BridgeReader
from runner.drivers.line_framer import Line, LineFramer
from runner.drivers.port import Opening

OPENCODE, OPENCODE_VERSION = "opencode", "1.18.33"
KILO, KILO_VERSION = "kilo", "7.7.7"
# What a permission rule may name: the native names of the permissions.
RULE_TOOLS = ("bash", "edit", "external_directory", "glob", "grep", "read", "skill", "task", "webfetch")
_UNKNOWN = "This request is not answered here."


class HttpBridgeDriver:
    """One activation."""

    def __init__(self, agent: str, opening: Opening) -> None:
        self.agent = agent
        self._opening = opening
        self._framer = LineFramer(opening.start_offset)
        self._reader = BridgeReader()
        self._message_id: str | None = None
        self._interrupts = 0

    def handshake_frames(self, *, process_is_new: bool) -> list[bytes]:
        if not process_is_new:
            return []
        self._reader.handshake_written()
        opening = self._opening
        session = opening.native_session_id if opening.resumes else None
        return [frames.open_frame(session, opening.workspace)]

    def user_frames(self, text: str, *, message_id: str) -> list[bytes]:
        self._message_id = message_id
        self._reader.message_written(message_id)
        return [frames.prompt_frame(text, message_id=message_id)]

    def expect(self, *, process_is_new: bool, message_id: str) -> None:
        if process_is_new:
            self._reader.handshake_written()
        self._message_id = message_id
        self._reader.message_written(message_id)

    def steer_frames(self, text: str, *, message_id: str) -> list[bytes] | None:
        """A prompt to a busy session joins the running loop and, when that is aborted, goes out with the next turn."""
        return None

    def interrupt_frames(self) -> list[bytes]:
        self._interrupts += 1
        # A kept process serves many activations: the message id keeps the request ids of two of them apart.
        return [frames.abort_frame(f"int-{self._message_id or 'none'}-{self._interrupts}")]

    def answer_frames(self, request_id: str, answer: Answer) -> list[bytes]:
        request = self._reader.requests.get(request_id)
        if request is None:
            raise AnswerShapeError("the id of an open request", "another")
        check_answer(request, answer)
        # Answered once: what the bridge says of it afterwards closes nothing that is open.
        del self._reader.requests[request_id]
        match answer:
            case PermissionAnswer(allow, message):
                return [frames.permission_frame(request_id, allow=allow, message=message)]
            case QuestionAnswer(answers):
                return [frames.answers_frame(request_id, answers)]
            case RejectAnswer(message):
                return [frames.reject_frame(request_id, message)]

    def answer_unknown_frames(self, request_id: str) -> list[bytes]:
        request = self._reader.requests.pop(request_id, None)
        if request is not None and request.kind == "question":
            return [frames.reject_frame(request_id, _UNKNOWN)]
        return [frames.permission_frame(request_id, allow=False, message=_UNKNOWN)]

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
        if line.content.startswith(frames.WIRE_MARK):
            return []
        fields = frames.parse_object(line.content)
        frame = frames.Frame(fields or {})
        if fields is None or not frame.is_ours:
            return [DriverEvent(NoiseLine(len(line.content)), line.end_offset, line.content)]
        bodies = [FrameRead(frame.kind), *self._reader.read(frame)]
        return [DriverEvent(body, line.end_offset, line.content) for body in bodies]
