"""Reads what Claude Code printed during one activation, and says what it proves. Knows nothing of what was written to it.

Lines are framed on the byte 0x0A first and decoded afterwards, so a cut inside a character or inside a 3 MB line changes nothing.
A line that is no JSON object is counted as noise and never joined to a neighbour.

Only *root* events count, those whose `parent_tool_use_id` is null or absent: a sub-agent's event may carry any id.

Where the turn ends: a `result` without `origin`, while our message's uuid is `started` and no other message has been started since.
(`origin` marks a turn that the CLI began by itself; a cron turn has none, but has its own lifecycle.) A stream that has no
`command_lifecycle` at all ends at its first `result` without `origin` after a `system/init`; a stream whose init announces
`msg_lifecycle_v1` is never read that way. An error `result` before any init is the refusal of a resume and no end: the
`session_id` in it is an echo of what was asked for, so it names no session.

What counts as an assistant text: whole root `assistant` events of a real model, after our message started. Not the `stream_event`
deltas (a cut stream leaves deltas of an attempt that failed; the whole event that follows is the truth), not `<synthetic>` ones
(error texts that the CLI made up). A text with `aborted: true` is marked: an interrupt cut the block, the relay was still in the
middle of it and never delivered it as a whole, so its absence there proves nothing; it must still come to stand in the store.
"""

from __future__ import annotations

import hashlib
import json

from sandbox_manager.agents.claude_code.bookkeeping import SYNTHETIC_MODEL
from sandbox_manager.agents.tap_lines import TapLines
from sandbox_manager.core.values import AssistantText, NativeEnd, TapFindings

_LIFECYCLE_CAPABILITY = "msg_lifecycle_v1"
_NO_SUCH_SESSION_WORDS = ("no conversation found", "unknown conversation")
_CONTENT_TYPES = frozenset({"assistant", "user", "stream_event", "result", "tool_progress"})


def text_digest(text: str) -> str:
    """sha256 of a text's UTF-8 bytes. Half surrogate pairs, which JSON can carry, keep their own bytes."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class ClaudeTapReader:
    """One activation's reader. `message_id` is our message's uuid; None reads the end by order alone."""

    def __init__(self, *, message_id: str | None, start_offset: int) -> None:
        self._message_id = message_id
        self._lines = TapLines(start_offset)
        self._offset = start_offset  # just after the line that is read
        self._session_ids: list[str] = []
        self._reset_to: str | None = None
        self._handshake: str | None = None
        self._lifecycle_seen = False
        self._lifecycle_announced = False
        self._current: str | None = None  # the message started last
        self._started = False
        self._closed = False
        self._init_seen = False  # any root init since the start offset
        self._turn_init_seen = False  # a root init since our message started
        self._identity_before_output: bool | None = None
        self._end: NativeEnd | None = None
        self._assistant: list[AssistantText] = []
        self._printed: dict[str, None] = {}
        self._bases: dict[str, None] = {}
        self._retry_seen = False
        self._background_pending = False
        self._noise_lines = 0
        self._open_requests: dict[str, None] = {}
        self._agent_version: str | None = None

    def feed(self, data: bytes) -> None:
        """Takes the next raw bytes, in any cuts."""
        for line in self._lines.feed(data):
            self._offset = line.end_offset
            if line.content is None:
                self._noise_lines += 1
            else:
                self._line(line.content)

    def findings(self) -> TapFindings:
        """What the complete lines so far say. A half line at the end says nothing."""
        return TapFindings(
            session_ids=tuple(self._session_ids),
            reset_to=self._reset_to,
            identity_before_output=self._identity_before_output is True,
            handshake=self._handshake,
            message_started=self._started,
            end=self._end,
            assistant=tuple(self._assistant),
            retry_seen=self._retry_seen,
            background_pending=self._background_pending,
            lifecycle_closed=self._closed,
            noise_lines=self._noise_lines,
            open_requests=tuple(self._open_requests),
            agent_version=self._agent_version,
            printed=tuple(self._printed),
            bases=tuple(self._bases),
        )

    # --- one line ------------------------------------------------------------------------------------------------------------------
    def _line(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            self._noise_lines += 1
            return
        if not isinstance(event, dict) or not isinstance(event.get("type"), str):
            self._noise_lines += 1
            return
        if event.get("parent_tool_use_id") is None:
            self._root_event(event, line)

    def _root_event(self, event: dict[str, object], line: bytes) -> None:
        kind = event["type"]
        if kind == "result" and self._is_refusal(event):
            self._handshake = "NO_SUCH_SESSION" if _names_no_session(event) else "REFUSED"
            return
        self._note_session(event)
        if kind in _CONTENT_TYPES and self._identity_before_output is None and self._turn_is_running():
            self._identity_before_output = self._turn_init_seen
        match kind:
            case "command_lifecycle":
                self._lifecycle(event)
            case "system":
                self._system(event)
            case "assistant":
                self._assistant_event(event)
            case "user":
                self._note_printed(event)
            case "result":
                self._result(event, line)
            case "control_response":
                self._control_response(event)
            case "control_request":
                request_id = event.get("request_id")
                if isinstance(request_id, str) and self._end is None:
                    self._open_requests[request_id] = None
            case "control_cancel_request":
                self._open_requests.pop(str(event.get("request_id")), None)
            case "conversation_reset":
                found = event.get("new_conversation_id")
                self._reset_to = found if isinstance(found, str) else ""
            case _:
                pass

    def _is_refusal(self, event: dict[str, object]) -> bool:
        """An error result of a process that never began anything: the answer to a resume that it could not do."""
        return (
            event.get("is_error") is True
            and not self._init_seen
            and not self._lifecycle_seen
            and self._handshake != "OK"
            and event.get("origin") is None
        )

    def _note_session(self, event: dict[str, object]) -> None:
        session_id = event.get("session_id")
        if isinstance(session_id, str) and session_id not in self._session_ids:
            self._session_ids.append(session_id)

    def _turn_is_running(self) -> bool:
        """Our message's turn: from its start to its end. Without any lifecycle, from the first init on."""
        if self._end is not None:
            return False
        return self._ours_is_current() or self._by_order()

    def _ours_is_current(self) -> bool:
        return self._started and not self._closed and self._current == self._message_id

    def _by_order(self) -> bool:
        return self._init_seen and not self._lifecycle_seen and not self._lifecycle_announced

    def _lifecycle(self, event: dict[str, object]) -> None:
        self._lifecycle_seen = True
        uuid, state = event.get("command_uuid"), event.get("state")
        if not isinstance(uuid, str):
            return
        if state == "started":
            self._current = uuid
            if self._message_id is not None and uuid == self._message_id and not self._started:
                self._begin_turn()
        elif state in ("completed", "cancelled") and uuid == self._message_id:
            self._closed = True

    def _begin_turn(self) -> None:
        # What was read by order before, if anything, was not of our message: the stream has a lifecycle after all.
        self._started = True
        self._turn_init_seen = False
        self._identity_before_output = None
        self._end = None
        self._assistant.clear()
        self._printed.clear()

    def _system(self, event: dict[str, object]) -> None:
        match event.get("subtype"):
            case "init":
                self._init_seen = True
                version = event.get("claude_code_version")
                if isinstance(version, str):
                    self._agent_version = version
                capabilities = event.get("capabilities")
                if isinstance(capabilities, list) and _LIFECYCLE_CAPABILITY in capabilities:
                    self._lifecycle_announced = True
                if self._turn_is_running():
                    self._turn_init_seen = True
            case "api_retry":
                self._retry_seen = True
            case "compact_boundary" if isinstance(uuid := event.get("uuid"), str):
                self._bases[uuid] = None  # the transcript's record has the same uuid (observed)
            case "background_tasks_changed":
                # The event carries the whole list of what still runs; an unreadable list is not an empty one.
                self._background_pending = event.get("tasks") != []
            case _:
                pass

    def _assistant_event(self, event: dict[str, object]) -> None:
        if not self._turn_is_running():
            return
        self._note_printed(event)
        message = event.get("message")
        if not isinstance(message, dict) or message.get("model") == SYNTHETIC_MODEL:
            return
        uuid = event.get("uuid")
        content = message.get("content")
        for block in content if isinstance(content, list) else [{"type": "text", "text": content}]:
            if isinstance(block, dict) and block.get("type") == "text" and isinstance(text := block.get("text"), str):
                self._assistant.append(
                    AssistantText(
                        uuid=uuid if isinstance(uuid, str) else None,
                        text_digest=text_digest(text),
                        aborted=event.get("aborted") is True,
                    )
                )

    def _note_printed(self, event: dict[str, object]) -> None:
        uuid = event.get("uuid")
        if isinstance(uuid, str) and self._turn_is_running():
            self._printed[uuid] = None

    def _result(self, event: dict[str, object], line: bytes) -> None:
        if event.get("origin") is not None or not self._turn_is_running():
            return
        named = event.get("user_message_uuid")
        if self._message_id is not None and named is not None and named != self._message_id:
            return
        reason, status = event.get("terminal_reason"), event.get("api_error_status")
        subtype = event.get("subtype")
        # The subtype says "success" for API failures too; only `is_error` tells. Anything but a plain false is an error.
        is_error = event.get("is_error") is not False
        if not isinstance(reason, str):
            reason = subtype if is_error and isinstance(subtype, str) and subtype != "success" else None
        self._end = NativeEnd(
            is_error=is_error,
            reason=reason,
            status=status if isinstance(status, int) and not isinstance(status, bool) else None,
            tap_offset=self._offset,
            evidence_digest=hashlib.sha256(line).hexdigest(),
            cancelled=reason is not None and reason.startswith("aborted"),
        )
        self._open_requests.clear()

    def _control_response(self, event: dict[str, object]) -> None:
        """The answer to `initialize` lists commands; the receipt of an interrupt does not."""
        response = event.get("response")
        if not isinstance(response, dict) or self._handshake is not None:
            return
        inner = response.get("response")
        if response.get("subtype") == "success":
            if isinstance(inner, dict) and "commands" in inner:
                self._handshake = "OK"
        elif response.get("subtype") == "error" and not self._init_seen and not self._lifecycle_seen:
            self._handshake = "REFUSED"


def _names_no_session(event: dict[str, object]) -> bool:
    errors = event.get("errors")
    said = " ".join(str(error) for error in errors) if isinstance(errors, list) else ""
    return any(words in said.lower() for words in _NO_SUCH_SESSION_WORDS)
