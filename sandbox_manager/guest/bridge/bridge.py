"""The bridge itself: lines from its client, one server, one session, one turn at a time."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from .effects import AbortAsked, AnswerCame
from .flavours import Flavour
from .message_ids import native_id, newer
from .protocol import (
    Abort,
    Line,
    LineRefusedError,
    Open,
    PermissionAnswer,
    Prompt,
    QuestionAnswers,
    QuestionReject,
    parse,
)
from .server_process import ServerFailedError, ServerProcess
from .session import Session, SessionRefusedError, open_session
from .turn import Turn, TurnState
from .turn_runner import TurnRunner

LAST_WORDS_S = 1.0
SayLine = Callable[[dict[str, Any]], Awaitable[None]]


class Bridge:
    """Takes lines; says lines. `environment` is the server's."""

    def __init__(
        self,
        flavour: Flavour,
        server: ServerProcess,
        environment: dict[str, str],
        say: SayLine,
        *,
        mode: str,
        retries_max: int,
    ) -> None:
        self._flavour = flavour
        self._server = server
        self._environment = environment
        self._mode = mode
        self._retries_max = retries_max
        self._say = say
        self._session: Session | None = None
        self._opened: Open | None = None
        self._newest: str | None = None
        self._runner: TurnRunner | None = None
        self._turn_task: asyncio.Task[None] | None = None
        self.broken = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """Whether there is a session, and so a server that must not leave."""
        return self._session is not None

    async def take(self, line: bytes) -> None:
        """One line of the client."""
        try:
            parsed = parse(line)
        except LineRefusedError as refused:
            await self._refuse(refused.request_id, "LINE_REFUSED", str(refused))
            return
        await self._do(parsed)

    async def _do(self, line: Line) -> None:
        match line:
            case Open():
                await self._open(line)
            case Prompt():
                await self._prompt(line)
            case PermissionAnswer(request, allow, message):
                await self._answer(AnswerCame(request, "permission", allow=allow, message=message))
            case QuestionAnswers(request, answers):
                await self._answer(AnswerCame(request, "question", answers=answers))
            case QuestionReject(request, message):
                await self._answer(AnswerCame(request, "question", message=message))
            case Abort():
                if self._runner is not None:
                    await self._runner.put(AbortAsked())

    async def _open(self, line: Open) -> None:
        if self._opened is not None:
            await self._refuse(line.id, "ALREADY_OPEN", "expected one session a bridge, found a second open")
            return
        self._opened = line
        try:
            await self._server.start(self._environment)
            session = await open_session(self._server.client, line.session, line.directory)
        except ServerFailedError as error:
            await self._refuse(line.id, "SERVER_FAILED", str(error))
            return
        except SessionRefusedError as error:
            await self._refuse(line.id, error.cause, str(error))
            return
        self._session, self._newest = session, session.newest
        await self._say(
            {
                "ev": "opened",
                "id": line.id,
                "session": session.id,
                "directory": session.directory,
                "is_new": session.is_new,
                "messages": session.messages,
                "has_more": session.has_more,
                "server": self._flavour.version,
            }
        )

    async def _prompt(self, line: Prompt) -> None:
        if self._session is None or self._opened is None:
            await self._refuse(line.id, "NOT_OPEN", "expected an open session before a prompt")
            return
        if self._runner is not None:
            # The server would take it and join it to the running turn.
            await self._refuse(line.id, "TURN_RUNNING", "expected the running turn's end before another prompt")
            return
        native = native_id(line.id, time.time_ns() // 1_000_000, self._newest)
        turn = Turn(
            self._flavour,
            self._session.id,
            line.id,
            native,
            line.text,
            mode=self._mode,
            retries_max=self._retries_max,
        )
        self._runner = TurnRunner(turn, self._session, self._server.client, self._say)
        self._turn_task = asyncio.create_task(self._run(turn, self._runner))

    async def _run(self, turn: Turn, runner: TurnRunner) -> None:
        try:
            await runner.run()
        finally:
            self._newest = newer(newer(self._newest, turn.native_id), turn.newest)
            self._runner = None
            if turn.state is not TurnState.SETTLED:
                self.broken.set()

    async def _answer(self, came: AnswerCame) -> None:
        if self._runner is None:
            await self._refuse(came.request, "REQUEST_NOT_OPEN", "expected a running turn, found none")
            return
        await self._runner.put(came)

    async def _refuse(self, request_id: str | None, cause: str, detail: str) -> None:
        await self._say({"ev": "refused", "id": request_id, "cause": cause, "detail": detail})

    async def server_ended(self) -> int:
        """Waits for the server's exit: nothing can go on after it."""
        return await self._server.ended()

    async def close(self) -> None:
        """Ends the turn's tasks and the server. A second call does nothing."""
        if self._turn_task is not None:
            # A turn whose server left says so itself, at once.
            await asyncio.wait({self._turn_task}, timeout=LAST_WORDS_S)
            self._turn_task.cancel()
            await asyncio.gather(self._turn_task, return_exceptions=True)
        await self._server.end()
