"""A conversation for tests: one message after another, and each turn's facts in words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from standfast.runner.v1 import runner_pb2 as pb
from standfast.types.v1 import types_pb2 as types
from standfast_client.sdk import Expect, StandfastClient, new_id


@dataclass
class Told:
    """One turn as it ended."""

    turn: pb.Turn
    events: list[pb.TurnEvent] = field(default_factory=list)

    @property
    def outcome(self) -> str:
        return str(types.Outcome.Name(self.turn.outcome)).removeprefix("OUTCOME_")

    @property
    def context(self) -> str:
        return str(types.ContextState.Name(self.turn.context_state)).removeprefix("CONTEXT_STATE_")

    @property
    def disposition(self) -> str:
        return str(types.ProcessDisposition.Name(self.turn.process_disposition)).removeprefix("PROCESS_DISPOSITION_")

    @property
    def verdicts(self) -> tuple[str, str]:
        def word(value: Any) -> str:
            return str(types.Verdict.Name(value)).removeprefix("VERDICT_")

        return word(self.turn.runner_verdict), word(self.turn.manager_verdict)

    @property
    def reason(self) -> str:
        return self.turn.failure.reason

    @property
    def answer(self) -> str:
        return self.turn.output_text

    @property
    def container_id(self) -> str:
        return self.turn.container_id

    @property
    def session(self) -> str:
        return self.turn.locator.native_session_id

    @property
    def process(self) -> int:
        return self.turn.generations.process

    @property
    def tool_results(self) -> list[str]:
        return [event.tool_result.text for event in self.events if event.HasField("tool_result")]


class Talk:
    """One conversation. The first turn is NEW, the others CONTINUE."""

    def __init__(self, client: StandfastClient, conversation_id: str | None = None, agent: str = "claude-code") -> None:
        self.client = client
        self.conversation_id = conversation_id or new_id("conversation")
        self._agent = agent
        self._begun = False

    async def turn(self, message: str, *, turn_id: str | None = None) -> Told:
        """Sends a message and follows the turn to its end. Raises ClientError for a refused one."""
        expect = Expect.CONTINUE if self._begun else Expect.NEW
        stream = self.client.start_turn(
            self.conversation_id, message, turn_id=turn_id or new_id("turn"), agent=self._agent, expect=expect
        )
        events = []
        async for event in stream:
            self._begun = True
            events.append(event)
        return Told(stream.result, events)
