"""Runs one turn: gives its machine the server's events in order and performs what it wants. Decides nothing itself."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

from .effects import (
    AbortDone,
    Begun,
    Effect,
    EndRead,
    EndReadFailed,
    Event,
    Finish,
    Post,
    PostAbort,
    PostDone,
    PostPrompt,
    PromptFailed,
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
from .http_client import CallError, HttpClient
from .session import PAGE, Session
from .shapes import fields, text
from .turn import Turn

EVENTS_MAX = 4096
_PAGES_MAX = 40
_REPLY_TIMEOUT_S = 20.0


class TurnRunner:
    """One turn's tasks. `say` writes a line to the client."""

    def __init__(
        self,
        turn: Turn,
        session: Session,
        client: HttpClient,
        say: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        self._turn = turn
        self._session = session
        self._client = client
        self._say = say
        self._events: asyncio.Queue[Event] = asyncio.Queue(EVENTS_MAX)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._subscription: asyncio.Task[None] | None = None
        self._last: list[asyncio.Task[None]] = []  # what must still be done when the turn is over

    async def put(self, event: Event) -> None:
        """An event from outside: an answer, an abort."""
        await self._events.put(event)

    async def run(self) -> None:
        """Until the turn is over and its last words to the server are said."""
        try:
            await self._perform(self._turn.step(Begun()))
            while not self._turn.is_over:
                await self._perform(self._turn.step(await self._events.get()))
            if self._last:
                await asyncio.wait(self._last, timeout=_REPLY_TIMEOUT_S)
        finally:
            for timer in self._timers.values():
                timer.cancel()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Subscribe():
                    self._subscription = self._start(self._subscribe())
                case PostPrompt(native_id, content):
                    self._start(self._prompt(native_id, content))
                case PostAbort():
                    self._last.append(self._start(self._abort()))
                case Post():
                    task = self._start(self._post(effect))
                    if effect.name is None:
                        self._last.append(task)
                case ReadEnd():
                    self._start(self._read_end())
                case SetTimer(name, seconds):
                    self._set_timer(name, seconds)
                case Say(event):
                    await self._say(event)
                case Finish():
                    if self._subscription is not None:
                        self._subscription.cancel()

    def _start(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _set_timer(self, name: str, seconds: float) -> None:
        if (old := self._timers.pop(name, None)) is not None:
            old.cancel()
        fire = self._events.put_nowait
        self._timers[name] = asyncio.get_running_loop().call_later(seconds, self._fire, fire, name)

    def _fire(self, put: Callable[[Event], None], name: str) -> None:
        try:
            put(TimerFired(name))
        except asyncio.QueueFull:
            # The queue is full of events of a session that is busy: it is looked at again a little later.
            self._set_timer(name, 0.1)

    async def _subscribe(self) -> None:
        why = "the server ended the event stream"
        try:
            path = f"/event?directory={quote(self._session.directory, safe='')}"
            async with aclosing(self._client.events(path)) as events:  # type: ignore[type-var]  # an async generator
                async for event in events:
                    kind = text(event, "type") or ""
                    if kind == "server.connected":
                        await self._events.put(Subscribed())
                    elif kind != "sync":
                        await self._events.put(ServerEvent(kind, fields(event, "properties")))
        except CallError as error:
            why = str(error)
        await self._events.put(SubscriptionLost(why))

    async def _prompt(self, native_id: str, content: str) -> None:
        body = {"messageID": native_id, "parts": [{"type": "text", "text": content}]}
        path = f"/session/{self._session.id}/prompt_async?directory={quote(self._session.directory, safe='')}"
        try:
            answer = await self._client.call("POST", path, body)
        except CallError as error:
            await self._events.put(PromptFailed(None, str(error)))
            return
        if answer.status == 204:
            await self._events.put(PromptTaken())
        else:
            await self._events.put(PromptFailed(answer.status, answer.detail))

    async def _abort(self) -> None:
        try:
            answer = await self._client.call("POST", f"/session/{self._session.id}/abort", {}, _REPLY_TIMEOUT_S)
            is_taken = answer.status == 200
        except CallError:
            is_taken = False
        await self._offer(AbortDone(is_taken))

    async def _post(self, post: Post) -> None:
        status: int | None = None
        try:
            status = (await self._client.call("POST", post.path, post.body, _REPLY_TIMEOUT_S)).status
        except CallError:
            status = None
        if post.name is not None:
            await self._events.put(PostDone(post.name, status))

    async def _offer(self, event: Event) -> None:
        """For what may come after the end, when nobody takes events any more."""
        if not self._turn.is_over:
            await self._events.put(event)

    async def _read_end(self) -> None:
        try:
            status = await self._client.call("GET", "/session/status")
            busy = status.json()
            if status.status != 200 or not isinstance(busy, dict):
                raise CallError(f"HTTP {status.status} to the list of busy sessions")
            if text(busy, self._session.id, "type") not in (None, "idle"):
                await self._events.put(EndRead(True))
                return
            await self._events.put(EndRead(False, await self._messages()))
        except CallError as error:
            await self._events.put(EndReadFailed(str(error)))

    async def _messages(self) -> list[dict[str, Any]]:
        """The newest messages, oldest first, back to our own."""
        found: list[dict[str, Any]] = []
        cursor = ""
        for _ in range(_PAGES_MAX):
            answer = await self._client.call("GET", f"/session/{self._session.id}/message?limit={PAGE}{cursor}")
            page = answer.json()
            if answer.status != 200 or not isinstance(page, list):
                raise CallError(f"HTTP {answer.status} to the session's messages")
            found = [one for one in page if isinstance(one, dict)] + found
            before = answer.headers.get("x-next-cursor")
            if before is None or any(text(one, "info", "id") == self._turn.native_id for one in found):
                break
            cursor = f"&before={quote(before, safe='')}"
        return found
