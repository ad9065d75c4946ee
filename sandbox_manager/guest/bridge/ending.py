"""How a turn ended, judged from the messages that the server keeps, once its session is idle. Pure.

Success is one thing only: the last assistant message under our message has `finish` "stop" and no `error`. An idle event says nothing: it
may be of the turn before, come before the error is written, or come twice.
"""

from dataclasses import dataclass

from .shapes import Fields, fields, number, text

COMPLETED, FAILED, CANCELLED = "completed", "failed", "cancelled"
_ABORTED = "MessageAbortedError"
_FAILURES = {
    "length": "OUTPUT_LENGTH",
    "content-filter": "CONTENT_FILTER",
    "unknown": "STREAM_CUT",
    "other": "STREAM_CUT",
    "tool-calls": "ENDED_AFTER_TOOL",
}


@dataclass(frozen=True)
class Known:
    """What the turn saw itself. `aborted_for`: None, "client", or the guard that aborted it. `error`: of a `session.error` event."""

    was_busy: bool
    aborted_for: str | None
    was_rejected: bool
    error: Fields | None


@dataclass(frozen=True)
class Ended:
    """The native end. `reason` is a stable word, None for a plain success."""

    outcome: str
    reason: str | None
    error: str | None
    status: int | None
    finish: str | None
    last_message: str | None
    usage: Fields


@dataclass(frozen=True)
class NotYet:
    """No end can be read from this. `has_begun` False: the server has not begun our message, so the idle was an older one."""

    has_begun: bool


def judge(messages: list[Fields], message: str, known: Known) -> Ended | NotYet:
    """`message` is our message's native id; `messages` the session's newest, oldest first."""
    answers = [
        fields(one, "info")
        for one in messages
        if text(one, "info", "role") == "assistant" and text(one, "info", "parentID") == message
    ]
    if not answers:
        is_here = known.was_busy or _holds(messages, message)
        if known.error is not None and is_here:
            return _failed(known, known.error, None, {})
        if known.aborted_for is not None and is_here:
            return _stopped(known, None, {})
        return NotYet(has_begun=known.was_busy and _holds(messages, message))
    last = answers[-1]
    usage = _usage(answers)
    error = last.get("error")
    if isinstance(error, dict):
        if text(error, "name") == _ABORTED:
            return _stopped(known, last, usage)
        return _failed(known, error, last, usage)
    finish = text(last, "finish")
    if finish == "stop":
        return Ended(COMPLETED, None, None, None, finish, text(last, "id"), usage)
    if known.aborted_for is not None:
        return _stopped(known, last, usage)
    if finish is None:
        return _failed(known, known.error, last, usage) if known.error is not None else NotYet(has_begun=True)
    reason = _FAILURES.get(finish, "FINISH_UNKNOWN")
    if finish == "tool-calls" and known.was_rejected:
        reason = "REQUEST_REJECTED"
    return Ended(FAILED, reason, _said(known.error), _status(known.error), finish, text(last, "id"), usage)


def unfinished(messages: list[Fields], message: str) -> Ended:
    """The session is idle and stays so, and its last answer has neither an end nor an error."""
    answers = [one for one in messages if text(one, "info", "parentID") == message]
    last = text(answers[-1], "info", "id") if answers else None
    return Ended(FAILED, "NO_ANSWER" if last is None else "NO_FINISH", None, None, None, last, {})


def _holds(messages: list[Fields], message: str) -> bool:
    return any(text(one, "info", "id") == message for one in messages)


def _stopped(known: Known, last: Fields | None, usage: Fields) -> Ended:
    """Ended by an abort: the client's is a cancel, a guard's is a failure with its name; nobody's of us is a failure too."""
    finish, last_id = (text(last, "finish"), text(last, "id")) if last is not None else (None, None)
    if known.aborted_for == "client":
        return Ended(CANCELLED, "ABORTED", None, None, finish, last_id, usage)
    reason = known.aborted_for or "ABORTED_BY_ANOTHER"
    return Ended(FAILED, reason, _said(known.error), _status(known.error), finish, last_id, usage)


def _failed(known: Known, error: Fields | None, last: Fields | None, usage: Fields) -> Ended:
    if known.aborted_for == "client":
        return _stopped(known, last, usage)
    reason = known.aborted_for or text(error or {}, "name") or "UnknownError"
    finish, last_id = (text(last, "finish"), text(last, "id")) if last is not None else (None, None)
    return Ended(FAILED, reason, _said(error), _status(error), finish, last_id, usage)


def _said(error: Fields | None) -> str | None:
    return None if error is None else text(error, "data", "message") or text(error, "name")


def _status(error: Fields | None) -> int | None:
    return None if error is None else number(error, "data", "statusCode")


def _usage(answers: list[Fields]) -> Fields:
    """Token counts of the turn: of all its answers together."""
    total: Fields = {}
    for name, path in (
        ("input", ("tokens", "input")),
        ("output", ("tokens", "output")),
        ("cache_read", ("tokens", "cache", "read")),
        ("cache_write", ("tokens", "cache", "write")),
    ):
        found = [count for one in answers if (count := number(one, *path)) is not None]
        if found:
            total[name] = sum(found)
    return total
