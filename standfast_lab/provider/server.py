"""The lab provider: protocol, script, log and HTTP put together.

POST /v1/messages[?beta=true]      an answer, streaming or whole; so for the two below
POST /v1/chat/completions
POST /v1/responses
POST /v1/messages/count_tokens
HEAD /api/hello
GET  /lab/log                      {"rows": [...]}; ?session=S, ?after=N, ?wait_s=T waits for a row after N
POST /lab/script                   adds the steps of a JSON list (see script.Step)
POST /lab/release                  lets every answer that hangs go on
POST /lab/reset                    forgets steps, counters and rows
GET  /lab/health                   {"ok": true, "failures": []}; a failure is a fault of the lab itself
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, urlsplit

from standfast_lab.provider import chat_request, messages_request, openai_errors, responses_request
from standfast_lab.provider.chat_answer import ChatWords
from standfast_lab.provider.directives import DirectiveError
from standfast_lab.provider.heard import Kind
from standfast_lab.provider.http import HttpServer, Incoming, Sent, Watch
from standfast_lab.provider.http_steps import Body, End, Head
from standfast_lab.provider.http_steps import Step as HttpStep
from standfast_lab.provider.log import RequestLog, Row
from standfast_lab.provider.messages_answer import MessagesWords, encode_token_count
from standfast_lab.provider.messages_answer import write_error as write_messages_error
from standfast_lab.provider.responses_answer import ResponsesWords
from standfast_lab.provider.script import Script, Step
from standfast_lab.provider.speech import BadRequestError, Speech, answer_steps

_WAIT_S_MAX = 60.0
_MESSAGES = Speech(messages_request.decode_request, MessagesWords, write_messages_error)
_SPEECHES = {
    "/v1/messages": _MESSAGES,
    "/v1/messages/count_tokens": _MESSAGES,
    "/v1/chat/completions": Speech(chat_request.decode_request, ChatWords, openai_errors.write_error),
    "/v1/responses": Speech(responses_request.decode_request, ResponsesWords, openai_errors.write_error),
}
Answered = tuple[Sequence[HttpStep], Watch]


class LabProvider:
    """A deterministic provider on loopback; async context manager. `api_keys` None accepts any key and none.

    The same requests in the same order give the same bytes: ids come from the request's number and body, nothing from
    a clock.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        log_path: Path | None = None,
        api_keys: Collection[str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._http = HttpServer(self._handle, host=host, port=port)
        self._host = host
        self._log_path = log_path
        self._api_keys = None if api_keys is None else frozenset(api_keys)
        self._clock = clock
        self._script = Script()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self.log = RequestLog(self._log_path)
        self._stack.callback(self.log.close)
        await self._stack.enter_async_context(self._http)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._http.port

    @property
    def base_url(self) -> str:
        """For ANTHROPIC_BASE_URL; no trailing slash. Clients of OpenAI's protocols want it with `/v1`."""
        return f"http://{self._host}:{self._http.port}"

    @property
    def failures(self) -> tuple[str, ...]:
        """Faults of the lab itself. A test that passes has none."""
        return tuple(self._http.failures)

    def script(self, *steps: Step | dict[str, object]) -> None:
        """Adds scripted answers; see script.Step for the JSON form."""
        self._script.add(steps)

    def release(self) -> None:
        """Lets every answer that hangs now go on."""
        self._http.release()

    def reset(self) -> None:
        """Forgets steps, counters and rows."""
        self._script.clear()
        self.log.clear()

    async def _handle(self, incoming: Incoming) -> Answered:
        path = urlsplit(incoming.target).path
        if path.startswith("/lab/"):
            return await self._control(incoming, path), _ignore
        key = _api_key(incoming)
        if incoming.method == "POST" and (speech := _SPEECHES.get(path)) is not None:
            return self._speak(speech, incoming, key)
        if path == "/api/hello":
            return self._logged(incoming, "hello", [Head(200, (("content-length", "0"),)), End()], key)
        error = write_messages_error(404, "not_found_error", f"no such path: {incoming.method} {path}", "none")
        return self._logged(incoming, "unknown", error, key)

    def _speak(self, speech: Speech, incoming: Incoming, key: str | None) -> Answered:
        # A number and a digest: unique in one run, the same in the next.
        seed = f"{len(self.log) + 1:06d}{hashlib.sha256(incoming.body).hexdigest()[:8]}"
        if self._api_keys is not None and not any(hmac.compare_digest(key or "", known) for known in self._api_keys):
            refused = speech.write_error(401, "authentication_error", "the API key is not known", seed)
            return self._logged(incoming, "invalid", refused, key)
        try:
            heard = speech.read(incoming.target, incoming.headers, incoming.body)
            if heard.kind is Kind.COUNT_TOKENS:
                row = self.log.open_row(incoming, heard, heard.kind.value, "count", now=self._clock(), key=key)
                return encode_token_count(heard), self._watching(row)
            answer = self._script.decide(heard)
        except (BadRequestError, DirectiveError) as error:
            return self._logged(
                incoming, "invalid", speech.write_error(400, "invalid_request_error", str(error), seed), key
            )
        row = self.log.open_row(incoming, heard, heard.kind.value, answer.label, now=self._clock(), key=key)
        return answer_steps(speech, answer, heard, seed=seed), self._watching(row)

    def _logged(self, incoming: Incoming, kind: str, steps: Sequence[HttpStep], key: str | None) -> Answered:
        row = self.log.open_row(incoming, None, kind, kind, now=self._clock(), key=key)
        return steps, self._watching(row)

    def _watching(self, row: Row) -> Watch:
        return lambda sent: self.log.update_row(row, sent)

    async def _control(self, incoming: Incoming, path: str) -> Sequence[HttpStep]:
        match incoming.method, path:
            case "GET", "/lab/log":
                try:
                    return _json(200, {"rows": await self._rows(incoming.target)})
                except ValueError as error:
                    return _json(400, {"error": str(error)})
            case "GET", "/lab/health":
                return _json(200, {"ok": not self.failures, "failures": list(self.failures)})
            case "POST", "/lab/script":
                try:
                    steps = json.loads(incoming.body)
                    if not isinstance(steps, list):
                        raise DirectiveError("expected a JSON list of steps")
                    self._script.add(steps)
                except ValueError as error:
                    return _json(400, {"error": str(error)})
                return _json(200, {"steps": len(self._script.steps)})
            case "POST", "/lab/release":
                self.release()
                return _json(200, {})
            case "POST", "/lab/reset":
                self.reset()
                return _json(200, {})
        return _json(404, {"error": f"no such lab path: {incoming.method} {path}"})

    async def _rows(self, target: str) -> list[Row]:
        query = {name: values[-1] for name, values in parse_qs(urlsplit(target).query).items()}
        session, after, wait_s = query.get("session"), int(query.get("after", "0")), float(query.get("wait_s", "0"))
        if wait_s:
            try:
                await self.log.wait_for(
                    lambda _: bool(self.log.rows(session_id=session, after=after)), timeout_s=min(wait_s, _WAIT_S_MAX)
                )
            except TimeoutError:
                return []
        return self.log.rows(session_id=session, after=after)


def _ignore(sent: Sent) -> None:
    """Control requests leave no row."""


def _api_key(incoming: Incoming) -> str | None:
    key = incoming.headers.get("x-api-key")
    bearer = incoming.headers.get("authorization", "")
    return key if key is not None else (bearer.removeprefix("Bearer ") if bearer.startswith("Bearer ") else None)


def _json(status: int, value: object) -> Sequence[HttpStep]:
    body = json.dumps(value).encode()
    return [Head(status, (("content-type", "application/json"), ("content-length", str(len(body))))), Body(body), End()]
