"""Questions and permissions: each request is answered exactly once, or withdrawn when its turn stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from direct_agent.loop.ports import Audience


@dataclass(frozen=True, slots=True)
class PermissionAnswer:
    allow: bool
    message: str = ""


@dataclass(frozen=True, slots=True)
class QuestionAnswer:
    """One list of chosen or free texts a question, in the order of the questions. `refused`: nobody wants to answer."""

    answers: tuple[tuple[str, ...], ...] = ()
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class Permission:
    """What is to be allowed. `subjects`: the command, or the paths."""

    call_id: str
    tool: str
    subjects: tuple[str, ...]
    arguments: str


@dataclass(frozen=True, slots=True)
class Question:
    """One question. Empty `options`: a free text is expected."""

    header: str
    text: str
    options: tuple[str, ...]
    multiple: bool
    free_text: bool


class RequestNotOpenError(Exception):
    """An answer to a request that is not open (any more), or of the other kind. Nothing was changed."""


class Requests:
    """The open requests of one process. `new_id` gives an id that no other request of the session had."""

    def __init__(self, audience: Audience, new_id: Callable[[], str]) -> None:
        self._audience = audience
        self._new_id = new_id
        self._open: dict[str, asyncio.Future[Any]] = {}
        self._kinds: dict[str, type] = {}

    @property
    def open_ids(self) -> tuple[str, ...]:
        return tuple(self._open)

    async def permission(self, permission: Permission) -> PermissionAnswer:
        """Cancelled while it waits, it withdraws the request."""
        fields = {
            "kind": "permission",
            "call_id": permission.call_id,
            "tool": permission.tool,
            "subjects": list(permission.subjects),
            "arguments": permission.arguments,
        }
        answer: PermissionAnswer = await self._ask(fields, PermissionAnswer)
        return answer

    async def question(self, questions: Sequence[Question]) -> QuestionAnswer:
        fields = {
            "kind": "question",
            "questions": [
                {
                    "header": question.header,
                    "text": question.text,
                    "options": list(question.options),
                    "multiple": question.multiple,
                    "free_text": question.free_text,
                }
                for question in questions
            ],
        }
        answer: QuestionAnswer = await self._ask(fields, QuestionAnswer)
        return answer

    def answer(self, request_id: str, answer: PermissionAnswer | QuestionAnswer) -> None:
        """Raises RequestNotOpenError."""
        waiting = self._open.get(request_id)
        if waiting is None or waiting.done():
            raise RequestNotOpenError(f"expected the id of an open request, found {request_id[:100]!r}")
        if not isinstance(answer, self._kinds[request_id]):
            raise RequestNotOpenError(f"expected an answer of the request's own kind for {request_id[:100]!r}")
        waiting.set_result(answer)

    async def _ask(self, fields: dict[str, Any], kind: type) -> Any:
        request_id = self._new_id()
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._open[request_id], self._kinds[request_id] = waiting, kind
        self._audience.say({"type": "request", "request_id": request_id, **fields})
        is_answered = False
        try:
            found = await waiting
            is_answered = True
            return found
        finally:
            del self._open[request_id], self._kinds[request_id]
            closed = "answered" if is_answered else "withdrawn"
            self._audience.say({"type": "request_closed", "request_id": request_id, "how": closed})
