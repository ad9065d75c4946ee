"""The acceptance matrix: 2 models, 3 protocols, 9 scenarios, 54 stories; and the totals they must come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from direct_agent.core.endpoint import Thinking, Wire
from standfast_lab.recovery import answers
from standfast_lab.recovery.scripted_server import Break, Step
from standfast_lab.recovery.story import Check, Row, Story, holds, only_messages_differ, same_bodies
from standfast_lab.recovery.turn_runner import Conversation

MODELS = ("deepseek-v4-flash", "deepseek-v4-pro")
REQUESTS = 122
EXECUTIONS = 46
RECOVERIES = 20
STOPS = 8
UNKNOWN_USAGE = 24
_RECOVERED = ("first answer cut in half", "follow-up 503 once", "server replay rejection", "reasoning missing once")


def matrix() -> list[Story]:
    return [story for model in MODELS for wire in Wire for story in _stories(model, wire)]


@dataclass(frozen=True, slots=True)
class Totals:
    requests: int
    executions: int
    recoveries: int
    stops: int

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Totals:
        recovered = [
            row for row in rows if row.outcome == "completed" and row.scenario in _RECOVERED and row.requests == 3
        ]
        return cls(
            sum(row.requests for row in rows),
            sum(row.executions for row in rows),
            len(recovered),
            sum(row.outcome != "completed" for row in rows),
        )

    @property
    def is_as_published(self) -> bool:
        return self == Totals(REQUESTS, EXECUTIONS, RECOVERIES, STOPS)


def _stories(model: str, wire: Wire) -> list[Story]:
    plain = [Step(answers.tool(wire)), Step(answers.text(wire))]
    missing = Step(answers.tool(wire, reasoning=None))
    is_strict = wire is Wire.MESSAGES
    half = answers.tool(wire)

    def story(
        name: str,
        steps: Sequence[Step],
        requests: int,
        executions: int,
        outcome: str = "completed",
        *,
        unknown: bool = False,
        thinking: Thinking = Thinking.ON,
        effort: str | None = None,
        checks: Sequence[Check] = (),
    ) -> Story:
        return Story(
            name,
            wire,
            lambda _conversation: steps,
            requests,
            executions,
            outcome,
            model=model,
            thinking=thinking,
            effort=effort,
            usage_unknown=unknown,
            checks=checks,
        )

    quiet = [Step(answers.tool(wire, reasoning=None)), Step(answers.text(wire))]
    return [
        story("effort low", plain, 2, 1, effort="low", checks=[holds(1, '"low"'), holds(2, '"low"')]),
        story("effort max", plain, 2, 1, effort="max", checks=[holds(1, '"max"'), holds(2, '"max"')]),
        story("thinking disabled", quiet, 2, 1, thinking=Thinking.OFF),
        story(
            "first answer cut in half",
            [Step(half, cut_at=len(half) // 2, broken=Break.CLOSE), *plain],
            3,
            1,
            unknown=True,
            checks=[same_bodies(1, 2)],
        ),
        story(
            "reasoning missing once",
            [missing, *plain] if is_strict else [missing, Step(answers.text(wire))],
            3 if is_strict else 2,
            1,
            checks=[same_bodies(1, 2)] if is_strict else [],
        ),
        story(
            "reasoning missing always",
            [missing, missing] if is_strict else [missing, Step(answers.text(wire))],
            2,
            0 if is_strict else 1,
            "failed" if is_strict else "completed",
        ),
        story(
            "follow-up 503 once",
            [plain[0], answers.unavailable(), plain[1]],
            3,
            1,
            unknown=True,
            checks=[same_bodies(2, 3)],
        ),
        story(
            "server replay rejection",
            [plain[0], answers.replay_refusal(wire), plain[1]],
            3,
            1,
            unknown=True,
            checks=[only_messages_differ(2, 3), holds(3, "completed-tool-results", "echoed: hi")],
        ),
        _cancelled(model, wire),
    ]


def _cancelled(model: str, wire: Wire) -> Story:
    """Cancelled when the complete tool call has arrived and the end has not."""

    def steps(conversation: Conversation) -> Sequence[Step]:
        begin, end = answers.tool_pieces(wire)
        return [Step(begin + end, cut_at=len(begin), broken=Break.HOLD, told=conversation.cancel.set)]

    return Story("cancel before commit", wire, steps, 1, 0, "cancelled", model=model, usage_unknown=True)
