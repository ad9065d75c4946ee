"""The agent on a stdio: takes frames, runs one turn at a time, says events. Ends when its stdin ends.

    handshake   initialize -> initialized {session_id, store, cwd, last_turn, ...}: the session is named before any prompt
    a message   user -> accepted (durable) -> text_delta*, assistant*, tool_*, request* ... -> turn_end
    known id    user -> already_delivered, and nothing runs
    busy        user -> not_taken

Every event carries the session's id once it is open. A line that is no frame gets an `error` and changes nothing.
"""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Callable
from typing import Any

from direct_agent.loop.agent import Agent, BusyError, CompactionError, Known
from direct_agent.loop.requests import RequestNotOpenError
from direct_agent.session.errors import SessionError, SessionWriteError
from direct_agent.stdio.frames import (
    Answer,
    Compact,
    Frame,
    FrameError,
    Initialize,
    Interrupt,
    Lookup,
    SteerText,
    User,
    parse,
)
from direct_agent.stdio.streams import LinesIn, LinesOut

PROTOCOL = 1
LEAVE_TIMEOUT_S = 5.0

OpenAgent = Callable[[LinesOut], Agent]
"""Opens the session and makes the agent on it. Blocking. Raises SessionError."""


class Program:
    """One process. `about` are further fields of `initialized`: version, model, permission mode."""

    def __init__(self, lines_in: LinesIn, out: LinesOut, open_agent: OpenAgent, about: dict[str, Any]) -> None:
        self._in = lines_in
        self._out = out
        self._open_agent = open_agent
        self._about = about
        self._agent: Agent | None = None
        self._work: asyncio.Task[None] | None = None
        self._compaction_cancel = asyncio.Event()
        self._leaving = asyncio.Event()
        self.has_crashed = False

    async def run(self) -> None:
        """Until stdin ends or `leave` is called. A running turn is then cancelled and given a little time to end."""
        leaving = asyncio.create_task(self._leaving.wait())
        try:
            while not self._out.is_lost:
                line = asyncio.create_task(self._in.get())
                await asyncio.wait({line, leaving}, return_when=asyncio.FIRST_COMPLETED)
                if not line.done():
                    line.cancel()
                    break
                content = line.result()
                if content is None:
                    break
                if content.strip():
                    await self._line(content)
        finally:
            leaving.cancel()
            await self._end()

    def leave(self) -> None:
        self._leaving.set()

    async def _end(self) -> None:
        if self._agent is not None:
            self._agent.cancel()
            self._compaction_cancel.set()
            if self._work is not None:
                _, late = await asyncio.wait({self._work}, timeout=LEAVE_TIMEOUT_S)
                for task in late:
                    task.cancel()
                    await asyncio.wait({task}, timeout=LEAVE_TIMEOUT_S)
            await asyncio.to_thread(self._agent.session.close)

    async def _line(self, line: bytes) -> None:
        try:
            frame = parse(line)
        except FrameError as error:
            self._out.say({"type": "error", "error": str(error)})
            return
        if isinstance(frame, Initialize):
            await self._initialize(frame)
        elif self._agent is None:
            self._out.say({"type": "error", "error": "expected initialize first, found another frame"})
        else:
            self._frame(frame, self._agent)

    async def _initialize(self, frame: Initialize) -> None:
        try:
            if self._agent is None:
                self._agent = await asyncio.to_thread(self._open_agent, self._out)
        except SessionError as error:
            self._out.say({"type": "initialize_failed", "id": frame.id, "cause": error.cause, "error": str(error)})
            return
        session = self._agent.session
        history = session.history
        assert history.header is not None
        self._out.fields = {"session_id": session.session_id}
        last = history.last_turn
        self._out.say(
            {
                "type": "initialized",
                "id": frame.id,
                "protocol": PROTOCOL,
                "store": str(session.path),
                "cwd": history.header.cwd,
                "forked_from": history.header.forked_from,
                "turns": len(history.turns),
                "last_turn": {"message_id": last.message_id, "outcome": last.outcome} if last else None,
                "unread_records": history.unread,
                **self._about,
            }
        )

    def _frame(self, frame: Frame, agent: Agent) -> None:
        match frame:
            case User():
                self._user(frame, agent)
            case SteerText(message_id, text):
                if agent.known(message_id) is not None or not agent.steer(message_id, text):
                    self._out.say({"type": "not_steered", "message_id": message_id})
            case Interrupt(id_):
                self._compaction_cancel.set()
                self._out.say({"type": "interrupting", "id": id_, "is_running": agent.cancel()})
            case Answer(request_id, answer):
                try:
                    agent.answer(request_id, answer)
                except RequestNotOpenError as error:
                    self._out.say({"type": "error", "request_id": request_id, "error": str(error)})
            case Lookup(id_, message_id):
                known = agent.known(message_id)
                outcome = known.outcome if known else None
                found = {"is_delivered": known is not None, "outcome": outcome}
                self._out.say({"type": "looked_up", "id": id_, "message_id": message_id, **found})
            case Compact():
                self._compact(frame, agent)

    def _user(self, frame: User, agent: Agent) -> None:
        if (known := agent.known(frame.message_id)) is not None:
            self._say_known(frame.message_id, known)
        elif self._is_working:
            reason = "a turn is running: one message at a time"
            self._out.say({"type": "not_taken", "message_id": frame.message_id, "error": reason})
        else:
            self._work = asyncio.create_task(self._turn(frame, agent))

    @property
    def _is_working(self) -> bool:
        return self._work is not None and not self._work.done()

    async def _turn(self, frame: User, agent: Agent) -> None:
        try:
            found = await agent.deliver(frame.message_id, frame.text)
        except Exception as error:  # noqa: BLE001  outermost of the turn's task
            self._crash(error)
            return
        if isinstance(found, Known):
            self._say_known(frame.message_id, found)

    def _crash(self, error: Exception) -> None:
        """A fault of this program itself: no end is claimed for the turn, the process leaves. Places are logged, no values."""
        places = "".join(traceback.format_tb(error.__traceback__))
        sys.stderr.write(f"direct: {type(error).__name__}\n{places}")
        self.has_crashed = True
        self._leaving.set()

    def _say_known(self, message_id: str, known: Known) -> None:
        self._out.say({"type": "already_delivered", "message_id": message_id, "outcome": known.outcome})

    def _compact(self, frame: Compact, agent: Agent) -> None:
        if self._is_working:
            self._out.say({"type": "compact_failed", "id": frame.id, "reason": "busy", "error": "a turn is running"})
        else:
            self._compaction_cancel = asyncio.Event()
            self._work = asyncio.create_task(self._compaction(frame, agent))

    async def _compaction(self, frame: Compact, agent: Agent) -> None:
        try:
            record_id = await agent.compact(self._compaction_cancel)
        except BusyError:
            self._out.say({"type": "compact_failed", "id": frame.id, "reason": "busy", "error": "a turn is running"})
        except CompactionError as error:
            self._out.say({"type": "compact_failed", "id": frame.id, "reason": error.reason, "error": str(error)})
        except SessionWriteError as error:
            self._out.say({"type": "compact_failed", "id": frame.id, "reason": error.cause, "error": str(error)})
        else:
            self._out.say({"type": "compacted", "id": frame.id, "is_changed": record_id is not None, "uuid": record_id})
