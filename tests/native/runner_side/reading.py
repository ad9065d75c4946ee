"""Feeds a recorded activation through a driver, as the conductor would, and sorts what it says."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TypeVar

from runner.core.events import (
    AssistantMessage,
    DriverEvent,
    Fact,
    NativeTurnEnded,
    NoiseLine,
    Normalised,
    ProcessMustRetire,
    SessionSeen,
    TextDelta,
    ToolCall,
    ToolResult,
)
from runner.drivers.claude_code.driver import ClaudeCodeDriver
from tests.native.runner_side.recordings import Activation, lines

T = TypeVar("T")

MESSAGE_ID = "aaaaaaaa-0000-4000-8000-0000000000ff"


@dataclass
class Reading:
    """What a driver said of one activation."""

    driver: ClaudeCodeDriver
    events: list[DriverEvent]

    @property
    def bodies(self) -> list[Fact | Normalised]:
        return [event.body for event in self.events]

    def of(self, kind: type[T]) -> list[T]:
        return [body for body in self.bodies if isinstance(body, kind)]

    @property
    def ends(self) -> list[NativeTurnEnded]:
        return self.of(NativeTurnEnded)

    @property
    def root_text(self) -> list[str]:
        return [message.text for message in self.of(AssistantMessage) if message.parent_id is None]

    @property
    def retirements(self) -> list[str]:
        return [retire.reason for retire in self.of(ProcessMustRetire)]

    @property
    def session_ids(self) -> list[str]:
        return list(dict.fromkeys(seen.session_id for seen in self.of(SessionSeen)))

    @property
    def noise(self) -> int:
        return len(self.of(NoiseLine))

    @property
    def content(self) -> list[Normalised]:
        kinds = (TextDelta, AssistantMessage, ToolCall, ToolResult)
        return [body for body in self.bodies if isinstance(body, kinds)]


def read_activation(activation: Activation, *, cut_every: int | None = None) -> Reading:
    """Feeds what was printed before and after the write; `cut_every` cuts it into reads of that many bytes."""
    driver = ClaudeCodeDriver()
    if activation.process_is_new:
        driver.handshake_frames(process_is_new=True)
    events = _feed(driver, lines(activation.before), cut_every)
    written = driver.user_frames(activation.text, message_id=activation.message_id)
    assert json.loads(written[0])["uuid"] == activation.message_id
    events += _feed(driver, lines(activation.after), cut_every)
    return Reading(driver, events)


def read_bytes(printed: bytes, *, process_is_new: bool = True, cut_every: int | None = None) -> Reading:
    """Feeds bytes that were printed after the write of a message whose uuid nothing in them names."""
    driver = ClaudeCodeDriver()
    driver.handshake_frames(process_is_new=process_is_new)
    driver.user_frames("hello", message_id=MESSAGE_ID)
    events = _feed(driver, printed, cut_every)
    events += driver.end_of_stream()
    return Reading(driver, events)


def _feed(driver: ClaudeCodeDriver, data: bytes, cut_every: int | None) -> list[DriverEvent]:
    if cut_every is None:
        return driver.feed(data)
    pieces = [data[start : start + cut_every] for start in range(0, len(data), cut_every)]
    return [event for piece in pieces for event in driver.feed(piece)]
