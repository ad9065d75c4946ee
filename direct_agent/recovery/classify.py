"""The table that turns a failure into a Fault. First match wins; the numbers are its rows.

    1  cancelled, the caller's deadline     not here: the attempt loop sees those first
    2  quota exhausted                      quota      stops          any status but 200, or 402
    3  401, 403                             auth       stops
    4  a known window or output limit       limit      may be repaired
    5  a known reasoning replay refusal     protocol   may be repaired
    6  408, 429, 500-599                    headers    retried, may wait
    7  409                                  headers    retried, never waits
    8  any other status                     headers    stops
    9  stream interrupted after a 200       stream     retried, never waits
    9a a temporary error event inside a 200, before any content: as row 6
   10  nothing in a complete answer         empty      retried, never waits
   11  no connection, or none to headers    connect    retried, may wait
   12  anything else                        unknown    stops

`x-should-retry: false` makes rows 6 and 7 terminal. Rows 4 and 5 are asked only for a status that is not of row 6.
Nothing of a body reaches a message: servers echo masked keys and private billing links.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from direct_agent.recovery.fault import Fault, FaultClass, Reason
from direct_agent.recovery.limits import recognised_limit
from direct_agent.recovery.replay_refusal import is_replay_refusal

ERROR_BODY_BYTES_MAX = 4096
_QUOTA_WORDS = (
    "insufficient_quota",
    "insufficient balance",
    "insufficient token quota",
    "out of budget",
    "quota exceeded",
    "freeusagelimiterror",
    "gousagelimiterror",
    "creditserror",
    "monthly usage limit reached",
    "available balance",
)
# A code is a word; anything longer or with other characters may be a text that must not be shown.
_CODE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_TEMPORARY_EVENTS = ("overloaded_error", "rate_limit_error", "api_error", "server_is_overloaded")


def of_response(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    provider: str,
    key_variable: str,
    requested_output: int | None,
    wall_s: float,
) -> Fault:
    """The fault of a response that is not a 200. `body`: at most ERROR_BODY_BYTES_MAX of it. `wall_s`: now."""
    text = body[:ERROR_BODY_BYTES_MAX].decode("utf-8", "replace")
    value = _json(text)
    if status == 402 or _is_quota(text):
        return _quota(provider, status, value)
    if status in (401, 403):
        return Fault(
            FaultClass.AUTH,
            f"{provider} refused the credential (status {status}). Check {key_variable}.",
            Reason.HEADERS,
            status,
        )
    is_temporary = status in (408, 429) or 500 <= status <= 599
    if not is_temporary:
        if limit := recognised_limit(status, text, value, requested_output):
            return Fault(
                FaultClass.LIMIT,
                f"{provider} refused the request: {limit.kind.value.replace('_', ' ')} reached (status {status}).",
                Reason(limit.kind.value),
                status,
                limit=limit,
            )
        if is_replay_refusal(status, text):
            return Fault(
                FaultClass.PROTOCOL,
                f"{provider} demands reasoning of an earlier turn back (status {status}).",
                Reason.REASONING_REPLAY_400,
                status,
            )
    is_open = headers.get("x-should-retry", "").strip().lower() != "false"
    return Fault(
        FaultClass.HEADERS,
        f"{provider} answered with status {status}.",
        Reason.HEADERS,
        status,
        is_retryable=(is_temporary or status == 409) and is_open,
        may_wait=is_temporary and is_open,
        retry_after_s=retry_after_s(headers.get("retry-after"), wall_s),
    )


def of_stream_event(provider: str, error: Any, *, had_content: bool) -> Fault:
    """The fault of an error event inside a 200. `error`: its JSON value."""
    text = json.dumps(error, ensure_ascii=False) if not isinstance(error, str) else error
    if _is_quota(text):
        return _quota(provider, 200, error)
    fields = error if isinstance(error, Mapping) else {}
    inner = fields.get("error")
    inner = inner if isinstance(inner, Mapping) else fields
    is_temporary = not had_content and (
        inner.get("type") in _TEMPORARY_EVENTS or inner.get("code") in _TEMPORARY_EVENTS
    )
    if is_temporary:
        return Fault(
            FaultClass.HEADERS,
            f"{provider} said inside its stream that it is overloaded.",
            Reason.HEADERS,
            200,
            is_retryable=True,
            may_wait=True,
            had_body=True,
        )
    return Fault(FaultClass.UNKNOWN, f"{provider} sent an error inside its stream.", status=200, had_body=True)


def interrupted(provider: str, reason: Reason) -> Fault:
    """A stream that broke after a 200 and before the answer was complete."""
    how = {Reason.IDLE_TIMEOUT: "fell silent", Reason.CONNECTION_RESET: "was reset"}.get(reason, "ended too early")
    return Fault(FaultClass.STREAM, f"The answer of {provider} {how}.", reason, 200, is_retryable=True, had_body=True)


def truncated_tool_call(provider: str) -> Fault:
    """A finished answer whose tool call has cut arguments: never run, asked for again like an interrupted stream."""
    return Fault(
        FaultClass.TRUNCATED_TOOL_CALL,
        f"The answer of {provider} ended with a tool call whose arguments are cut; it was not run.",
        Reason.PREMATURE_EOF,
        200,
        is_retryable=True,
        had_body=True,
    )


def malformed(provider: str) -> Fault:
    """A whole event that is not JSON, or not of the protocol: it is not going to be right next time."""
    return Fault(
        FaultClass.MALFORMED_EVENT, f"{provider} sent an event that cannot be read.", status=200, had_body=True
    )


def over_long_line(provider: str) -> Fault:
    return Fault(FaultClass.UNKNOWN, f"{provider} sent a line that is too long.", status=200, had_body=True)


def empty(provider: str) -> Fault:
    return Fault(
        FaultClass.EMPTY, f"{provider} gave an empty answer.", Reason.EMPTY, 200, is_retryable=True, had_body=True
    )


def unconnected(provider: str) -> Fault:
    """The connection could not be made, or was dropped before headers."""
    return Fault(FaultClass.CONNECT, f"{provider} cannot be reached.", Reason.CONNECT, is_retryable=True, may_wait=True)


def retry_after_s(value: str | None, wall_s: float) -> float:
    """Seconds to wait by a `Retry-After` header: whole seconds or an HTTP date; anything else, or the past, is 0."""
    if value is None:
        return 0.0
    text = value.strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - wall_s)
    except (ValueError, TypeError, OverflowError):
        return 0.0


def _quota(provider: str, status: int, value: Any) -> Fault:
    fields = value.get("error") if isinstance(value, Mapping) else None
    fields = fields if isinstance(fields, Mapping) else value if isinstance(value, Mapping) else {}
    code = fields.get("code") or fields.get("type")
    code = code if isinstance(code, str) and _CODE.fullmatch(code) else None
    named = f", {code}" if code else ""
    return Fault(
        FaultClass.QUOTA,
        f"The quota at {provider} is used up (status {status}{named}). The key itself was not refused.",
        Reason.HEADERS,
        status,
        code=code,
        had_body=status == 200,
    )


def _is_quota(text: str) -> bool:
    low = text.lower()
    return any(word in low for word in _QUOTA_WORDS)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
