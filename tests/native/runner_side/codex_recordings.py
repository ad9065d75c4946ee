"""Recorded streams of Codex, played to its driver: what was written is built by the driver, what was printed is fed.

The recordings' requests have whole numbers as ids, the driver's have texts; the answers in them get the driver's ids.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from runner.core.events import (
    AssistantMessage,
    DriverEvent,
    Fact,
    FramesDue,
    HandshakeAnswered,
    NativeRequest,
    NativeTurnEnded,
    Normalised,
    ProcessMustRetire,
    ToolCall,
)
from runner.core.identity import IdentityJudge
from runner.core.verdict import Verdict
from runner.drivers.codex.driver import CodexDriver
from runner.drivers.port import Opening

CAPTURES = Path(__file__).parents[2] / "captures" / "codex"
NAMING = frozenset({"turn/started"})

T = TypeVar("T")


@dataclass
class Played:
    """One activation: what its driver said, and what it wrote beside what was written in the recording."""

    driver: CodexDriver
    judge: IdentityJudge
    events: list[DriverEvent] = field(default_factory=list)
    wrote: list[tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=list)  # (ours, the recording's)

    @property
    def bodies(self) -> list[Fact | Normalised]:
        return [event.body for event in self.events]

    def of(self, kind: type[T]) -> list[T]:
        return [body for body in self.bodies if isinstance(body, kind)]

    @property
    def texts(self) -> list[str]:
        return [message.text for message in self.of(AssistantMessage) if message.parent_id is None]

    @property
    def ends(self) -> list[NativeTurnEnded]:
        return self.of(NativeTurnEnded)

    @property
    def retirements(self) -> list[str]:
        return [retire.reason for retire in self.of(ProcessMustRetire)]

    @property
    def tools(self) -> list[str]:
        return [call.tool for call in self.of(ToolCall)]

    @property
    def requests(self) -> list[NativeRequest]:
        return self.of(NativeRequest)

    @property
    def verdict(self) -> Verdict:
        return self.judge.verdict().verdict

    def feed(self, data: bytes, cut_every: int | None = None) -> None:
        size = cut_every or max(len(data), 1)
        for start in range(0, len(data), size):
            events = self.driver.feed(data[start : start + size])
            self.events += events
            for event in events:
                self.judge.observe(event.body)


def open_activation(opening: Opening, *, process_is_new: bool) -> Played:
    played = Played(CodexDriver(opening), IdentityJudge(opening.native_session_id, naming=NAMING))
    played.driver.handshake_frames(process_is_new=process_is_new)
    return played


def play(name: str, *, cut_every: int | None = None) -> list[Played]:
    """Every activation of a recording, in order. What is printed after an end belongs to the activation before."""
    return _Player(cut_every).play((CAPTURES / f"{name}.jsonl").read_bytes())


class _Player:
    def __init__(self, cut_every: int | None) -> None:
        self._cut_every = cut_every
        self._found: list[Played] = []
        self._current: Played | None = None
        self._has_message = False
        self._process: int | None = None
        self._ids: dict[int, str] = {}
        self._thread_id: str | None = None
        self._due: list[dict[str, Any]] = []
        self._interrupted_with: list[dict[str, Any]] = []

    def play(self, data: bytes) -> list[Played]:
        for line in data.split(b"\n")[:-1]:
            row = json.loads(line)
            if row["dir"] == "in":
                self._written(row["proc"], row["msg"])
            elif row["dir"] == "out":
                self._printed(row["msg"])
        return self._found

    def _written(self, process: int, message: dict[str, Any]) -> None:
        method = message.get("method")
        if method == "initialize":
            self._process, self._ids, self._current, self._has_message = process, {message["id"]: "init-1"}, None, False
        elif method in ("thread/start", "thread/resume"):
            self._handshake(message)
        elif method == "turn/start":
            self._message(message)
        elif method == "turn/interrupt":
            assert self._current is not None
            (ours,) = self._current.driver.interrupt_frames()
            self._current.wrote.append((json.loads(ours), message))
        elif "id" in message and method is not None:
            self._ids[message["id"]] = f"another-{message['id']}"

    def _handshake(self, message: dict[str, Any]) -> None:
        if self._current is not None:
            self._ids[message["id"]] = f"another-{message['id']}"
            return
        params = message["params"]
        self._ids[message["id"]] = "thread-1"
        opening = Opening(
            native_session_id=params.get("threadId"),
            resumes=message["method"] == "thread/resume",
            workspace=params.get("cwd", ""),
            permission_mode="auto" if params.get("approvalPolicy") == "never" else "ask",
        )
        self._current = open_activation(opening, process_is_new=True)
        self._found.append(self._current)
        # The recording asked for initialize before; its answer makes ours due, which is compared with the recording's.
        self._current.feed(b'{"id":"init-1","result":{"userAgent":"x"}}\n')
        (due,) = self._current.of(FramesDue)
        assert json.loads(due.frames[0]) == {"method": "initialized"}
        self._current.wrote.append((json.loads(due.frames[1]), message))

    def _message(self, message: dict[str, Any]) -> None:
        params = message["params"]
        if self._current is None or self._has_message:
            self._current = open_activation(
                Opening(native_session_id=params["threadId"], resumes=True, workspace="/workspace"),
                process_is_new=False,
            )
            self._found.append(self._current)
        message_id = params.get("clientUserMessageId", f"m-{message['id']}")
        self._ids[message["id"]] = f"turn-{message_id}"
        (ours,) = self._current.driver.user_frames(params["input"][0]["text"], message_id=message_id)
        self._current.wrote.append((json.loads(ours), message))
        self._has_message = True

    def _printed(self, message: dict[str, Any]) -> None:
        if "method" not in message:
            message = {**message, "id": self._ids.get(message["id"], message["id"])}
        if self._current is not None and message.get("id") != "init-1":
            line = json.dumps(message, ensure_ascii=False).encode() + b"\n"
            self._current.feed(line, self._cut_every)


def handshakes(played: Played) -> list[HandshakeAnswered]:
    return played.of(HandshakeAnswered)
