"""The driver of Claude Code 2.1.220: builds every frame, and reads the raw bytes of one activation. Pure."""

from __future__ import annotations

from runner.core.answers import Answer
from runner.core.events import DriverEvent, FrameRead, NoiseLine
from runner.drivers.claude_code import frames
from runner.drivers.claude_code.asking import OpenRequests
from runner.drivers.claude_code.reader import StreamReader
from runner.drivers.json_fields import parse_object
from runner.drivers.line_framer import Line, LineFramer

AGENT = "claude-code"
VERSION = "2.1.220"
RULE_TOOLS = (
    "Agent",
    "AskUserQuestion",
    "Bash",
    "Edit",
    "Glob",
    "Grep",
    "NotebookEdit",
    "Read",
    "Skill",
    "Task",
    "WebFetch",
    "WebSearch",
    "Write",
)
"""Tools that a permission rule may name. It takes any other name in silence, so a rule that names one would do nothing."""


class ClaudeCodeDriver:
    """One activation. `start_offset` is the tap offset of the first byte that will be fed."""

    agent = AGENT

    def __init__(self, start_offset: int = 0) -> None:
        self._framer = LineFramer(start_offset)
        self._requests = OpenRequests()
        self._reader = StreamReader(self._requests)
        self._message_id: str | None = None
        self._interrupts = 0

    def handshake_frames(self, *, process_is_new: bool) -> list[bytes]:
        """A new process prints nothing before its first input: `initialize` makes it say that it could resume."""
        if not process_is_new:
            return []
        self._reader.handshake_written()
        return [frames.initialize_frame()]

    def user_frames(self, text: str, *, message_id: str) -> list[bytes]:
        """`message_id` must be a UUID: it becomes the native record's uuid, and the same one is never delivered
        twice.
        """
        self._message_id = message_id
        self._reader.message_written(message_id)
        return [frames.user_frame(text, message_id=message_id)]

    def expect(self, *, process_is_new: bool, message_id: str) -> None:
        if process_is_new:
            self._reader.handshake_written()
        self._message_id = message_id
        self._reader.message_written(message_id)

    def interrupt_frames(self) -> list[bytes]:
        self._interrupts += 1
        # A kept process serves many activations: the message id keeps the request ids of two of them apart.
        return [frames.interrupt_frame(f"int-{self._message_id or 'none'}-{self._interrupts}")]

    def answer_frames(self, request_id: str, answer: Answer) -> list[bytes]:
        return [self._requests.answer(request_id, answer)]

    def steer_frames(self, text: str, *, message_id: str) -> list[bytes] | None:
        """None: what is sent while a turn runs is joined with the next message."""
        return None

    def answer_unknown_frames(self, request_id: str) -> list[bytes]:
        why = "this driver does not answer requests of this kind"
        return [frames.error_answer_frame(request_id, why)]

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
        fields = parse_object(line.content)
        if fields is None:
            return [DriverEvent(NoiseLine(len(line.content)), line.end_offset, line.content)]
        frame = frames.Frame(fields)
        bodies = [FrameRead(frame.kind), *self._reader.read(frame)]
        return [DriverEvent(body, line.end_offset, line.content) for body in bodies]
