"""Plays the story on a fleet of real processes, and reads from turn, log and provider what each line shows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from standfast.runner.v1 import runner_pb2 as pb
from standfast.types.v1 import types_pb2 as types
from standfast_client.errors import ClientError
from standfast_client.sdk import Expect, StandfastClient, new_id
from standfast_lab.demo.story import NO_HISTORY, Line, Step
from standfast_lab.fleet.fleet import Fleet
from standfast_lab.oracle import Outcome, Turn, judge_session
from standfast_lab.provider import LabProvider

CONVERSATION = "demo"
AGENT = "claude-code"
STEP_TIMEOUT_S = 90.0


class Player:
    """Plays steps one after another, and keeps what the conversation has come to."""

    def __init__(self, client: StandfastClient, lab: LabProvider, remove_container: Callable[[str], Any]) -> None:
        self._client = client
        self._lab = lab
        self._remove_container = remove_container
        self._said: list[Turn] = []
        self.lines: list[Line] = []

    async def play(self, step: Step) -> Line:
        """Plays one step. Raises TimeoutError when it does not end in time."""
        async with asyncio.timeout(STEP_TIMEOUT_S):
            if step.before == "stop":
                await self._client.stop_conversation(CONVERSATION)
            elif step.before == "remove":
                await self._remove_container(self.lines[0].container_id)
            before = len(self._lab.log.rows())
            turn, refusal = await self._turn(step)
            line = self._line(step, turn, refusal, len(self._lab.log.rows()) - before)
        self.lines.append(line)
        return line

    async def _turn(self, step: Step) -> tuple[pb.Turn, ClientError | None]:
        expect = Expect.NEW if step.is_new else Expect.CONTINUE
        turn_id = new_id("turn")
        stream = self._client.start_turn(CONVERSATION, step.message, turn_id=turn_id, agent=AGENT, expect=expect)
        try:
            async for _ in stream:
                continue
        except ClientError as refusal:
            return await self._client.get_turn(CONVERSATION, turn_id), refusal
        return stream.result, None

    def _line(self, step: Step, turn: pb.Turn, refusal: ClientError | None, requests: int) -> Line:
        self._remember(step, turn)
        reason = turn.failure.metadata.get("cause") or turn.failure.reason
        if refusal is not None:
            reason = refusal.metadata.get("cause") or refusal.reason
        return Line(
            step=step.number,
            message=step.message,
            context_state=_word(types.ContextState, turn.context_state, "CONTEXT_STATE_"),
            outcome=_word(types.Outcome, turn.outcome, "OUTCOME_"),
            native_session_id=turn.locator.native_session_id,
            container_id=turn.container_id,
            process_generation=turn.generations.process,
            history=self._history(turn),
            runner_verdict=_word(types.Verdict, turn.runner_verdict, "VERDICT_"),
            manager_verdict=_word(types.Verdict, turn.manager_verdict, "VERDICT_"),
            disposition=_word(types.ProcessDisposition, turn.process_disposition, "PROCESS_DISPOSITION_"),
            reason=reason,
            answer=turn.output_text,
            requests_sent=requests,
        )

    def _remember(self, step: Step, turn: pb.Turn) -> None:
        if turn.outcome == types.OUTCOME_COMPLETED:
            self._said.append(Turn(step.message, (turn.output_text,)))
        elif turn.outcome == types.OUTCOME_FAILED and turn.locator_saved:
            self._said.append(Turn(step.message, (), Outcome.FAILED))

    def _history(self, turn: pb.Turn) -> str:
        """By the lab's log: did the newest request of this session carry everything that was said?"""
        if not self._said or turn.outcome == types.OUTCOME_REFUSED or not turn.locator_saved:
            return NO_HISTORY
        return str(judge_session(self._lab.log.rows(), turn.locator.native_session_id, self._said))


def _word(enum: Any, value: int, prefix: str) -> str:
    return str(enum.Name(value)).removeprefix(prefix)


async def play(
    steps: Sequence[Step],
    fleet: Fleet,
    lab: LabProvider,
    remove_container: Callable[[str], Any],
    told: Callable[[Step, Line], None],
) -> list[Line]:
    """Plays all steps; `told` hears each line as it comes."""
    async with StandfastClient(fleet.runner.address) as client:
        player = Player(client, lab, remove_container)
        for step in steps:
            told(step, await player.play(step))
        return player.lines


def containers_folder(fleet_folder: Path) -> Path:
    """Where the host agent of a fleet keeps the retained folders of `local`."""
    return fleet_folder / "h" / "g"
