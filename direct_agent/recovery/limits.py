"""Recognises a refusal over a limit: the output ceiling of a model, or a window that input and output share.

Only texts and fields with consistent numbers count; a number that contradicts another proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

STATUSES = (400, 413, 422)
_NUMBER = r"([0-9][0-9,_]{0,11})"
_NAMES = ("max_tokens", "max_output_tokens", "max_completion_tokens")
_CEILINGS = (
    rf"at most {_NUMBER}",
    rf"maximum (?:allowed )?(?:value|number|output)[a-z_ ]{{0,40}}?(?:is|of|:)? ?{_NUMBER}",
    rf"(?:up to|limit(?:ed)? (?:is|of|to)|less than or equal to|<=|cannot exceed|must not exceed|not exceed) ?{_NUMBER}",
    rf"\[ ?[0-9]+ ?, ?{_NUMBER} ?\]",
    rf"between [0-9]+ and {_NUMBER}",
    rf"[0-9][0-9,]* > {_NUMBER}",
)
_WINDOW_SENTENCE = re.compile(
    rf"maximum context length is {_NUMBER} tokens\.? +however,? +you requested (?:about )?{_NUMBER} tokens"
    rf"(?: +\({_NUMBER} (?:in|of|from) [^;,)0-9]{{0,40}}[;,] *{_NUMBER} (?:in|for|of) )?"
)
_PROMPT_SENTENCE = re.compile(rf"prompt is too long: {_NUMBER} tokens > {_NUMBER} maximum")
_SUM_SENTENCE = re.compile(
    rf"input length and `?max_tokens`? exceed context limit: {_NUMBER} ?\+ ?{_NUMBER} ?> ?{_NUMBER}"
)
_NO_NUMBERS = "prompt exceeds max length"
_FIELDS = (
    ("n_prompt_tokens", "n_ctx"),
    ("prompt_tokens", "max_context_tokens"),
    ("prompt_tokens", "context_length"),
    ("prompt_tokens", "max_model_len"),
    ("input_tokens", "context_window"),
)


class LimitKind(StrEnum):
    OUTPUT = "output_limit"
    CONTEXT = "context_limit"


@dataclass(frozen=True, slots=True)
class Limit:
    """`output_left`: the largest max_tokens that fits; None when nothing is known of it; 0 or less: nothing is left."""

    kind: LimitKind
    output_left: int | None = None


def recognised_limit(status: int, text: str, body: Any, requested_output: int | None) -> Limit | None:
    """The limit a refusal names, or None. `text` is the body, `body` its JSON value (or None)."""
    if status not in STATUSES:
        return None
    low = text.lower()
    found = _context_limit(low, body, requested_output)
    # A sentence about the window is none about the ceiling, also when its numbers contradict each other.
    is_window = any(sentence.search(low) for sentence in (_WINDOW_SENTENCE, _PROMPT_SENTENCE, _SUM_SENTENCE))
    return found if found is not None or is_window else _output_ceiling(low, requested_output)


def _context_limit(low: str, body: Any, requested_output: int | None) -> Limit | None:
    if found := _WINDOW_SENTENCE.search(low):
        window, total, prompt, output = (_int(each) for each in found.groups())
        if window is None or total is None or total <= window:
            return None
        if prompt is None or output is None:
            prompt = total - requested_output if requested_output is not None else total
        elif prompt + output != total:
            return None
        return Limit(LimitKind.CONTEXT, window - prompt)
    if found := _SUM_SENTENCE.search(low):
        prompt, output, window = (_int(each) for each in found.groups())
        if prompt is None or output is None or window is None or prompt + output <= window:
            return None
        return Limit(LimitKind.CONTEXT, window - prompt)
    if found := _PROMPT_SENTENCE.search(low):
        prompt, window = (_int(each) for each in found.groups())
        if prompt is None or window is None or prompt <= window:
            return None
        return Limit(LimitKind.CONTEXT, window - prompt)
    for fields in _objects(body):
        for prompt_name, window_name in _FIELDS:
            prompt, window = fields.get(prompt_name), fields.get(window_name)
            if type(prompt) is int and type(window) is int and prompt + (requested_output or 0) > window:
                return Limit(LimitKind.CONTEXT, window - prompt)
    return Limit(LimitKind.CONTEXT) if _NO_NUMBERS in low else None


def _output_ceiling(low: str, requested_output: int | None) -> Limit | None:
    if requested_output is None or not any(name in low for name in _NAMES):
        return None
    ceilings = [
        ceiling
        for pattern in _CEILINGS
        for found in re.finditer(pattern, low)
        if (ceiling := _int(found.group(1))) is not None and 0 < ceiling < requested_output
    ]
    # Two different ceilings contradict each other.
    return Limit(LimitKind.OUTPUT, ceilings[0]) if ceilings and len(set(ceilings)) == 1 else None


def _int(text: str | None) -> int | None:
    return None if text is None else int(text.replace(",", "").replace("_", "") or 0)


def _objects(value: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping) and depth < 4:
        yield value
        for each in value.values():
            yield from _objects(each, depth + 1)
