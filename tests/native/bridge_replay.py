"""Plays a recording of a server to the bridge's turn machine, and writes down the tap that a supervisor would have kept of it.

A recording has what the server sent and was asked, with times. The machine gets its events in their order; what it asks of the server is
answered from what the server had announced by then (its messages, which sessions work), and its timers run on the recording's clock.
"""

from __future__ import annotations

import base64
import copy
import heapq
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandbox_manager.guest.bridge.effects import (
    AbortAsked,
    AbortDone,
    AnswerCame,
    Begun,
    Effect,
    EndRead,
    Event,
    Post,
    PostAbort,
    PostDone,
    PostPrompt,
    PromptTaken,
    ReadEnd,
    Say,
    ServerEvent,
    SetTimer,
    Subscribe,
    Subscribed,
    SubscriptionLost,
    TimerFired,
)
from sandbox_manager.guest.bridge.flavours import FLAVOURS
from sandbox_manager.guest.bridge.protocol import encode
from sandbox_manager.guest.bridge.turn import Turn

CAPTURES = Path(__file__).parents[1] / "captures"
OWN_ID = "0b1e7ab8-6a45-5a5e-9d8e-5f1f3a7c2d11"
Row = dict[str, Any]


class ServerState:
    """What the server had announced so far: its messages with their parts, and which sessions work."""

    def __init__(self) -> None:
        self.messages: dict[str, Row] = {}
        self.busy: dict[str, str] = {}

    def note(self, kind: str, properties: Row) -> None:
        match kind:
            case "message.updated":
                info = properties["info"]
                self.messages.setdefault(info["id"], {"info": info, "parts": {}})["info"] = info
            case "message.removed":
                self.messages.pop(properties["messageID"], None)
            case "message.part.updated":
                part = properties["part"]
                message = self.messages.setdefault(part["messageID"], {"info": {"id": part["messageID"]}, "parts": {}})
                message["parts"][part["id"]] = {**message["parts"].get(part["id"], {}), **part}
            case "session.status":
                self.busy[properties["sessionID"]] = properties["status"]["type"]
            case _:
                pass

    def of(self, session: str) -> list[Row]:
        """The session's messages as `GET /session/:id/message` gives them."""
        found = [one for one in self.messages.values() if one["info"].get("sessionID") == session]
        return [copy.deepcopy({"info": one["info"], "parts": list(one["parts"].values())}) for one in found]


@dataclass
class Played:
    """One turn of a recording as the bridge took it."""

    turn: Turn
    session: str
    lines: list[Row] = field(default_factory=list)
    posts: list[Post] = field(default_factory=list)
    aborts: int = 0
    tap: bytearray = field(default_factory=bytearray)

    def of(self, name: str) -> list[Row]:
        return [line for line in self.lines if line["ev"] == name]

    @property
    def settled(self) -> Row:
        """The one settled line."""
        (line,) = self.of("settled")
        return line

    @property
    def root_texts(self) -> list[str]:
        return [line["text"] for line in self.of("text") if line["parent"] is None]


class Player:
    """Plays one turn. `rows` are the recording's from its prompt on; `answers` for questions, in order."""

    def __init__(
        self,
        flavour: str,
        session: str,
        native_id: str,
        state: ServerState,
        *,
        mode: str = "auto",
        answers: Iterable[tuple[tuple[str, ...], ...] | None] = (),
        retries_max: int = 6,
        reply_statuses: Iterable[int | None] = (),
        allows: bool = True,
    ) -> None:
        turn = Turn(FLAVOURS[flavour], session, OWN_ID, native_id, "the message", mode=mode, retries_max=retries_max)
        self.played = Played(turn, session)
        self._state = state
        self._answers = iter(answers)
        self._statuses = iter(reply_statuses)
        self._allows = allows
        self._timers: list[tuple[float, int, str]] = []
        self._newest_timer: dict[str, int] = {}
        self._serial = 0
        self._now = 0.0
        self._exchanges = 0
        self._stream = 0

    def begin(self) -> None:
        self._step(Begun())
        self._step(Subscribed())
        self._step(PromptTaken())

    def play(self, rows: Iterable[Row]) -> Played:
        """Gives the rows to the machine; then lets the timers run out, until the turn is over."""
        for row in rows:
            self.advance(row["t"])
            if self.played.turn.is_over:
                break  # what the server says afterwards, nobody hears
            message = row["msg"]
            if row["dir"] == "sse":
                self.event(message["type"], message.get("properties", {}))
            elif row["dir"] == "http" and message["path"].endswith("/abort"):
                self._step(AbortAsked())
        while self._timers and not self.played.turn.is_over:
            self._fire()
        return self.played

    def event(self, kind: str, properties: Row) -> None:
        if kind == "sync":
            return
        self._state.note(kind, properties)
        self._from_server(self._stream, _event_bytes(kind, properties))
        self._step(ServerEvent(kind, properties))

    def lose(self, why: str = "cut") -> Played:
        """The subscription breaks."""
        self._step(SubscriptionLost(why))
        return self.played

    def step(self, event: Event) -> None:
        self._step(event)

    def advance(self, now: float) -> None:
        """The clock goes on; timers that are due fire."""
        if self._now == 0.0:
            self._now = now
        while self._timers and self._timers[0][0] <= now:
            self._fire()
        self._now = max(self._now, now)

    def run_out(self) -> Played:
        """All timers fire."""
        while self._timers and not self.played.turn.is_over:
            self._fire()
        return self.played

    # --- private ------------------------------------------------------------------------------------------------------
    def _fire(self) -> None:
        due, serial, name = heapq.heappop(self._timers)
        self._now = max(self._now, due)
        if self._newest_timer.get(name) == serial:
            self._step(TimerFired(name))

    def _step(self, event: Event) -> None:
        for effect in self.played.turn.step(event):
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Say(line):
                self.played.lines.append(line)
                self.played.tap += encode(line)
            case SetTimer(name, seconds):
                self._serial += 1
                self._newest_timer[name] = self._serial
                heapq.heappush(self._timers, (self._now + seconds, self._serial, name))
            case Subscribe():
                self._stream = self._ask("GET", "/event?directory=%2Fws", None)
                head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
                self._from_server(self._stream, head)
            case PostPrompt(native_id, text):
                body = {"messageID": native_id, "parts": [{"type": "text", "text": text}]}
                number = self._ask("POST", f"/session/{self.played.session}/prompt_async?directory=%2Fws", body)
                self._from_server(number, b"HTTP/1.1 204 No Content\r\n\r\n")
            case PostAbort():
                self.played.aborts += 1
                self._answer(self._ask("POST", f"/session/{self.played.session}/abort", {}), True)
                self._step(AbortDone(True))
            case Post(name, path, body):
                self.played.posts.append(effect)
                status = next(self._statuses, 200)
                self._answer(self._ask("POST", path, body), True)
                if name is not None:
                    self._step(PostDone(name, status))
            case ReadEnd():
                self._read_end()
            case _:
                pass
        if isinstance(effect, Say) and effect.event["ev"] == "ask":
            self._answer_ask(effect.event)

    def _answer_ask(self, ask: Row) -> None:
        if ask["kind"] == "permission":
            self._step(AnswerCame(ask["id"], "permission", allow=self._allows, message="no"))
        else:
            answers = next(self._answers, None)
            self._step(AnswerCame(ask["id"], "question", answers=answers))

    def _read_end(self) -> None:
        busy = {name: {"type": kind} for name, kind in self._state.busy.items() if kind != "idle"}
        self._answer(self._ask("GET", "/session/status", None), busy)
        if self.played.session in busy:
            self._step(EndRead(True))
            return
        messages = self._state.of(self.played.session)
        self._answer(self._ask("GET", f"/session/{self.played.session}/message?limit=50", None), messages)
        self._step(EndRead(False, messages))

    def _ask(self, method: str, path: str, body: Row | None) -> int:
        self._exchanges += 1
        content = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: *\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        self._wire({"wire": self._exchanges, "at": "open", "port": 4096})
        data = base64.b64encode(head.encode() + content).decode()
        self._wire({"wire": self._exchanges, "at": "bridge", "bytes": data})
        return self._exchanges

    def _answer(self, number: int, body: Any) -> None:
        content = json.dumps(body).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        self._from_server(number, head.encode() + content)
        self._wire({"wire": number, "at": "closed"})

    def _from_server(self, number: int, data: bytes) -> None:
        self._wire({"wire": number, "at": "server", "bytes": base64.b64encode(data).decode()})

    def _wire(self, line: Row) -> None:
        self.played.tap += json.dumps(line, separators=(",", ":")).encode() + b"\n"


def _event_bytes(kind: str, properties: Row) -> bytes:
    return b"data: " + json.dumps({"id": "evt_1", "type": kind, "properties": properties}).encode() + b"\n\n"


def rows_of(path: str) -> list[Row]:
    """A recording, e.g. "opencode/abort"."""
    return [json.loads(line) for line in (CAPTURES / f"{path}.jsonl").read_text().splitlines()]


def turns_of(path: str) -> list[tuple[str, str, list[Row]]]:
    """A recording cut at its prompts: session, native id of the message, the rows from there to the next prompt."""
    cuts: list[list[Row]] = []
    for row in rows_of(path):
        if row["dir"] == "http" and str(row["msg"].get("path", "")).endswith("/prompt_async"):
            cuts.append([])
        if cuts and row["dir"] in ("http", "sse"):
            cuts[-1].append(row)
    turns = []
    for rows in cuts:
        session = rows[0]["msg"]["path"].split("/")[2]
        users = [
            row["msg"]["properties"]["info"]["id"]
            for row in rows
            if row["dir"] == "sse"
            and row["msg"]["type"] == "message.updated"
            and row["msg"]["properties"]["info"]["role"] == "user"
            and row["msg"]["properties"]["info"].get("sessionID") == session
        ]
        # A former turn's message is announced again at the begin of the next one; the newest id is this one's.
        turns.append((session, max(users), rows))
    return turns


def play(path: str, index: int = 0, **options: Any) -> Played:
    """One turn of a recording, with what the server had announced before it."""
    turns = turns_of(path)
    state = ServerState()
    for _, _, rows in turns[:index]:
        for row in rows:
            if row["dir"] == "sse" and row["msg"]["type"] != "sync":
                state.note(row["msg"]["type"], row["msg"]["properties"])
    session, native_id, rows = turns[index]
    player = Player(path.partition("/")[0], session, native_id, state, **options)
    player.begin()
    return player.play(rows[1:])
