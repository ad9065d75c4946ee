"""The SDK over real gRPC: one view per turn however often it is cut, one exception per kind of answer."""

from __future__ import annotations

import asyncio

import pytest

from standfast.runner.v1 import runner_pb2 as pb
from standfast.types.v1 import types_pb2 as types
from standfast_client.errors import (
    BusyError,
    ClientError,
    ContextLostError,
    ConversationExistsError,
    FaultError,
    InvalidRequestError,
    LegacyConversationError,
    LocatorError,
    MessageChangedError,
    NoRoomError,
    NotBuiltError,
    NotFoundError,
    RefusedError,
    TurnElsewhereError,
    UnavailableError,
)
from standfast_client.sdk import Expect, StandfastClient
from standfast_client.turn_stream import TurnStream
from tests.wire.client_fake_runner import Script, ScriptedError, events_of, fake_runner, key, turn_record


async def sequence_of(stream: TurnStream) -> list[int]:
    return [event.sequence async for event in stream]


async def test_a_turn_is_sent_as_it_was_typed_and_always_says_what_is_expected() -> None:
    script = Script()
    async with fake_runner(script) as address, StandfastClient(address) as client:
        text = "  /clear\r\n\u200b😀\t "
        stream = client.start_turn("c-1", text, expect=Expect.NEW, turn_id="t-1", model="m", options={"a": "b"})
        assert await sequence_of(stream) == [1, 2, 3, 4, 5, 6, 7, 8]
        assert stream.result.outcome == types.OUTCOME_COMPLETED
        await sequence_of(client.start_turn("c-1", "again", expect=Expect.CONTINUE))
        first, second = script.started
        assert (first.message, first.turn_id, first.expect) == (text, "t-1", types.EXPECT_NEW)
        assert (first.settings.model, dict(first.settings.options), first.agent) == ("m", {"a": "b"}, "claude-code")
        assert second.expect == types.EXPECT_CONTINUE
        assert second.turn_id.startswith("t-")


@pytest.mark.parametrize("end_quietly", [False, True])
@pytest.mark.parametrize("cut_after", [1, 4, 7])
async def test_a_cut_view_goes_on_where_it_stopped_and_the_message_is_not_sent_again(
    cut_after: int, end_quietly: bool
) -> None:
    script = Script(cut_after=cut_after, end_quietly=end_quietly)
    async with fake_runner(script) as address, StandfastClient(address) as client:
        stream = client.start_turn("c-1", "x", expect=Expect.NEW, turn_id="t-1")
        assert await sequence_of(stream) == [1, 2, 3, 4, 5, 6, 7, 8]
        assert len(script.started) == 1
        assert [(request.turn_id, request.after_sequence) for request in script.watched] == [("t-1", cut_after)]


@pytest.mark.parametrize("cut_after", [None, 2, 5, 6, 9])
async def test_raw_frames_come_once_each_between_the_numbered_events(cut_after: int | None) -> None:
    """A raw frame carries the number of the event before it, and a new view replays all that are kept."""
    events: list[pb.TurnEvent] = []
    for event in events_of("hello"):
        raws = [pb.RawFrame(frame=f"{event.sequence}{place}".encode()) for place in "ab"]
        events += [event, *(pb.TurnEvent(sequence=event.sequence, raw_frame=raw) for raw in raws)]
    events = events[:-2]  # nothing comes after the last event
    async with fake_runner(Script(events=events, cut_after=cut_after)) as address, StandfastClient(address) as client:
        stream = client.start_turn("c-1", "x", expect=Expect.NEW, turn_id="t-1", include_raw=True)
        seen = [event async for event in stream]
    raw = [event.raw_frame.frame for event in seen if event.HasField("raw_frame")]
    assert raw == [event.raw_frame.frame for event in events if event.HasField("raw_frame")]
    assert [event.sequence for event in seen if not event.HasField("raw_frame")] == [1, 2, 3, 4, 5, 6, 7, 8]


async def test_a_cut_before_the_first_event_is_raised_as_retryable() -> None:
    script = Script(cut_after=0)
    async with fake_runner(script) as address, StandfastClient(address) as client:
        with pytest.raises(UnavailableError) as caught:
            await sequence_of(client.start_turn("c-1", "x", expect=Expect.NEW))
        assert caught.value.is_retryable
        assert script.watched == []


async def test_a_view_survives_a_restart_of_the_runner() -> None:
    first = Script(hold_after=3)
    async with asyncio.timeout(20):
        async with fake_runner(first) as address:
            client = StandfastClient(address)
            stream = client.start_turn("c-1", "x", expect=Expect.NEW, turn_id="t-1")
            seen: list[int] = []

            async def look() -> None:
                async for event in stream:
                    seen.append(event.sequence)

            looking = asyncio.create_task(look())
            await first.held.wait()
        second = Script()
        async with fake_runner(second, address):
            await looking
            await client.close()
    assert seen == [1, 2, 3, 4, 5, 6, 7, 8]
    assert second.started == []


async def test_a_runner_that_stays_away_ends_the_view_when_patience_is_over() -> None:
    script = Script(hold_after=3)
    async with fake_runner(script) as address:
        client = StandfastClient(address)
        stream = client.start_turn("c-1", "x", expect=Expect.NEW, patience_s=0.3)
        looking = asyncio.create_task(sequence_of(stream))
        await script.held.wait()
    with pytest.raises(UnavailableError):
        await asyncio.wait_for(looking, 15)
    await client.close()


async def test_a_watch_says_whether_the_replay_is_whole_and_starts_after_a_number() -> None:
    script = Script(resume=pb.RESUME_GAP)
    async with fake_runner(script) as address, StandfastClient(address) as client:
        stream = client.watch_turn("c-1", "t-1", after_sequence=6)
        assert await sequence_of(stream) == [7, 8]
        assert stream.resume == pb.RESUME_GAP


async def test_a_watch_after_a_number_that_the_runner_has_lost_still_ends_with_the_turn() -> None:
    script = Script(resume=pb.RESUME_GAP)
    async with fake_runner(script) as address, StandfastClient(address) as client:
        stream = client.watch_turn("c-1", "t-1", after_sequence=99, patience_s=2.0)
        assert await sequence_of(stream) == [8]
        assert stream.resume == pb.RESUME_GAP
        assert stream.result.turn_id


async def test_leaving_a_stream_early_ends_the_view_on_both_sides() -> None:
    script = Script(hold_after=2)
    async with fake_runner(script) as address, StandfastClient(address) as client:
        stream = client.start_turn("c-1", "x", expect=Expect.NEW)
        with pytest.raises(FaultError):
            _ = stream.result
        events = aiter(stream)
        assert (await anext(events)).sequence == 1
        await events.aclose()  # type: ignore[attr-defined]  # an async generator, which AsyncIterator does not say
        # The server stops without a grace: a call that were still open would keep it.


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("CONTEXT_LOST", ContextLostError),
        ("LEGACY_CONVERSATION", LegacyConversationError),
        ("LOCATOR_MISMATCH", LocatorError),
        ("IMAGE_RETIRED", RefusedError),
        ("CONVERSATION_EXISTS", ConversationExistsError),
        ("MESSAGE_CHANGED", MessageChangedError),
        ("TURN_ELSEWHERE", TurnElsewhereError),
        ("CONVERSATION_BUSY", BusyError),
        ("MESSAGE_EMPTY", InvalidRequestError),
        ("TURN_UNKNOWN", NotFoundError),
        ("MANAGER_UNAVAILABLE", UnavailableError),
        ("NO_HOST", NoRoomError),
        ("CAPABILITY_NOT_BUILT", NotBuiltError),
        ("INTERNAL", FaultError),
    ],
)
async def test_every_reason_has_its_exception_on_every_kind_of_call(reason: str, kind: type[ClientError]) -> None:
    script = Script(refusal=ScriptedError(reason, "why", cause="CONTAINER_GONE", cure="none", address="elsewhere:1"))
    async with fake_runner(script) as address, StandfastClient(address) as client:
        with pytest.raises(ClientError) as caught:
            await sequence_of(client.start_turn("c-1", "x", expect=Expect.CONTINUE))
        assert type(caught.value) is kind
        assert (caught.value.reason, caught.value.message) == (reason, "why")
        assert caught.value.is_retryable == (kind is UnavailableError)
        with pytest.raises(kind):
            await client.cancel_turn("c-1", "t-1")
        if isinstance(caught.value, ContextLostError):
            assert (caught.value.cause, caught.value.cure) == ("CONTAINER_GONE", "none")
        if isinstance(caught.value, TurnElsewhereError):
            assert caught.value.address == "elsewhere:1"


async def test_a_message_over_the_bound_is_refused_before_it_leaves() -> None:
    script = Script()
    async with fake_runner(script) as address, StandfastClient(address) as client:
        with pytest.raises(InvalidRequestError) as caught:
            client.start_turn("c-1", "x" * (20 * 1024 * 1024), expect=Expect.NEW)
        assert caught.value.reason == "MESSAGE_TOO_LARGE"
        await sequence_of(client.start_turn("c-1", "ü" * (2 * 1024 * 1024), expect=Expect.NEW))
        assert len(script.started) == 1


async def test_nobody_at_the_address_is_unavailable_at_once() -> None:
    async with StandfastClient("127.0.0.1:9") as client:
        with pytest.raises(UnavailableError):
            await asyncio.wait_for(sequence_of(client.start_turn("c", "x", expect=Expect.NEW)), 10)
        with pytest.raises(UnavailableError):
            await asyncio.wait_for(client.get_build_info(), 10)


async def test_lists_are_read_page_by_page() -> None:
    conversations = [pb.Conversation(conversation=key(f"c-{number}")) for number in range(5)]
    script = Script(conversations=conversations, turns=[turn_record("t-1"), turn_record("t-2")])
    async with fake_runner(script) as address, StandfastClient(address) as client:
        found = [one.conversation.conversation_id async for one in client.list_conversations()]
        assert found == [f"c-{number}" for number in range(5)]
        assert [one.turn_id async for one in client.list_turns("c-1")] == ["t-1", "t-2"]
        assert (await client.get_turn("c-1", "t-2")).turn_id == "t-2"
        assert (await client.stop_conversation("c-1")).sandbox_state == "STOPPED"
        await client.remove_conversation("c-1")
        assert script.removed == ["c-1"]
        assert [agent.name for agent in await client.list_agents()] == ["claude-code"]
        assert (await client.get_build_info()).build.component == "runner"


async def test_events_that_come_twice_are_given_once() -> None:
    doubled = [event for event in events_of("x") for _ in range(2)]
    async with fake_runner(Script(events=doubled)) as address, StandfastClient(address) as client:
        assert await sequence_of(client.start_turn("c-1", "x", expect=Expect.NEW)) == [1, 2, 3, 4, 5, 6, 7, 8]
