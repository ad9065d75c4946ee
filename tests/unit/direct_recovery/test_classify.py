"""The classification table, row by row, with the bodies that providers send."""

from __future__ import annotations

import json
from email.utils import formatdate
from typing import Any

import pytest

from direct_agent.recovery import classify
from direct_agent.recovery.fault import Fault, FaultClass
from direct_agent.recovery.replay_refusal import is_replay_refusal

NOW_S = 1_790_000_000.0
SECRET = "sk-masked-AbCd"


def response(status: int, body: Any = None, **headers: str) -> Fault:
    raw = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return classify.of_response(
        status, named, raw, provider="lab", key_variable="LAB_API_KEY", requested_output=9000, wall_s=NOW_S
    )


def error(**fields: str) -> dict[str, Any]:
    return {"error": fields}


@pytest.mark.parametrize(
    ("status", "body", "word", "retried", "waits"),
    [
        (429, error(code="insufficient_quota", message="You exceeded your current quota"), "quota", False, False),
        (402, None, "quota", False, False),
        (401, error(type="CreditsError", message="Insufficient balance, see https://pay"), "quota", False, False),
        (402, error(code="too_many_requests", message="Insufficient token quota"), "quota", False, False),
        (500, error(message="Monthly usage limit reached"), "quota", False, False),
        (429, error(code="rate_limit_exceeded"), "headers", True, True),
        (401, error(message="Missing API key"), "auth", False, False),
        (403, error(message="no"), "auth", False, False),
        (401, error(message="The `reasoning_content` must be passed back"), "auth", False, False),
        (408, None, "headers", True, True),
        (500, None, "headers", True, True),
        (503, error(message="temporarily unavailable"), "headers", True, True),
        (529, {"type": "error", "error": {"type": "overloaded_error"}}, "headers", True, True),
        (599, None, "headers", True, True),
        (409, None, "headers", True, False),
        (400, {"model": "deepseek-v4-flash"}, "headers", False, False),
        (400, None, "headers", False, False),
        (404, None, "headers", False, False),
        (422, error(message="The `reasoning_content` must be passed back"), "headers", False, False),
        (503, error(message="The `reasoning_content` must be passed back"), "headers", True, True),
        (
            400,
            error(message="The `reasoning_content` in the thinking mode must be passed back to the API."),
            "protocol",
            False,
            False,
        ),
        (
            400,
            error(message="max_tokens: 9000 > 4096, which is the maximum allowed number of output tokens"),
            "limit",
            False,
            False,
        ),
        (429, error(message="prompt is too long: 9 tokens > 8 maximum"), "headers", True, True),
    ],
)
def test_a_response_is_classified(status: int, body: Any, word: str, retried: bool, waits: bool) -> None:
    fault = response(status, body)
    assert (fault.fault_class.value, fault.is_retryable, fault.may_wait) == (word, retried, waits)
    assert fault.status == status


@pytest.mark.parametrize("status", [408, 409, 429, 503])
def test_x_should_retry_false_is_terminal(status: int) -> None:
    fault = response(status, x_should_retry="False")
    assert (fault.is_retryable, fault.may_wait) == (False, False)


@pytest.mark.parametrize("status", [400, 401, 402, 403, 429, 500])
def test_no_message_holds_anything_of_the_body(status: int) -> None:
    body = {"error": {"code": f"see https://pay/{SECRET} now", "message": f"key {SECRET} insufficient balance"}}
    fault = response(status, body)
    assert SECRET not in fault.message + str(fault.code)
    assert "https" not in fault.message + str(fault.code)


def test_a_quota_fault_keeps_the_code_and_does_not_blame_the_key() -> None:
    fault = response(402, error(code="too_many_requests", message="Insufficient token quota"))
    assert fault.code == "too_many_requests"
    assert "invalid" not in fault.message
    assert response(401, error(type="CreditsError", message="x")).code == "CreditsError"


def test_an_auth_fault_names_where_the_key_is_kept() -> None:
    assert "LAB_API_KEY" in response(401, error(message="no")).message


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, 0.0), ("120", 120.0), (" 7 ", 7.0), ("-3", 0.0), ("soon", 0.0), ("1.5", 0.0), ("", 0.0), ("²", 0.0),
        (formatdate(NOW_S + 90, usegmt=True), 90.0), (formatdate(NOW_S - 90, usegmt=True), 0.0),
        ("Wed, 99 Foo 2026 00:00:00 GMT", 0.0),
    ],
)  # fmt: skip
def test_retry_after(value: str | None, expected: float) -> None:
    assert classify.retry_after_s(value, NOW_S) == expected


@pytest.mark.parametrize("kind", ["overloaded_error", "rate_limit_error", "api_error", "server_is_overloaded"])
def test_a_temporary_event_is_retried_before_content_and_terminal_after_it(kind: str) -> None:
    for event in ({"type": kind, "message": "x"}, {"code": kind}, {"error": {"type": kind}}):
        before = classify.of_stream_event("lab", event, had_content=False)
        after = classify.of_stream_event("lab", event, had_content=True)
        assert (before.fault_class, before.is_retryable, before.may_wait) == (FaultClass.HEADERS, True, True)
        assert (after.fault_class, after.is_retryable) == (FaultClass.UNKNOWN, False)


@pytest.mark.parametrize("event", [{"message": "overloaded"}, {"type": "invalid_request_error"}, "text", None])
def test_any_other_event_is_terminal(event: Any) -> None:
    assert not classify.of_stream_event("lab", event, had_content=False).is_retryable


def test_a_rate_limit_event_about_quota_is_quota() -> None:
    event = {"type": "rate_limit_error", "message": "quota exceeded"}
    assert classify.of_stream_event("lab", event, had_content=False).fault_class is FaultClass.QUOTA


@pytest.mark.parametrize(
    ("status", "text", "expected"),
    [
        (400, "The `reasoning_content` in the thinking mode must be passed back to the API.", True),
        (400, "The `content[].thinking` in the thinking mode must be passed back to the API", True),
        (400, "THE `REASONING_TEXT` IN THE THINKING MODE MUST BE PASSED BACK TO THE API.", True),
        (400, "thinking mode: `reasoning_content` of earlier tool turns has to be sent back", True),
        (400, "content[].thinking is not supported by this model", False),
        (400, "reasoning_text is not supported", False),
        (400, "the signed block must be passed back unchanged", False),
        (400, "invalid tool schema at index 2", False),
        (400, "", False),
        (401, "The `reasoning_content` must be passed back", False),
        (422, "The `reasoning_content` must be passed back", False),
    ],
)
def test_a_replay_refusal_is_recognised_exactly(status: int, text: str, expected: bool) -> None:
    assert is_replay_refusal(status, text) is expected
    assert is_replay_refusal(status, json.dumps({"error": {"message": text}})) is expected
