"""Reads what Codex's app-server printed during one activation, and says what it proves. Knows nothing of what was written to it.

Lines are framed on the byte 0x0A first and decoded afterwards, so a cut inside a character or inside a 3 MB line changes nothing.
A line that is no JSON object is counted as noise and never joined to a neighbour.

Only *our turn* counts: what names our turn's id. Sub-agents are threads of their own with turns of their own; goals begin turns of
their own on our thread; a command that went on is completed after its turn. Our turn is the one that the answer to `turn/start` names;
where no such answer was seen, the one whose first user item carries our message id. A `turn/start` while a turn runs is merged into
that turn: its `turn/started` came before, and its first user item is another message's, so it is not taken as ours.

Each event of a turn names its thread: the ids of all events of our turn are the session ids. The handshake's answer names the thread
and its rollout, too.

Where the turn ends: `turn/completed` of our turn; `turn.status` says how. What counts as an assistant text: `agentMessage` items that
were completed before that. Deltas do not (a stream that broke leaves an item that is begun and never completed), nor do the `items` of
`turn/completed`, which are a summary, nor items with a `delivery`: those are calls of a tool that writes to the user, whose text is an
argument and no text of the provider's (all observed).
"""

from __future__ import annotations

import hashlib
import json

from sandbox_manager.agents.codex.gate_grammar import turn_request_id
from sandbox_manager.agents.tap_lines import TapLines
from sandbox_manager.core.values import AssistantText, NativeEnd, TapFindings

HANDSHAKE_IDS = ("thread-1",)
"""The request id of the native start or resume, as the driver writes it."""


def text_digest(text: str) -> str:
    """sha256 of a text's UTF-8 bytes. Half surrogate pairs, which JSON can carry, keep their own bytes."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def item_uuid(turn_id: str, item_id: str, times_seen: int) -> str:
    """The name of one item in tap and rollout alike. A provider may use one id twice, also in one turn (both are kept; observed)."""
    return f"{turn_id}/{item_id}" if times_seen == 0 else f"{turn_id}/{item_id}#{times_seen + 1}"


def end_uuid(turn_id: str) -> str:
    """The name of the record that closes a turn."""
    return f"{turn_id}/end"


class CodexTapReader:
    """One activation's reader. `message_id` is our message's id; None takes the first turn that begins."""

    def __init__(self, *, message_id: str | None, start_offset: int) -> None:
        self._message_id = message_id
        self._lines = TapLines(start_offset)
        self._offset = start_offset  # just after the line that is read
        self._handshake: str | None = None
        self._thread_id: str | None = None  # as the handshake named it
        self._store: str | None = None
        self._agent_version: str | None = None
        self._turn_id: str | None = None
        self._foreign_turns: dict[
            str, bool
        ] = {}  # turns that began and are not ours: whether an item of theirs was seen
        self._held: list[tuple[dict[str, object], dict[str, object], bytes]] = []  # until our turn is named
        self._session_ids: list[str] = []
        self._started = False
        self._merged = False
        self._user_item_seen = False
        self._named_before_output: bool | None = None
        self._other_starts: set[str] = set()  # threads on which a turn began that is not ours
        self._end: NativeEnd | None = None
        self._assistant: list[AssistantText] = []
        self._times: dict[str, int] = {}
        self._bases: list[str] = []
        self._retry_seen = False
        self._noise_lines = 0
        self._open_requests: dict[str, None] = {}

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
        printed = [text.uuid for text in self._assistant if text.uuid is not None]
        if self._end is not None and self._turn_id is not None:
            printed.append(end_uuid(self._turn_id))
        return TapFindings(
            session_ids=tuple(self._session_ids),
            reset_to=None,  # no frame of this CLI announces a change of the session
            identity_before_output=self._named_before_output is True and not self._merged,
            handshake=self._handshake,
            message_started=self._started and not self._merged,
            end=self._end,
            assistant=tuple(self._assistant),
            retry_seen=self._retry_seen,
            # A command that went on is a process of the slot: the census finds and ends it, and the CLI takes that (observed).
            background_pending=False,
            lifecycle_closed=self._end is not None and self._other_starts.isdisjoint(self._session_ids),
            noise_lines=self._noise_lines,
            open_requests=tuple(self._open_requests),
            agent_version=self._agent_version,
            printed=tuple(printed),
            bases=tuple(self._bases),
            handshake_session_id=self._thread_id,
            handshake_store=self._store,
        )

    # --- one line ------------------------------------------------------------------------------------------------------------------
    def _line(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            frame = json.loads(line)
        except (ValueError, RecursionError):
            self._noise_lines += 1
            return
        if not isinstance(frame, dict):
            self._noise_lines += 1
            return
        if "method" not in frame:
            self._answer(frame)
            return
        params = frame["params"] if isinstance(frame.get("params"), dict) else {}
        if frame["method"] == "serverRequest/resolved":
            self._open_requests.pop(_id_text(params.get("requestId")), None)
        elif _turn_of(params) is not None:
            self._of_a_turn(frame, params, line)
        elif "id" in frame:
            self._open_requests[_id_text(frame["id"])] = None  # asked outside every turn: to be refused

    def _answer(self, frame: dict[str, object]) -> None:
        answered, result = frame.get("id"), frame.get("result")
        result = result if isinstance(result, dict) else {}
        if answered in HANDSHAKE_IDS and self._handshake is None:
            self._handshake_answer(frame, result)
        elif isinstance(result.get("userAgent"), str) and self._agent_version is None:
            self._agent_version = _version_of(str(result["userAgent"]))
        elif self._turn_id is None and self._is_answer_to_message(answered):
            turn = result.get("turn")
            turn_id = turn.get("id") if isinstance(turn, dict) else None
            if isinstance(turn_id, str):
                self._bind(turn_id)

    def _is_answer_to_message(self, answered: object) -> bool:
        if self._message_id is None:
            return isinstance(answered, str) and answered.startswith(turn_request_id(""))
        return answered == turn_request_id(self._message_id)

    def _handshake_answer(self, frame: dict[str, object], result: dict[str, object]) -> None:
        thread = result.get("thread")
        thread_id = thread.get("id") if isinstance(thread, dict) else None
        if isinstance(thread, dict) and isinstance(thread_id, str):
            self._handshake, self._thread_id = "OK", thread_id
            path = thread.get("path")
            self._store = path if isinstance(path, str) else None
            return
        error = frame.get("error")
        said = str(error.get("message")).lower() if isinstance(error, dict) else ""
        if "no rollout found" in said or "invalid session id" in said:
            self._handshake = "NO_SUCH_SESSION"
        else:
            self._handshake = "SESSION_IN_USE" if "active writer" in said else "REFUSED"

    # --- whose turn ----------------------------------------------------------------------------------------------------------------
    def _of_a_turn(self, frame: dict[str, object], params: dict[str, object], line: bytes) -> None:
        turn_id = _turn_of(params)
        assert turn_id is not None
        if self._turn_id is None:
            self._held.append((frame, params, line))
            if self._names_ours(params) or (self._message_id is None and frame["method"] == "turn/started"):
                self._bind(turn_id)
            return
        if turn_id == self._turn_id:
            self._of_our_turn(frame, params, line)
            return
        if "id" in frame:
            self._open_requests[_id_text(frame["id"])] = None  # a stranger's: to be refused
        # On a thread of its own it is a sub-agent's; on ours the CLI began a turn by itself.
        if frame["method"] == "turn/started":
            self._other_starts.add(str(params.get("threadId")))

    def _names_ours(self, params: dict[str, object]) -> bool:
        """A user item with our message id, as the first of its turn: it stands for the answer that names our turn."""
        item = params.get("item")
        return isinstance(item, dict) and self._message_id is not None and item.get("clientId") == self._message_id

    def _bind(self, turn_id: str) -> None:
        """`turn_id` is ours. What was held of it is read now; of other turns on our thread it shows that the CLI works by itself."""
        self._turn_id = turn_id
        held, self._held = self._held, []
        for frame, params, line in held:
            self._of_a_turn(frame, params, line)

    # --- our turn ------------------------------------------------------------------------------------------------------------------
    def _of_our_turn(self, frame: dict[str, object], params: dict[str, object], line: bytes) -> None:
        if self._end is not None:
            return  # a late item; nothing of the turn's comes after its end
        thread_id, method = params.get("threadId"), frame["method"]
        if isinstance(thread_id, str) and thread_id not in self._session_ids:
            self._session_ids.append(thread_id)
        item = params["item"] if isinstance(params.get("item"), dict) else {}
        assert isinstance(item, dict)
        if method == "turn/started":
            self._started = True
            self._named_before_output = isinstance(thread_id, str) and self._named_before_output is not False
        elif self._named_before_output is None:
            self._named_before_output = False
        if "id" in frame:
            self._open_requests[_id_text(frame["id"])] = None
        match method:
            case "item/started" | "item/completed" if item.get("type") == "userMessage":
                self._user_item(item)
            case "item/completed" if item.get("type") == "agentMessage" and item.get("delivery") is None:
                self._agent_message(item)
            case "item/completed" if item.get("type") == "contextCompaction" and isinstance(item.get("id"), str):
                self._bases.append(item_uuid(self._turn_id or "", str(item["id"]), 0))
            case "error" if params.get("willRetry") is True:
                self._retry_seen = True
            case "turn/completed":
                self._completed(params, line)
            case _:
                pass

    def _user_item(self, item: dict[str, object]) -> None:
        is_first, self._user_item_seen = not self._user_item_seen, True
        client_id = item.get("clientId")
        if is_first and self._message_id is not None and isinstance(client_id, str) and client_id != self._message_id:
            self._merged = True

    def _agent_message(self, item: dict[str, object]) -> None:
        item_id, text = item.get("id"), item.get("text")
        if not isinstance(item_id, str) or not isinstance(text, str) or self._turn_id is None:
            return
        times = self._times.get(item_id, 0)
        self._times[item_id] = times + 1
        self._assistant.append(AssistantText(item_uuid(self._turn_id, item_id, times), text_digest(text)))

    def _completed(self, params: dict[str, object], line: bytes) -> None:
        turn = params["turn"] if isinstance(params.get("turn"), dict) else {}
        assert isinstance(turn, dict)
        status = turn.get("status")
        word, provider_status = _cause_of(turn.get("error"))
        is_error = status != "completed"  # a turn that does not say that it is good is not good
        self._end = NativeEnd(
            is_error=is_error,
            reason=word if is_error and word is not None else status if isinstance(status, str) else None,
            status=provider_status,
            tap_offset=self._offset,
            evidence_digest=hashlib.sha256(line).hexdigest(),
            cancelled=status == "interrupted",
        )
        self._open_requests.clear()


def _turn_of(params: dict[str, object]) -> str | None:
    turn_id, turn = params.get("turnId"), params.get("turn")
    if isinstance(turn_id, str):
        return turn_id
    named = turn.get("id") if isinstance(turn, dict) else None
    return named if isinstance(named, str) else None


def _cause_of(error: object) -> tuple[str | None, int | None]:
    """`codexErrorInfo`: a word, or an object with the word as its key and perhaps the provider's status below it."""
    info = error.get("codexErrorInfo") if isinstance(error, dict) else None
    if isinstance(info, str):
        return info, None
    if not isinstance(info, dict) or not info:
        return None, None
    word, details = next(iter(info.items()))
    status = details.get("httpStatusCode") if isinstance(details, dict) else None
    return str(word), status if isinstance(status, int) and not isinstance(status, bool) else None


def _version_of(user_agent: str) -> str | None:
    """ "standfast/0.171.0 (Debian ...)": the client's name, which we gave, and the program's own version."""
    word = user_agent.split(" ", 1)[0]
    name, slash, version = word.partition("/")
    return version if name and slash and version else None


def _id_text(found: object) -> str:
    """Requests of the CLI are counted in whole numbers from 0."""
    return found if isinstance(found, str) else json.dumps(found)
