"""The question tool: asks the person, and gives the answer as it was given."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from direct_agent.tools.port import Arguments, Output, ToolSpec

QUESTIONS_MAX = 4
OPTIONS_MAX = 8

AskPerson = Callable[[list[dict[str, Any]]], Awaitable[tuple[tuple[tuple[str, ...], ...], str | None]]]
"""Gives the answers, one list a question, and None; or nothing and why nobody answers."""


class Ask:
    """Implements PlainTool. It changes nothing, so asking again after an interruption is harmless."""

    spec = ToolSpec(
        name="ask",
        description="Asks the person who gives you the task. Only for what you cannot find out yourself.",
        parameters={
            "type": "object",
            "properties": {
                "questions": {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": QUESTIONS_MAX,
                    "items": {
                        "type": "object",
                        "properties": {
                            "header": {"type": "string", "description": "A word or two."},
                            "text": {"type": "string"},
                            "options": {"type": "array", "maxItems": OPTIONS_MAX, "items": {"type": "string"}},
                            "multiple": {"type": "boolean", "description": "More than one option may be chosen."},
                        },
                        "required": ["text"],
                        "additionalProperties": False,
                    },
                }
            },
            "required": ["questions"],
            "additionalProperties": False,
        },
        is_read_only=True,
    )

    def __init__(self, ask_person: AskPerson) -> None:
        self._ask_person = ask_person

    def subjects(self, arguments: Arguments) -> tuple[str, ...]:
        return ()

    async def run(self, arguments: Arguments) -> Output:
        questions: list[dict[str, Any]] = list(arguments["questions"])
        answers, refused = await self._ask_person(questions)
        if refused is not None:
            return Output(f"The person did not answer: {refused}", is_error=True)
        told = [
            {"question": question["text"], "answer": list(given)}
            for question, given in zip(questions, answers, strict=False)
        ]
        return Output(json.dumps(told, ensure_ascii=False))
