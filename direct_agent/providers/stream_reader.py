"""What the three stream readers share: bytes in, deltas out, and at the end one candidate or one fault.

A reader knows the events of its protocol (`_event`), when an answer is complete, and how to put it together. This file
knows framing, the end of the body, and what makes any answer unacceptable before reasoning is even looked at.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from direct_agent.providers import event_json
from direct_agent.providers.event_json import CutEventError, MalformedEventError
from direct_agent.providers.sse_lines import MIB, DataLine, LineParser, OverLongLineError
from direct_agent.recovery import classify
from direct_agent.recovery.fault import Fault, Reason
from direct_agent.transcript import AssistantMessage, Candidate, Finish, ToolCall, Usage

ANSWER_BYTES_MAX = 64 * MIB
REASONING_BYTES_MAX = 4 * MIB


class DeltaKind(StrEnum):
    TEXT = "text"
    REASONING = "reasoning"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class Delta:
    """Something to show while it arrives. TOOL: a call's name. It may all be discarded later."""

    kind: DeltaKind
    text: str


class StreamFaultError(Exception):
    """The attempt is over without a candidate."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


class StreamReader(ABC):
    """One attempt's answer. `provider` names the endpoint in messages for people."""

    line_bytes_max = 4 * MIB

    def __init__(self, provider: str) -> None:
        self.provider = provider
        self._lines = LineParser(self.line_bytes_max)
        self._deltas: list[Delta] = []
        self._bytes = 0
        self._broken: Reason | None = None
        self.is_done = False
        """The protocol's end came: nothing after it is read, and a broken connection cannot undo it."""
        self.showed_output = False
        """Any text, reasoning, tool fragment, opaque or search item was seen."""

    @property
    def line_count(self) -> int:
        return self._lines.lines

    def feed(self, chunk: bytes) -> list[Delta]:
        """Reads decoded bytes. Raises StreamFaultError."""
        self._bytes += len(chunk)
        if self._bytes > ANSWER_BYTES_MAX:
            raise StreamFaultError(classify.over_long_line(self.provider))
        try:
            lines = self._lines.feed(chunk)
        except OverLongLineError:
            raise StreamFaultError(self._over_long()) from None
        for line in lines:
            if not self.is_done:
                self._line(line)
        deltas, self._deltas = self._deltas, []
        return deltas

    def finish(self, broken: Reason | None = None) -> Candidate:
        """The body is over: the candidate, or StreamFaultError. `broken`: how it broke; None for a clean end."""
        self._broken = broken
        if not self.is_done:
            if (left := self._lines.close()) is not None:
                self._line(left)
            if not self.is_done and (broken is not None or not self._ends_at_eof()):
                raise StreamFaultError(classify.interrupted(self.provider, broken or Reason.PREMATURE_EOF))
        return self._judged(self._candidate())

    def usage(self) -> Usage:
        """What was reported so far, of one request. Unknown while input or output is."""
        found = self._reported()
        return replace(found, request_count=1, is_unknown=found.prompt is None or found.completion is None)

    def estimate_tokens(self) -> int:
        """What the seen part of an answer may be in tokens: bytes / 4 of text, reasoning and the longest arguments."""
        text, reasoning, arguments = self._seen()
        return sum(-(-size // 4) for size in (text, reasoning, arguments))

    def _line(self, line: DataLine) -> None:
        if not line.payload:
            return
        try:
            if self._has_done_marker() and event_json.is_done(line):
                self.is_done = True
                return
            self._event(event_json.event_value(line))
        except CutEventError:
            self._cut()
        except MalformedEventError:
            self._malformed()

    def _cut(self) -> None:
        raise StreamFaultError(classify.interrupted(self.provider, self._broken or Reason.PREMATURE_EOF))

    def _malformed(self) -> None:
        raise StreamFaultError(classify.malformed(self.provider))

    def _over_long(self) -> Fault:
        return classify.over_long_line(self.provider)

    def _error_event(self, error: object) -> None:
        raise StreamFaultError(classify.of_stream_event(self.provider, error, had_content=self.showed_output))

    def _show(self, kind: DeltaKind, text: str) -> None:
        self.showed_output = True
        if text:
            self._deltas.append(Delta(kind, text))

    def _judged(self, candidate: Candidate) -> Candidate:
        message = candidate.message
        if not (message.text or message.reasoning or message.tool_calls or message.opaque):
            raise StreamFaultError(classify.empty(self.provider))
        is_over_limit = message.finish in (Finish.LENGTH, Finish.INCOMPLETE, Finish.CONTENT_FILTER)
        if not is_over_limit and any(is_cut_arguments(call) for call in message.tool_calls):
            raise StreamFaultError(classify.truncated_tool_call(self.provider))
        return candidate

    @abstractmethod
    def _event(self, event: dict[str, object]) -> None:
        """One decoded event. Raises MalformedEventError when it is not of the protocol's shape."""

    @abstractmethod
    def _has_done_marker(self) -> bool: ...

    @abstractmethod
    def _ends_at_eof(self) -> bool:
        """Whether a clean end of the body now completes the answer."""

    @abstractmethod
    def _candidate(self) -> Candidate: ...

    @abstractmethod
    def _reported(self) -> Usage: ...

    @abstractmethod
    def _seen(self) -> tuple[int, int, int]:
        """Bytes of text, of reasoning, and of the longest argument text so far."""


def is_cut_arguments(call: ToolCall) -> bool:
    """Whether a call's arguments end inside their JSON."""
    return event_json.is_proper_prefix(call.arguments.encode("utf-8", "surrogatepass"))


def finished(calls: Sequence[ToolCall], finish: Finish | None) -> Finish:
    """How an answer ended that did not say it."""
    return finish or (Finish.TOOL_CALLS if calls else Finish.STOP)


def sized(message: AssistantMessage) -> tuple[int, int, int]:
    """Bytes of text, reasoning and the longest arguments of a message."""
    return (
        len(message.text.encode("utf-8", "replace")),
        sum(len(each.text.encode("utf-8", "replace")) for each in message.reasoning),
        max((len(call.arguments.encode("utf-8", "replace")) for call in message.tool_calls), default=0),
    )
