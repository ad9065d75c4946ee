"""The driver of Codex 0.171.0: builds every frame, and reads the raw bytes of one activation. Pure."""

from __future__ import annotations

from runner.core.answers import Answer
from runner.core.events import DriverEvent, FrameRead, NoiseLine
from runner.drivers.codex import frames
from runner.drivers.codex.reader import Phase, StreamReader
from runner.drivers.json_fields import parse_object
from runner.drivers.line_framer import Line, LineFramer
from runner.drivers.port import Opening

AGENT = "codex"
VERSION = "0.171.0"


class CodexDriver:
    """One activation."""

    agent = AGENT

    def __init__(self, opening: Opening) -> None:
        self._framer = LineFramer(opening.start_offset)
        thread_frame = frames.thread_frame(
            thread_id=opening.native_session_id,
            workspace=opening.workspace,
            permission_mode=opening.permission_mode,
            model=opening.model,
            resumes=opening.resumes,
        )
        self._reader = StreamReader(
            opening.native_session_id, opens_with=thread_frame, denies=opening.permission_mode == "deny"
        )
        self._message_id: str | None = None
        self._interrupts = 0

    def handshake_frames(self, *, process_is_new: bool) -> list[bytes]:
        """The first of three: `initialized` and the native start or resume are due once it is answered."""
        if not process_is_new:
            return []
        self._reader.handshake_written()
        return [frames.initialize_frame()]

    def user_frames(self, text: str, *, message_id: str) -> list[bytes]:
        """`message_id` comes back in the turn's first user item and lies in the native history. The same one twice is two
        turns to this CLI: that nothing is sent twice is the caller's care.
        """
        thread_id = self._reader.thread_id
        if thread_id is None:
            raise ValueError("expected a thread that the handshake named before the first message, found none")
        self._message_id = message_id
        self._reader.message_written(message_id)
        return [frames.turn_frame(text, thread_id=thread_id, message_id=message_id)]

    def expect(self, *, process_is_new: bool, message_id: str) -> None:
        if process_is_new:
            self._reader.handshake_written()
        self._message_id = message_id
        self._reader.message_written(message_id)

    def steer_frames(self, text: str, *, message_id: str) -> list[bytes] | None:
        """A further message for the running turn; None while none is running.

        The CLI drops the reply it is in the middle of and asks the model anew with both messages (observed): the reply's
        pieces were streamed, and no whole one follows.
        """
        thread_id, turn_id = self._reader.thread_id, self._reader.turn_id
        if self._reader.phase is not Phase.RUNNING or thread_id is None or turn_id is None:
            return None
        self._reader.steered(message_id)
        return [frames.steer_frame(text, thread_id=thread_id, turn_id=turn_id, message_id=message_id)]

    def interrupt_frames(self) -> list[bytes]:
        thread_id = self._reader.thread_id
        if thread_id is None:
            return []
        self._interrupts += 1
        # A kept process serves many activations: the message id keeps the request ids of two of them apart.
        request_id = f"int-{self._message_id or 'none'}-{self._interrupts}"
        return [frames.interrupt_frame(request_id, thread_id=thread_id, turn_id=self._reader.turn_id)]

    def answer_frames(self, request_id: str, answer: Answer) -> list[bytes]:
        return [self._reader.requests.answer(request_id, answer)]

    def answer_unknown_frames(self, request_id: str) -> list[bytes]:
        """Nothing for a question: whatever is said to it but an answer is the empty answer to this CLI (observed)."""
        frame = self._reader.requests.refuse(request_id)
        return [] if frame is None else [frame]

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
