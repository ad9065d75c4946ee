"""What one turn leaves for the next, and who may look on."""

from __future__ import annotations

import asyncio

import pytest

from standfast.runner.v1 import runner_pb2 as pb
from standfast_client.errors import BusyError, MessageChangedError
from standfast_client.sdk import Expect, new_id
from tests.scenarios.stage import Stage

pytestmark = [pytest.mark.engine("local"), pytest.mark.asyncio(loop_scope="module")]


async def test_a_failed_turn_is_settled_and_the_process_serves_the_next_one(stage: Stage, conversation: str) -> None:
    first = await stage.begin(conversation)
    failed = await stage.ask(conversation, "say hello [[lab:status=403]]")
    assert (failed.state, failed.outcome, failed.reason) == ("LIVE", "FAILED", "PROVIDER_ERROR")
    assert failed.turn.failure.provider_status == 403
    assert (failed.turn.locator_saved, failed.process, failed.turn.process_reason) == (True, "KEPT", "ALL_IN_ORDER")
    assert failed.verdicts == ("CONFIRMED", "CONFIRMED")
    after = await stage.ask(conversation, "what is the colour?")
    assert (after.state, after.text, after.session) == ("LIVE", "the colour is green", first.session)


async def test_a_turn_with_a_retry_retires_the_process_and_its_reply_is_there_after_the_resume(
    stage: Stage, conversation: str
) -> None:
    await stage.begin(conversation)
    retried = await stage.ask(conversation, "something [[lab:status=529 times=1]]")
    assert (retried.state, retried.outcome, retried.process) == ("LIVE", "COMPLETED", "RETIRED")
    assert "provider_retry" in retried.kinds()
    after = await stage.ask(conversation, "repeat your last reply")
    assert (after.state, after.outcome) == ("RESTORED", "COMPLETED")
    assert after.text == f"my last reply was: {retried.text}"


async def test_a_turn_goes_on_without_its_client_and_can_be_watched_from_its_first_event(
    stage: Stage, conversation: str
) -> None:
    turn_id = new_id("t")
    stream = stage.client.start_turn(
        conversation, "hello [[stub:sleep=0.5 at=mid-stream]]", expect=Expect.NEW, turn_id=turn_id
    )
    async for event in stream:
        if event.HasField("forwarded"):
            break  # the view ends here, and with it the call
    watched = stage.client.watch_turn(conversation, turn_id)
    events = [event async for event in watched]
    assert watched.resume == pb.RESUME_OK
    assert watched.result.outcome == 1
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    again = [event async for event in stage.client.watch_turn(conversation, turn_id)]
    assert again == events
    tail = [event async for event in stage.client.watch_turn(conversation, turn_id, after_sequence=3)]
    assert tail == events[3:]
    assert stage.prompts().count("hello [[stub:sleep=0.5 at=mid-stream]]") == 1


async def test_a_cancel_ends_the_turn_natively_and_retires_the_process(stage: Stage, conversation: str) -> None:
    await stage.begin(conversation)
    turn_id = new_id("t")
    cancels: list[asyncio.Task[pb.Turn]] = []

    def cancel(event: pb.TurnEvent) -> None:
        if event.HasField("text_delta") and not cancels:
            cancels.append(asyncio.ensure_future(stage.client.cancel_turn(conversation, turn_id)))

    told = await stage.ask(conversation, "long [[lab:slow=200x50ms]]", turn_id=turn_id, on_event=cancel)
    await asyncio.gather(*cancels)
    assert (told.outcome, told.process) == ("CANCELLED", "RETIRED")
    assert told.turn.locator_saved
    after = await stage.ask(conversation, "what is the colour?")
    assert (after.state, after.text) == ("RESTORED", "the colour is green")
    repeated = await stage.client.cancel_turn(conversation, turn_id)
    assert repeated.outcome == told.turn.outcome


async def test_the_same_turn_twice_at_once_is_one_turn(stage: Stage, conversation: str) -> None:
    turn_id = new_id("t")
    text = f"hello from {conversation}"
    one, two = await asyncio.gather(
        stage.ask(conversation, text, expect=Expect.NEW, turn_id=turn_id),
        stage.ask(conversation, text, expect=Expect.NEW, turn_id=turn_id),
    )
    assert one.turn == two.turn
    assert one.outcome == "COMPLETED"
    again = await stage.ask(conversation, text, expect=Expect.NEW, turn_id=turn_id)
    assert again.turn == one.turn
    assert stage.prompts().count(text) == 1
    changed = await stage.ask(conversation, "another text", turn_id=turn_id)
    assert isinstance(changed.refusal, MessageChangedError)


async def test_a_second_turn_beside_a_running_one_is_refused(stage: Stage, conversation: str) -> None:
    refusals: list[asyncio.Task[None]] = []

    async def second() -> None:
        assert isinstance((await stage.ask(conversation, "me too")).refusal, BusyError)

    def try_second(event: pb.TurnEvent) -> None:
        if event.HasField("forwarded"):
            refusals.append(asyncio.ensure_future(second()))

    told = await stage.ask(conversation, "first [[stub:sleep=0.7 at=init]]", expect=Expect.NEW, on_event=try_second)
    await asyncio.gather(*refusals)
    assert refusals
    assert told.outcome == "COMPLETED"
    assert "me too" not in stage.prompts()


async def test_two_conversations_at_once_do_not_see_each_other(stage: Stage) -> None:
    names = ("red", "blue")
    await asyncio.gather(*(stage.begin(f"two-{n}", f"remember: the colour is {n}") for n in names))
    for _ in range(2):
        told = await asyncio.gather(*(stage.ask(f"two-{n}", "what is the colour?") for n in names))
        assert [one.text for one in told] == ["the colour is red", "the colour is blue"]
    assert told[0].session != told[1].session
    assert told[0].turn.container_id != told[1].turn.container_id


@pytest.mark.parametrize(
    "text", ["/clear", "/model x", " /x", "/etc/passwd", "!ls", "# note", "a\r\n\tb  \u200b\U0001f600 "]
)
async def test_the_text_reaches_the_model_byte_for_byte(stage: Stage, conversation: str, text: str) -> None:
    told = await stage.ask(conversation, text, expect=Expect.NEW)
    assert told.outcome == "COMPLETED"
    assert stage.prompts()[-1] == text
    after = await stage.ask(conversation, "count")
    assert (after.state, after.text) == ("LIVE", "count: 2")


async def test_noise_and_long_lines_in_the_output_change_nothing(stage: Stage, conversation: str) -> None:
    told = await stage.ask(
        conversation,
        "hello [[stub:noise]] [[stub:noise={half a line at=mid-stream]] [[stub:long-line=8MiB at=init]]",
        expect=Expect.NEW,
    )
    assert (told.outcome, told.process, told.verdicts) == ("COMPLETED", "KEPT", ("CONFIRMED", "CONFIRMED"))
    after = await stage.ask(conversation, "count")
    assert (after.state, after.text) == ("LIVE", "count: 2")


async def test_what_a_tool_left_running_ends_with_the_turn(stage: Stage, conversation: str) -> None:
    mark = f"31.{conversation.removeprefix('c')}"
    tool = f'{{"command": "setsid sleep {mark} & (sleep {mark} &) ; echo started", "description": "server"}}'
    told = await stage.ask(conversation, f"run [[lab:tool=Bash {tool}]]", expect=Expect.NEW)
    assert (told.outcome, told.process) == ("COMPLETED", "KEPT")
    assert not stage.processes(f"sleep\0{mark}")
    after = await stage.ask(conversation, "count")
    assert after.state == "LIVE"


async def test_a_tool_cannot_write_where_its_cli_prints(stage: Stage, conversation: str) -> None:
    forged = "echo x > /proc/$PPID/fd/1 || echo refused"
    told = await stage.ask(
        conversation, f'run [[lab:tool=Bash {{"command": "{forged}", "description": "forge"}}]]', expect=Expect.NEW
    )
    results = [event.tool_result.text for event in told.events if event.HasField("tool_result")]
    assert len(results) == 1
    assert results[0].endswith("refused")
    assert (told.outcome, told.verdicts) == ("COMPLETED", ("CONFIRMED", "CONFIRMED"))


async def test_a_background_task_retires_the_process_without_a_turn_of_its_own(stage: Stage, conversation: str) -> None:
    told = await stage.ask(conversation, "hello [[stub:background]]", expect=Expect.NEW)
    assert (told.outcome, told.process) == ("COMPLETED", "RETIRED")
    after = await stage.ask(conversation, "count")
    assert (after.state, after.text) == ("RESTORED", "count: 2")


async def test_a_missing_last_mark_retires_the_process_and_settles_all_the_same(
    stage: Stage, conversation: str
) -> None:
    told = await stage.ask(conversation, "hello [[stub:no-completed]]", expect=Expect.NEW)
    assert (told.outcome, told.process) == ("COMPLETED", "RETIRED")
    after = await stage.ask(conversation, "count")
    assert (after.state, after.text) == ("RESTORED", "count: 2")


async def test_a_cli_that_dies_in_the_turn_interrupts_it_and_the_session_goes_on(
    stage: Stage, conversation: str
) -> None:
    await stage.begin(conversation)
    told = await stage.ask(conversation, "hello [[stub:kill at=mid-stream]]")
    assert (told.outcome, told.turn.locator_saved) == ("INTERRUPTED", False)
    after = await stage.ask(conversation, "what is the colour?")
    assert (after.state, after.text) == ("RESTORED", "the colour is green")
    assert stage.prompts().count("hello [[stub:kill at=mid-stream]]") == 1


async def test_a_first_turn_that_was_interrupted_is_begun_anew_under_a_fresh_id(
    stage: Stage, conversation: str
) -> None:
    first = await stage.ask(conversation, "hello [[stub:exit=3 at=requested]]", expect=Expect.NEW)
    assert first.outcome == "INTERRUPTED"
    second = await stage.ask(conversation, "remember: the colour is green")
    assert (second.state, second.outcome) == ("NEW", "COMPLETED")
    decided = next(event.context for event in second.events if event.HasField("context"))
    assert decided.interrupted_turn_id == first.turn.turn_id
    assert second.session != first.session
    after = await stage.ask(conversation, "what is the colour?")
    assert (after.state, after.text) == ("LIVE", "the colour is green")


async def test_a_reply_that_is_late_on_disk_is_promised_and_found_by_the_next_turn(
    stage: Stage, conversation: str
) -> None:
    await stage.begin(conversation)
    told = await stage.ask(conversation, "hello [[stub:late-transcript=7]]")
    assert (told.outcome, told.process) == ("COMPLETED", "RETIRED")
    after = await stage.ask(conversation, "repeat your last reply")
    assert (after.state, after.text) == ("RESTORED", f"my last reply was: {told.text}")


async def test_a_reply_that_never_reaches_the_disk_is_not_confirmed(stage: Stage, conversation: str) -> None:
    told = await stage.ask(conversation, "hello [[stub:no-transcript]]", expect=Expect.NEW)
    assert (told.outcome, told.turn.locator_saved) == ("FAILED", False)
    assert told.turn.output_unconfirmed


async def test_a_changed_setting_resumes_in_a_new_process(stage: Stage, conversation: str) -> None:
    await stage.begin(conversation)
    told = await stage.ask(conversation, "what is the colour?", model="claude-opus-4-5")
    assert (told.state, told.turn.context_reason) == ("RESTORED", "SETTINGS_CHANGED")
    assert told.text == "the colour is green"
