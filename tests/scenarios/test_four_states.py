"""NEW, LIVE, RESTORED and LOST, as a client sees them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from standfast_client.errors import ContextLostError, ConversationExistsError, LegacyConversationError
from standfast_client.sdk import Expect
from tests.scenarios.stage import Stage
from tests.stub_cli.tool_folder import ToolFolder

pytestmark = [pytest.mark.engine("local"), pytest.mark.asyncio(loop_scope="module")]


async def test_a_conversation_is_new_then_live_then_restored_and_lost_without_its_folder(
    short_folder: Callable[[], Path], stub_tools: ToolFolder
) -> None:
    async with Stage(short_folder(), stub_tools) as stage:
        first = await stage.begin("c")
        assert (first.state, first.outcome, first.process) == ("NEW", "COMPLETED", "KEPT")
        assert first.verdicts == ("CONFIRMED", "CONFIRMED")
        second = await stage.ask("c", "what is the colour?")
        assert (second.state, second.outcome, second.text) == ("LIVE", "COMPLETED", "the colour is green")
        assert second.turn.generations.process == first.turn.generations.process
        await stage.client.stop_conversation("c")
        third = await stage.ask("c", "what is the colour?")
        assert (third.state, third.outcome, third.text) == ("RESTORED", "COMPLETED", "the colour is green")
        assert third.turn.container_id == first.turn.container_id
        assert third.session == first.session
        assert third.turn.generations.process > first.turn.generations.process
        await stage.client.stop_conversation("c")
        aside = stage.sandboxes.parent / "aside"
        stage.sandboxes.rename(aside)
        sent = len(stage.requests())
        fourth = await stage.ask("c", "what is the colour?")
        assert (fourth.state, fourth.outcome, fourth.reason) == ("LOST", "REFUSED", "CONTAINER_GONE")
        assert isinstance(fourth.refusal, ContextLostError)
        assert fourth.refusal.cure
        assert len(stage.requests()) == sent
        # LOST is decided anew each time: what comes back is RESTORED.
        shutil.rmtree(stage.sandboxes, ignore_errors=True)
        aside.rename(stage.sandboxes)
        fifth = await stage.ask("c", "what is the colour?")
        assert (fifth.state, fifth.text) == ("RESTORED", "the colour is green")


async def test_expectations_are_held_against_what_is_known(stage: Stage, conversation: str) -> None:
    unknown = await stage_refusal(stage, conversation, Expect.CONTINUE)
    assert isinstance(unknown, LegacyConversationError)
    await stage.begin(conversation)
    known = await stage_refusal(stage, conversation, Expect.NEW)
    assert isinstance(known, ConversationExistsError)
    assert len(stage.prompts()) == 1


async def stage_refusal(stage: Stage, conversation: str, expect: Expect) -> BaseException | None:
    return (await stage.ask(conversation, "hello", expect=expect)).refusal
