"""Limits are recognised by their usual sentences and by consistent numbers, and by nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from direct_agent.recovery.limits import Limit, LimitKind, recognised_limit

ASKED = 9000


def limit(text: str, body: Any = None, status: int = 400, asked: int | None = ASKED) -> Limit | None:
    return recognised_limit(status, text, body, asked)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("max_tokens is too large: 9000. This model supports at most 4096 completion tokens", 4096),
        ("max_tokens: 9000 > 8192, which is the maximum allowed number of output tokens for m", 8192),
        ("Invalid max_tokens value, the valid range of max_tokens is [1, 8,192]", 8192),
        ("max_output_tokens must be less than or equal to 4096", 4096),
        ("max_completion_tokens should be between 1 and 4096", 4096),
    ],
)
@pytest.mark.parametrize("status", [400, 413, 422])
def test_an_output_ceiling_names_the_smaller_maximum(text: str, left: int, status: int) -> None:
    assert limit(text, status=status) == Limit(LimitKind.OUTPUT, left)


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens: 9000 > 10000, which is the maximum allowed number of output tokens",
        "at most 4096 items",
        "max_tokens at most 4096, at most 2048",
        "max_tokens is wrong",
    ],
)
def test_a_ceiling_that_helps_nobody_is_none(text: str) -> None:
    assert limit(text) is None


WINDOW = (
    "This model's maximum context length is 8000 tokens. However, you requested 12000 tokens (3000 in the messages, "
    "9000 in the completion). Please reduce the length."
)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (WINDOW, 5000),
        ("maximum context length is 8,000 tokens. However, you requested 12,000 tokens", 5000),
        ("prompt is too long: 9500 tokens > 8000 maximum", -1500),
        ("input length and `max_tokens` exceed context limit: 3000 + 9000 > 8000", 5000),
        ("Prompt exceeds max length", None),
    ],
)
def test_a_window_overflow(text: str, left: int | None) -> None:
    assert limit(text) == Limit(LimitKind.CONTEXT, left)


@pytest.mark.parametrize(
    "text",
    [
        WINDOW.replace("3000 in", "1 in"),
        WINDOW.replace("12000", "7000"),
        "prompt is too long: 100 tokens > 8000 maximum",
        "input length and `max_tokens` exceed context limit: 1 + 2 > 8000",
    ],
)
def test_numbers_that_contradict_each_other_prove_nothing(text: str) -> None:
    assert limit(text) is None


def test_fields_with_consistent_numbers_count() -> None:
    body = {"error": {"type": "exceed_context_size_error", "n_prompt_tokens": 7000, "n_ctx": 8000}}
    assert limit("x", body) == Limit(LimitKind.CONTEXT, 1000)
    assert limit("x", {"error": {"n_prompt_tokens": 10, "n_ctx": 80000}}) is None
    assert limit("x", {"error": {"n_prompt_tokens": True, "n_ctx": 0}}) is None


@pytest.mark.parametrize("status", [401, 404, 429, 500])
def test_another_status_is_no_limit(status: int) -> None:
    assert limit(WINDOW, status=status) is None
