"""One round with its surroundings: cancels, usage, events, persisted repairs, and what later rounds keep."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from direct_agent.adapters.real_clock import RealClock
from direct_agent.conductors.round import RoundEnd, Rounds, Surroundings
from direct_agent.core.endpoint import Endpoint, EndpointKind, Thinking, Wire
from direct_agent.core.request_settings import RequestSettings
from direct_agent.ports import FrozenRequest
from direct_agent.recovery.fault import Reason
from direct_agent.recovery.memory import RepairMemory
from direct_agent.recovery.overlay import record_from
from direct_agent.transcript import (
    AssistantMessage,
    Reasoning,
    ReasoningKind,
    ReasoningState,
    RunState,
    ToolCall,
    ToolResult,
    Usage,
    UserMessage,
)
from direct_agent.transcript_json import to_json
from standfast_lab.recovery import answers
from standfast_lab.recovery.scripted_server import ScriptedServer, Step
from standfast_lab.recovery.story import tell
from standfast_lab.recovery.tables import all_tables
from standfast_lab.recovery.turn_runner import LAB_KEY, Conversation, Log, NoBudget, Recorder

STRICT = EndpointKind.STRICT_DEEPSEEK


def endpoint(wire: Wire = Wire.CHAT, kind: EndpointKind = STRICT) -> Endpoint:
    return Endpoint(wire, kind, "http://127.0.0.1", "m", Thinking.ON, name="lab", key_variable="LAB_API_KEY")


async def talk(conversation: Conversation, steps: list[Step], *turns: str) -> tuple[ScriptedServer, list[RoundEnd]]:
    async with ScriptedServer(steps, conversation.clock.monotonic) as server:
        conversation.endpoint = replace(conversation.endpoint, base_url=server.base_url)
        ends = [(await conversation.turn(text)).end for text in turns]
    return server, ends


@dataclass
class OneReply:
    """A transport that gives one body, and does something just before its last bytes."""

    pieces: list[bytes]
    before_last: asyncio.Event | None = None
    stuck: bool = False
    sent: int = 0
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)

    @asynccontextmanager
    async def send(self, request: FrozenRequest) -> AsyncIterator[OneReply]:
        self.sent += 1
        yield self

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        for piece in self.pieces[:-1]:
            yield piece
        if self.stuck:
            await asyncio.Event().wait()
        if self.before_last is not None:
            self.before_last.set()
        yield self.pieces[-1]


def rounds(transport: OneReply) -> tuple[Rounds, Recorder]:
    events = Recorder()
    one = endpoint()
    return Rounds(one, RepairMemory(one), Surroundings(transport, RealClock(), Log(), events)), events


class WatchedLog(Log):
    """Notes how many requests had been made at each save."""

    def __init__(self, server: ScriptedServer) -> None:
        super().__init__()
        self._server = server
        self.heard_at: list[int] = []

    async def persist(self, record: bytes) -> None:
        self.heard_at.append(len(self._server.heard))
        await super().persist(record)


async def test_a_complete_answer_that_arrives_with_the_cancel_is_discarded() -> None:
    cancel = asyncio.Event()
    transport = OneReply([answers.tool(Wire.CHAT)], cancel)
    one, events = rounds(transport)
    outcome = await one.run((UserMessage("a"),), RequestSettings(), cancel, NoBudget())
    assert (outcome.end, outcome.message) == (RoundEnd.CANCELLED, None)
    assert events.named("attempt_commit") == []
    assert outcome.usage.is_unknown


async def test_a_stuck_stream_lets_go_within_half_a_second() -> None:
    cancel = asyncio.Event()
    one, _ = rounds(OneReply([b"data: {}\n", b""], stuck=True))
    task = asyncio.create_task(one.run((UserMessage("a"),), RequestSettings(), cancel, NoBudget()))
    await asyncio.sleep(0.05)
    loop = asyncio.get_running_loop()
    started = loop.time()
    cancel.set()
    outcome = await task
    assert outcome.end is RoundEnd.CANCELLED
    assert loop.time() - started < 0.5


async def test_a_context_that_is_cancelled_before_sends_nothing() -> None:
    cancel = asyncio.Event()
    cancel.set()
    transport = OneReply([answers.text(Wire.CHAT)])
    one, _ = rounds(transport)
    outcome = await one.run((UserMessage("a"),), RequestSettings(), cancel, NoBudget())
    assert (outcome.end, transport.sent, outcome.usage) == (RoundEnd.CANCELLED, 0, Usage())


@pytest.mark.parametrize("wire", Wire)
async def test_usage_of_a_round_is_exact_and_sticky(wire: Wire) -> None:
    conversation = Conversation(endpoint(wire))
    await talk(conversation, [answers.cut_text(wire), Step(answers.text(wire))], "a")
    usage = conversation.usage
    assert (usage.request_count, usage.is_unknown, usage.is_estimated) == (2, True, True)
    assert usage.completion == 1
    # Messages told its input before the cut: that stays exact and is counted.
    assert usage.prompt == (24 if wire is Wire.MESSAGES else 12)
    assert usage.estimate_tokens > 0
    clean = Conversation(endpoint(wire))
    await talk(clean, [Step(answers.text(wire))], "a")
    assert (clean.usage.request_count, clean.usage.is_unknown, clean.usage.estimate_tokens) == (1, False, 0)


def test_unknown_is_sticky_and_adding_changes_no_operand() -> None:
    known = Usage(1, 10, 2, total=12)
    unknown = Usage(1, is_unknown=True)
    both = known + unknown + known
    assert (both.request_count, both.prompt, both.completion, both.total, both.is_unknown) == (3, 20, 4, 24, True)
    assert (both.reasoning, both.cache_hit) == (None, None)
    assert known == Usage(1, 10, 2, total=12)


async def test_events_hold_no_address_no_argument_no_error_text_and_only_listed_reasons() -> None:
    allowed = {reason.value for reason in Reason} | {None}
    for story in all_tables()[:60]:
        told = await tell(story)
        for event in told.conversation.events.events:
            if event["event"] == "delta":
                continue
            if "reason" in event:
                assert event["reason"] in allowed
            text = json.dumps(event)
            for secret in ("127.0.0.1", "temporarily", LAB_KEY, '"hi"', "quota,"):
                assert secret not in text, (story.name, event)


async def test_a_countdown_tells_every_ten_seconds_of_waiting() -> None:
    conversation = Conversation(endpoint())
    conversation.clock.on_sleep = lambda now_s: conversation.cancel.set() if now_s > 70 else None
    await talk(conversation, [answers.unavailable()], "a")
    countdowns = conversation.events.named("countdown")
    assert [event["remaining_s"] for event in countdowns] == [53.0, 43.0, 33.0, 23.0, 13.0]
    assert all(event["waiting"] for event in countdowns)


@pytest.mark.parametrize("wire", Wire)
async def test_a_repair_is_durable_before_it_is_sent_and_active_after_it_succeeded(wire: Wire) -> None:
    conversation = Conversation(endpoint(wire))
    steps = [Step(answers.tool(wire)), answers.replay_refusal(wire), Step(answers.text(wire))]
    server = ScriptedServer(steps, conversation.clock.monotonic)
    log = WatchedLog(server)
    conversation.log = log
    async with server:
        conversation.endpoint = replace(conversation.endpoint, base_url=server.base_url)
        await conversation.turn("a")
    # Saved when two requests had been made, before the third; active when the third was answered.
    assert log.heard_at == [2, 3]
    states = [record.state.value for raw in conversation.log.records if (record := record_from(raw)) is not None]
    assert states == ["pending", "active"]
    # The stored transcript has the call, its reasoning and its result, as they were.
    stored = [to_json(message) for message in conversation.transcript]
    assert [each["role"] for each in stored] == ["user", "assistant", "tool", "assistant"]
    assert stored[0]["text"] == "a"
    assert "reasoning" in stored[1]


async def test_a_repair_that_fails_is_not_active_later() -> None:
    conversation = Conversation(endpoint())
    refusal = answers.replay_refusal(Wire.CHAT)
    _, ends = await talk(conversation, [Step(answers.tool(Wire.CHAT)), refusal, refusal], "a")
    assert ends == [RoundEnd.FAILED]
    assert conversation.memory is not None
    assert conversation.memory.overlay is None


async def test_a_later_refusal_of_the_same_incident_is_terminal() -> None:
    conversation = Conversation(endpoint())
    refusal = answers.replay_refusal(Wire.CHAT)
    server, ends = await talk(conversation, [Step(answers.tool(Wire.CHAT)), refusal], "a", "go on")
    assert ends == [RoundEnd.FAILED, RoundEnd.FAILED]
    assert len(server.heard) == 4


async def test_a_second_missing_reasoning_in_one_incident_is_not_regenerated() -> None:
    wire = Wire.MESSAGES
    bare, good = Step(answers.tool(wire, reasoning=None)), Step(answers.tool(wire, "call_2"))
    conversation = Conversation(endpoint(wire))
    server, ends = await talk(conversation, [bare, good, bare, good], "a")
    assert ends == [RoundEnd.FAILED]
    assert (len(server.heard), conversation.executions) == (3, 1)


async def test_after_three_healthy_rounds_a_new_incident_is_regenerated_with_the_facts() -> None:
    wire = Wire.MESSAGES
    bare = Step(answers.tool(wire, "call_x", reasoning=None))
    good = [Step(answers.tool(wire, f"call_{at}")) for at in range(5)]
    conversation = Conversation(endpoint(wire))
    steps = [bare, good[0], good[1], good[2], good[3], bare, good[4], Step(answers.text(wire))]
    server, ends = await talk(conversation, steps, "a")
    assert ends == [RoundEnd.COMMITTED]
    assert (len(server.heard), conversation.executions) == (8, 5)
    assert b"completed-tool-results" in server.heard[6].body


async def test_the_regenerated_answer_is_none_of_the_three_healthy_rounds() -> None:
    wire = Wire.MESSAGES
    bare = Step(answers.tool(wire, "call_x", reasoning=None))
    good = [Step(answers.tool(wire, f"call_{at}")) for at in range(3)]
    conversation = Conversation(endpoint(wire))
    _, ends = await talk(conversation, [bare, *good, bare, Step(answers.text(wire))], "a")
    assert ends == [RoundEnd.FAILED]
    assert conversation.executions == 3


async def test_a_regenerated_answer_that_asks_for_another_tool_runs_only_that() -> None:
    wire = Wire.MESSAGES
    conversation = Conversation(endpoint(wire))
    steps = [
        Step(answers.tool(wire, "first", reasoning=None)),
        Step(answers.tool(wire, "second")),
        Step(answers.text(wire)),
    ]
    await talk(conversation, steps, "a")
    results = [message.call_id for message in conversation.transcript if isinstance(message, ToolResult)]
    assert results == ["second"]


async def test_native_claude_is_never_sent_an_unsigned_tool_turn() -> None:
    wire = Wire.MESSAGES
    conversation = Conversation(endpoint(wire, EndpointKind.NATIVE_CLAUDE))
    signed = AssistantMessage("first", (Reasoning(ReasoningKind.THINKING, "t1", "c2ln"),), ReasoningState.COMPLETE)
    unsigned = AssistantMessage(
        "", (Reasoning(ReasoningKind.THINKING, "t3"),), ReasoningState.COMPLETE, (ToolCall("c", "read", "{}"),)
    )
    conversation.transcript = [
        UserMessage("one"),
        signed,
        UserMessage("two"),
        unsigned,
        ToolResult("c", "read", "M", RunState.COMPLETED),
    ]
    stored = list(conversation.transcript)
    server, _ = await talk(conversation, [Step(answers.text(wire))], "three", "four")
    assert conversation.transcript[:5] == stored
    first = json.loads(server.heard[0].body)["messages"]
    assert first[1]["content"][0] == {"type": "thinking", "thinking": "t1", "signature": "c2ln"}
    assert b"t3" not in server.heard[0].body
    assert b'\\"output\\":\\"M\\"' in server.heard[0].body
    # The next round begins with the same bytes of history, and needed no further record.
    assert json.loads(server.heard[1].body)["messages"][: len(first)] == first
    assert len(conversation.log.records) == 2


async def test_a_ceiling_once_learned_is_kept_for_later_rounds() -> None:
    conversation = Conversation(endpoint())
    conversation.settings = replace(conversation.settings, max_tokens=9000)
    ceiling = answers.refusal(
        400, {"message": "max_tokens is too large: 9000. This model supports at most 4096 completion tokens"}
    )
    server, _ = await talk(conversation, [ceiling, Step(answers.text(Wire.CHAT))], "a", "b")
    assert [json.loads(heard.body)["max_tokens"] for heard in server.heard] == [9000, 4096, 4096]


async def test_a_caller_deadline_is_named_as_one() -> None:
    conversation = Conversation(endpoint())
    conversation.budget.limit = "deadline"
    async with ScriptedServer([answers.unavailable()], conversation.clock.monotonic) as server:
        conversation.endpoint = replace(conversation.endpoint, base_url=server.base_url)
        outcome = await conversation.turn("a")
    assert (outcome.end, outcome.limit) == (RoundEnd.STOPPED, "deadline")


async def test_reasoning_cut_by_our_own_limit_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("direct_agent.providers.messages_stream.REASONING_BYTES_MAX", 4)
    conversation = Conversation(endpoint(Wire.MESSAGES))
    server, ends = await talk(conversation, [Step(answers.tool(Wire.MESSAGES))], "a")
    assert ends == [RoundEnd.FAILED]
    assert (len(server.heard), conversation.executions) == (1, 0)
