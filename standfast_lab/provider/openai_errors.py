"""OpenAI's error objects, the same for Chat Completions and Responses: the lab's words in, type and code out."""

from __future__ import annotations

import json

from standfast_lab.provider.http_steps import Step
from standfast_lab.provider.speech import error_steps

# word -> (type, code)
_SPELLED: dict[str, tuple[str, str | None]] = {
    "invalid_request_error": ("invalid_request_error", None),
    "authentication_error": ("invalid_request_error", "invalid_api_key"),
    "permission_error": ("invalid_request_error", "permission_denied"),
    "not_found_error": ("invalid_request_error", "not_found"),
    "request_too_large": ("invalid_request_error", "request_too_large"),
    "rate_limit_error": ("rate_limit_error", "rate_limit_exceeded"),
    "insufficient_quota": ("insufficient_quota", "insufficient_quota"),
    "context_length_exceeded": ("invalid_request_error", "context_length_exceeded"),
    "overloaded_error": ("server_error", "server_is_overloaded"),
    "api_error": ("server_error", "server_error"),
    "timeout_error": ("server_error", "timeout"),
}


def error_object(kind: str, message: str) -> dict[str, object]:
    """Returns message, type, param and code; a word that is not known is both type and code."""
    spelled, code = _SPELLED.get(kind, (kind, kind))
    return {"message": message, "type": spelled, "param": None, "code": code}


def write_error(status: int, kind: str, message: str, seed: str, retry_after_s: float | None = None) -> list[Step]:
    """Returns the HTTP steps of an error body."""
    body = json.dumps({"error": error_object(kind, message)}).encode()
    return error_steps(status, body, [("x-request-id", f"req_lab_{seed}")], retry_after_s)
