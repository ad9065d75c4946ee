"""A conversation of the lab: one message after another, each turn's facts in words, and what the model must be told of it later."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from standfast.runner.v1 import runner_pb2 as pb
from standfast.types.v1 import types_pb2 as types
from standfast_client.errors import ClientError, UnavailableError
from standfast_client.sdk import Expect, StandfastClient, new_id
from standfast_lab.lab.checks import LabCheckError, check
from standfast_lab.oracle import Outcome, Turn

TURN_TIMEOUT_S = 300.0
_RETRY_S = 0.2
CONFIRMED = ("CONFIRMED", "CONFIRMED")


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
    def codes(self) -> set[str]:
        """The codes of all findings."""
        return {finding.code for finding in self.turn.findings}

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

    @property
    def replies(self) -> tuple[str, ...]:
        """The root's whole assistant texts, in order."""
        texts = [e.assistant_message.text for e in self.events if e.HasField("assistant_message") and not e.parent_id]
        return tuple(text for text in texts if text)

    @property
    def kinds(self) -> list[str]:
        """The kinds of its events, in order."""
        return [str(event.WhichOneof("body")) for event in self.events]

    @property
    def words(self) -> tuple[str, str, tuple[str, str]]:
        """Context state, outcome and verdicts: what most tests ask of a turn."""
        return self.context, self.outcome, self.verdicts


OnEvent = Callable[[pb.TurnEvent], Awaitable[None]]


class Talk:
    """One conversation. The first turn is NEW, the others CONTINUE. `said` is what a complete history holds of it; `unwritten` are the
    turns of it that a killed CLI may not have written down: nothing of them was settled, so nothing of them is promised. `sessions`
    are the native sessions that its turns named: one, if all is well.
    """

    def __init__(
        self,
        client: StandfastClient,
        conversation_id: str | None = None,
        agent: str = "claude-code",
        *,
        model: str | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.client = client
        self.conversation_id = conversation_id or new_id("conversation")
        self.said: list[Turn] = []
        self.unwritten: list[Turn] = []
        self._agent = agent
        self._model = model
        self._options = dict(options or {})
        self._begun = False
        self.sessions: set[str] = set()

    async def turn(
        self, message: str, *, turn_id: str | None = None, on_event: OnEvent | None = None, include_raw: bool = False
    ) -> Told:
        """Sends a message and follows the turn to its end. Raises ClientError for a refused one."""
        expect = Expect.CONTINUE if self._begun else Expect.NEW
        stream = self.client.start_turn(
            self.conversation_id,
            message,
            turn_id=turn_id or new_id("turn"),
            agent=self._agent,
            expect=expect,
            model=self._model,
            options=self._options,
            include_raw=include_raw,
        )
        events = []
        async with asyncio.timeout(TURN_TIMEOUT_S):
            async for event in stream:
                self._begun = True
                events.append(event)
                if on_event is not None:
                    await on_event(event)
        told = Told(stream.result, events)
        self.sessions.add(told.session)
        self._keep(message, told)
        return told

    async def turn_until_answered(self, message: str) -> Told:
        """The same turn again and again while somebody on the way is still coming back."""
        turn_id = new_id("turn")
        async with asyncio.timeout(TURN_TIMEOUT_S):
            while True:
                try:
                    return await self.turn(message, turn_id=turn_id)
                except UnavailableError:
                    await asyncio.sleep(_RETRY_S)

    async def begin(self, fact: str = "remember: the word is plum") -> Told:
        """A first turn that is in order."""
        told = await self.turn(fact)
        check(told.words, ("NEW", "COMPLETED", CONFIRMED), "the first turn", told.turn)
        return told

    async def refusal(self, message: str) -> tuple[ClientError, pb.Turn]:
        """A turn that must be refused: the error, and the turn as it is recorded."""
        turn_id = new_id("turn")
        try:
            told = await self.turn(message, turn_id=turn_id)
        except ClientError as error:
            return error, await self.client.get_turn(self.conversation_id, turn_id)
        raise LabCheckError(f"expected a refusal, found a turn: {told.turn}")

    async def cancelled(self, message: str, when: Callable[[pb.TurnEvent], bool]) -> Told:
        """A turn that is cancelled at the first event for which `when` holds."""
        turn_id, was_cancelled = new_id("turn"), False

        async def cancel(event: pb.TurnEvent) -> None:
            nonlocal was_cancelled
            if not was_cancelled and when(event):
                was_cancelled = True
                await self.client.cancel_turn(self.conversation_id, turn_id)

        told = await self.turn(message, turn_id=turn_id, on_event=cancel)
        check(was_cancelled, True, "cancelled before its end", told.turn)
        return told

    async def stop(self) -> None:
        """Stops the sandbox, so that the next turn is RESTORED."""
        await self.client.stop_conversation(self.conversation_id)

    def _keep(self, message: str, told: Told) -> None:
        match told.outcome:
            case "COMPLETED":
                self.said.append(Turn(message, told.replies))
            case "FAILED" if told.turn.locator_saved:
                self.said.append(Turn(message, told.replies, Outcome.FAILED))
            case "CANCELLED":
                self.said.append(Turn(message, (), Outcome.NOT_ENDED))
            case "INTERRUPTED":
                self.said.append(Turn(message, (), Outcome.NOT_ENDED))
                self.unwritten.append(self.said[-1])
            case _:
                pass  # nothing of it is promised to anybody
