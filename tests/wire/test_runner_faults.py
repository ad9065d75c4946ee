"""Cuts, kills, waits and cancels around one turn: what must follow, and that the message is never sent twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from standfast.runner.v1 import runner_pb2 as pb
from standfast.sandbox.v1 import sandbox_manager_pb2 as sandbox_pb
from standfast.types.v1 import types_pb2
from tests.wire.runner_house import (
    SESSION_A,
    WAIT_S,
    Cli,
    House,
    Script,
    ScriptedError,
    house_in,
    locator,
    ordinary_turn,
)

QUICK: dict[str, float] = {
    "manager_wait_s": 0.5,
    "admit_wait_s": 0.5,
    "former_wait_s": 0.5,
    "interrupt_wait_s": 2.0,
    "quiesce_timeout_s": 2.0,
}


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with house_in(tmp_path / "state", settings=QUICK) as opened:
        yield opened


def sent_messages(house: House) -> int:
    return sum(frame["type"] == "user" for cli in house.host.clis for frame in cli.frames)


class Gate:
    """Holds a script until the test lets it on."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.open = asyncio.Event()

    async def wait(self) -> None:
        self.reached.set()
        await self.open.wait()


async def wait_for(event: asyncio.Event) -> None:
    async with asyncio.timeout(WAIT_S):
        await event.wait()


def held_in_turn(gate: Gate) -> Script:
    """A turn that has begun and printed a text, held before its end."""

    async def script(cli: Cli) -> None:
        await cli.activate()
        await cli.take_message()
        await cli.begin()
        await cli.print_lines(cli.assistant("first"))
        await gate.wait()
        await cli.print_lines(cli.result(), cli.lifecycle("completed"))
        await cli.observed()

    return script


async def until_interrupted(cli: Cli) -> str:
    """Reads until the runner interrupts or leaves; gives the cause, or "" when it left."""
    while not cli.interrupts:
        if await cli.read() is None:
            return ""
    return cli.interrupts[-1]


async def interruptible(cli: Cli) -> None:
    """A turn that ends natively when it is interrupted."""
    await cli.activate()
    await cli.take_message()
    await cli.begin()
    await until_interrupted(cli)
    await cli.print_lines(cli.result(is_error=True, terminal_reason="aborted_streaming"), cli.lifecycle("cancelled"))
    await cli.observed()


# --- a client is a viewer -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("how", ["cancel", "deadline"])
async def test_a_view_that_ends_does_not_end_the_turn(house: House, how: str) -> None:
    gate = Gate()
    house.host.scripts = [held_in_turn(gate)]
    call = house.stub.StartTurn(house.request("t1"), timeout=1.0 if how == "deadline" else WAIT_S)
    following = asyncio.ensure_future(house.follow(call))
    await wait_for(gate.reached)
    if how == "cancel":
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await following
    else:
        assert (await following).error.code is grpc.StatusCode.DEADLINE_EXCEEDED
    gate.open.set()
    told = await house.watch("t1")
    assert told.outcome == "COMPLETED"
    assert sent_messages(house) == 1


async def test_two_calls_at_once_begin_one_turn(house: House) -> None:
    first, second = await asyncio.gather(house.turn("t1"), house.turn("t1"))
    assert first.outcome == second.outcome == "COMPLETED"
    assert sent_messages(house) == 1
    assert len(house.manager.of("ClaimTurn")) == 1


async def test_another_turn_while_one_runs_is_busy_and_may_try_again(house: House) -> None:
    gate = Gate()
    house.host.scripts = [held_in_turn(gate), ordinary_turn]
    running = asyncio.ensure_future(house.turn("t1"))
    await wait_for(gate.reached)
    busy = await house.turn("t2")
    assert (busy.error.code, busy.error.reason) == (grpc.StatusCode.ABORTED, "CONVERSATION_BUSY")
    assert busy.error.metadata["turn_id"] == "t1"
    gate.open.set()
    assert (await running).outcome == "COMPLETED"
    assert (await house.turn("t2")).outcome == "COMPLETED"


async def test_watching_follows_a_running_turn_from_any_number(house: House) -> None:
    gate = Gate()
    house.host.scripts = [held_in_turn(gate)]
    running = asyncio.ensure_future(house.turn("t1"))
    await wait_for(gate.reached)
    await house.until_sequence("t1", 4)
    watching = asyncio.ensure_future(house.watch("t1", after=2))
    gate.open.set()
    told, watched = await running, await watching
    assert watched.resume == pb.RESUME_OK
    assert watched.events == told.events[2:]


# --- stops --------------------------------------------------------------------------------------------------------------
async def test_watching_a_running_turn_after_a_number_it_has_not_reached_goes_on_from_now(house: House) -> None:
    gate = Gate()
    house.host.scripts = [held_in_turn(gate)]
    running = asyncio.ensure_future(house.turn("t1"))
    await wait_for(gate.reached)
    ahead = asyncio.ensure_future(house.watch("t1", after=99))
    await house.until_sequence("t1", 2)
    gate.open.set()
    whole = await running
    assert (await ahead).resume == pb.RESUME_GAP
    assert (await ahead).events[-1] == whole.events[-1]


async def test_a_cancelled_turn_with_a_native_end_is_settled_as_cancelled(house: House) -> None:
    house.host.scripts = [interruptible, ordinary_turn]
    running = asyncio.ensure_future(house.turn("t1"))
    await house.until_state("t1", "RUNNING")
    await house.cancel("t1")
    told = await running
    assert told.outcome == "CANCELLED"
    assert told.turn.state == "SETTLED"
    assert told.turn.locator_saved
    assert "CANCEL" in house.host.clis[0].interrupts
    assert (await house.cancel("t1")).outcome == types_pb2.OUTCOME_CANCELLED


async def test_a_cancel_before_the_cli_began_interrupts_again_when_it_does(house: House) -> None:
    async def script(cli: Cli) -> None:
        await cli.activate()
        await cli.take_message()
        assert await until_interrupted(cli) == "CANCEL"
        await cli.begin()  # the interrupt met nothing: the turn begins all the same
        await cli.read()
        assert cli.interrupts == ["CANCEL", "CANCEL"]
        await cli.print_lines(cli.result(is_error=True, terminal_reason="aborted_streaming"))
        await cli.observed()

    house.host.scripts = [script]
    running = asyncio.ensure_future(house.turn("t1"))
    await house.until_state("t1", "RUNNING")
    await house.cancel("t1")
    assert (await running).outcome == "CANCELLED"


async def test_a_cancel_that_the_cli_ignores_ends_within_its_bound(house: House) -> None:
    async def deaf(cli: Cli) -> None:
        await cli.activate()
        await cli.take_message()
        await cli.begin()
        while await cli.read() is not None:
            pass

    house.host.scripts = [deaf]
    running = asyncio.ensure_future(house.turn("t1"))
    await house.until_state("t1", "RUNNING")
    await house.cancel("t1")
    told = await running
    assert told.outcome == "CANCELLED"
    assert told.turn.state == "ENDED"
    assert not told.turn.locator_saved
    assert await asyncio.wait_for(house.host.ended.get(), WAIT_S) == "act-1"


async def test_a_cancel_while_it_prepares_sends_nothing(tmp_path: Path) -> None:
    async with house_in(tmp_path / "state", settings=QUICK | {"manager_wait_s": 60.0}) as house:
        await house.stop_manager()
        running = asyncio.ensure_future(house.turn("t1"))
        await house.until_state("t1", "ACCEPTED")
        await house.cancel("t1")
        await house.start_manager()
        told = await running
        assert told.outcome == "CANCELLED"
        assert house.host.clis == []


async def test_the_turns_limit_ends_it_as_timed_out(house: House) -> None:
    house.host.scripts = [interruptible]
    told = await house.turn("t1", turn_limit_ms=200)
    assert (told.outcome, told.turn.failure.reason) == ("TIMED_OUT", "TURN_TIMEOUT")
    assert told.turn.locator_saved  # there was a native end, so it is settled
    assert house.host.clis[0].interrupts[0] == "TIMEOUT"


async def test_silence_ends_the_turn_as_timed_out(tmp_path: Path) -> None:
    async with house_in(tmp_path / "state", settings=QUICK | {"silence_limit_s": 0.3}) as house:
        house.host.scripts = [interruptible]
        told = await house.turn("t1")
        assert (told.outcome, told.turn.failure.reason) == ("TIMED_OUT", "SILENCE_TIMEOUT")


async def test_a_question_that_nobody_answers_ends_the_turn_and_says_so(tmp_path: Path) -> None:
    async def asking(cli: Cli) -> None:
        await cli.activate()
        await cli.take_message()
        await cli.begin()
        request = {"subtype": "can_use_tool", "tool_name": "AskUserQuestion", "input": {}}
        await cli.print_lines({"type": "control_request", "request_id": "q1", "request": request})
        await until_interrupted(cli)
        await cli.print_lines(cli.result(is_error=True, terminal_reason="aborted_tools"))
        await cli.observed()

    async with house_in(tmp_path / "state", settings=QUICK | {"question_wait_s": 0.2}) as house:
        house.host.scripts = [asking]
        told = await house.turn("t1")
        assert (told.outcome, told.turn.failure.reason) == ("UNANSWERED_QUESTION", "UNANSWERED_QUESTION")
        [asked] = [event.native_request for event in told.events if event.HasField("native_request")]
        assert (asked.request_id, asked.kind) == ("q1", "QUESTION")
        assert house.host.clis[0].interrupts[0] == "UNANSWERED_QUESTION"


async def test_an_unknown_request_of_the_cli_is_refused_natively_and_the_turn_goes_on(house: House) -> None:
    async def asking(cli: Cli) -> None:
        await cli.activate()
        await cli.take_message()
        await cli.begin()
        await cli.print_lines({"type": "control_request", "request_id": "x1", "request": {"subtype": "new_thing"}})
        answer = await cli.read_frame()
        assert answer["response"] == {
            "subtype": "error",
            "request_id": "x1",
            "error": answer["response"]["error"],
        }
        await cli.print_lines(cli.assistant("plum"), cli.result(), cli.lifecycle("completed"))
        await cli.observed()

    house.host.scripts = [asking]
    told = await house.turn("t1")
    assert told.outcome == "COMPLETED"
    assert "NATIVE_REQUEST_REFUSED" in [event.warning.code for event in told.events if event.HasField("warning")]


# --- the work's stream breaks -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("reason", ["ENGINE_UNAVAILABLE", "SUPERVISOR_UNAVAILABLE"])
async def test_a_host_agent_that_cannot_activate_sends_nothing(house: House, reason: str) -> None:
    async def unable(cli: Cli) -> None:
        raise ScriptedError(grpc.StatusCode.UNAVAILABLE, reason)

    house.host.scripts = [unable, ordinary_turn]
    told = await house.turn("t1")
    assert (told.outcome, told.turn.failure.reason) == ("NOT_SENT", reason)
    assert sent_messages(house) == 0
    assert house.manager.of("AbandonTurn")[0].outcome == types_pb2.OUTCOME_NOT_SENT
    assert (await house.turn("t2")).outcome == "COMPLETED"


async def test_a_host_agent_that_is_not_there_sends_nothing(house: House) -> None:
    house.manager.host_address = "127.0.0.1:1"
    told = await house.turn("t1")
    assert (told.outcome, told.turn.failure.reason) == ("NOT_SENT", "HOST_UNAVAILABLE")


async def test_a_cli_that_does_not_answer_its_start_sends_nothing(tmp_path: Path) -> None:
    async def silent(cli: Cli) -> None:
        await cli.ready(is_new=True)
        while await cli.read() is not None:
            pass

    async with house_in(tmp_path / "state", settings=QUICK | {"handshake_timeout_s": 0.3}) as house:
        house.host.scripts = [silent]
        told = await house.turn("t1")
        assert (told.outcome, told.turn.failure.reason) == ("NOT_SENT", "HANDSHAKE_FAILED")
        assert await asyncio.wait_for(house.host.ended.get(), WAIT_S) == "act-1"


@pytest.mark.parametrize("reason", ["GATE_REFUSED", "ADMISSION_INVALID"])
async def test_a_message_that_the_gate_refuses_was_not_sent(house: House, reason: str) -> None:
    async def refusing(cli: Cli) -> None:
        await cli.activate()
        while not cli.message_id:
            await cli.read()
        raise ScriptedError(grpc.StatusCode.FAILED_PRECONDITION, reason)

    house.host.scripts = [refusing]
    house.manager.script.abandon_outcome = types_pb2.OUTCOME_REFUSED
    told = await house.turn("t1")
    assert (told.error.code, told.error.reason) == (grpc.StatusCode.FAILED_PRECONDITION, reason)


@pytest.mark.parametrize("reason", ["CLI_DIED", "SUPERVISOR_LOST"])
async def test_a_cut_after_forwarding_is_an_interrupted_turn_and_nothing_is_saved(house: House, reason: str) -> None:
    async def dying(cli: Cli) -> None:
        await cli.activate()
        await cli.take_message()
        await cli.begin()
        await cli.print_lines(cli.assistant("half"))
        raise ScriptedError(grpc.StatusCode.ABORTED, reason)

    house.host.scripts = [dying, ordinary_turn]
    told = await house.turn("t1")
    assert (told.outcome, told.turn.failure.reason) == ("INTERRUPTED", reason)
    assert told.turn.output_unconfirmed
    assert not told.turn.locator_saved
    assert house.manager.of("SettleTurn") == []
    assert not (await house.conversation()).HasField("runner_locator")


async def test_a_cli_that_dies_with_no_end_is_interrupted_and_the_exit_code_decides_nothing(house: House) -> None:
    async def dying(cli: Cli) -> None:
        from standfast.host.v1 import host_agent_pb2 as host_pb

        await cli.activate()
        await cli.take_message()
        await cli.begin()
        await cli.print_lines(cli.assistant("All done."))
        exited = host_pb.AttachExited(exit_code=0, stderr_tail="database is locked")
        await cli.context.write(host_pb.AttachResponse(exited=exited))
        await cli.observed(native_end_seen=False)

    house.host.scripts = [dying]
    told = await house.turn("t1")
    assert (told.outcome, told.turn.failure.reason) == ("INTERRUPTED", "CLI_DIED")
    assert "database is locked" in told.turn.failure.message
    assert house.manager.of("SettleTurn") == []


async def test_a_cut_between_the_end_and_the_observation_settles_from_the_journal(house: House) -> None:
    async def cut(cli: Cli) -> None:
        await cli.activate()
        await cli.take_message()
        await cli.begin()
        await cli.print_lines(cli.assistant("plum"), cli.result(), cli.lifecycle("completed"))
        raise ScriptedError(grpc.StatusCode.ABORTED, "SUPERVISOR_LOST")

    house.host.scripts = [cut]
    told = await house.turn("t1")
    assert told.outcome == "COMPLETED"
    assert len(house.manager.of("SettleTurn")) == 1


async def test_a_native_end_in_the_journal_of_an_abandoned_turn_settles_it(house: House) -> None:
    async def cut(cli: Cli) -> None:
        await cli.activate()
        await cli.take_message()
        await cli.begin()
        await cli.print_lines(cli.assistant("half"))
        # What the CLI prints after the cut only the journal has.
        whole = bytes(cli.printed)
        rest = Cli(cli.context, cli.activation_id)
        rest.message_id = cli.message_id
        house.host.taps[cli.activation_id] = whole + lines(cli.assistant("plum"), cli.result())
        raise ScriptedError(grpc.StatusCode.ABORTED, "SUPERVISOR_LOST")

    house.host.scripts = [cut]
    house.manager.script.failures["AbandonTurn"] = [
        ScriptedError(grpc.StatusCode.FAILED_PRECONDITION, "NATIVE_END_SEEN")
    ]
    told = await house.turn("t1")
    assert told.outcome == "COMPLETED"
    assert told.texts == ["half", "plum"]
    assert told.turn.output_text == "halfplum"
    numbers = [event.sequence for event in told.events]
    assert numbers == list(range(1, len(numbers) + 1))
    assert house.manager.of("SettleTurn")[0].claim.verdict == types_pb2.VERDICT_CONFIRMED
    assert sent_messages(house) == 1


# --- the manager is away ------------------------------------------------------------------------------------------------
async def test_a_manager_that_is_away_refuses_the_call_and_records_nothing(house: House) -> None:
    await house.stop_manager()
    told = await house.turn("t1")
    assert (told.error.code, told.error.reason) == (grpc.StatusCode.UNAVAILABLE, "MANAGER_UNAVAILABLE")
    await house.start_manager()
    assert (await house.turn("t1")).outcome == "COMPLETED"


async def test_a_manager_that_goes_before_the_admission_leaves_the_turn_not_sent(house: House) -> None:
    async def script(cli: Cli) -> None:
        await house.stop_manager()
        await cli.activate()
        while await cli.read() is not None:
            pass

    house.host.scripts = [script]
    running = asyncio.ensure_future(house.turn("t1"))
    await house.until_state("t1", "ABANDONING")
    await house.start_manager()
    told = await running
    assert told.outcome == "NOT_SENT"
    assert sent_messages(house) == 0


async def test_a_running_turn_goes_on_without_the_manager_and_settles_once_when_it_is_back(house: House) -> None:
    gate = Gate()
    house.host.scripts = [held_in_turn(gate)]
    running = asyncio.ensure_future(house.turn("t1"))
    await wait_for(gate.reached)
    await house.stop_manager()
    gate.open.set()
    await house.until_state("t1", "SETTLING")
    busy = await house.turn("t2")
    assert busy.error.reason == "CONVERSATION_BUSY"
    await house.start_manager()
    told = await running
    assert told.outcome == "COMPLETED"
    assert house.manager.settled == ["t1"]
    assert sent_messages(house) == 1


async def test_a_lost_settlement_answer_is_asked_again_with_the_same_id(house: House) -> None:
    house.manager.script.failures["SettleTurn"] = [
        ScriptedError(grpc.StatusCode.ABORTED, "OBSERVATION_PENDING"),
        ScriptedError(grpc.StatusCode.UNAVAILABLE, "HOST_UNAVAILABLE"),
    ]
    told = await house.turn("t1")
    assert told.outcome == "COMPLETED"
    asked = house.manager.of("SettleTurn")
    assert len(asked) == 3
    assert len({request.request_id for request in asked}) == 1


async def test_a_settlement_without_a_native_end_is_given_up(house: House) -> None:
    house.manager.script.failures["SettleTurn"] = [ScriptedError(grpc.StatusCode.FAILED_PRECONDITION, "NOT_ENDED")]
    told = await house.turn("t1")
    assert told.outcome == "INTERRUPTED"
    assert not told.turn.locator_saved


async def test_a_lease_that_is_lost_stops_the_work(house: House) -> None:
    async def deaf(cli: Cli) -> None:
        await cli.activate()
        await cli.take_message()
        await cli.begin()
        while await cli.read() is not None:
            pass

    house.host.scripts = [deaf]
    house.manager.script.lease_ms = 300
    house.manager.script.failures["RenewActivation"] = [
        None,
        ScriptedError(grpc.StatusCode.ABORTED, "ACTIVATION_EXPIRED"),
    ]
    told = await house.turn("t1")
    assert (told.outcome, told.turn.failure.reason) == ("INTERRUPTED", "ACTIVATION_EXPIRED")
    assert await asyncio.wait_for(house.host.ended.get(), WAIT_S) == "act-1"


async def test_a_lease_is_renewed_while_the_turn_runs(house: House) -> None:
    gate = Gate()
    house.host.scripts = [held_in_turn(gate)]
    house.manager.script.lease_ms = 150
    running = asyncio.ensure_future(house.turn("t1"))
    await house.manager.until_asked("RenewActivation", 3)
    gate.open.set()
    assert (await running).outcome == "COMPLETED"


# --- the runner restarts ------------------------------------------------------------------------------------------------
async def test_a_runner_that_died_after_forwarding_takes_the_turn_up_and_never_sends_again(house: House) -> None:
    gate = Gate()
    house.host.scripts = [held_in_turn(gate), ordinary_turn]
    running = asyncio.ensure_future(house.turn("t1"))
    await wait_for(gate.reached)
    house.manager.script.abandon_outcome = types_pb2.OUTCOME_INTERRUPTED
    await house.restart_runner()
    first = await running
    assert first.error is not None
    told = await house.turn("t1")
    assert told.outcome == "INTERRUPTED"
    assert told.kinds[:2] == ["accepted", "context"]
    assert sent_messages(house) == 1
    house.manager.script.abandon_outcome = None
    assert (await house.turn("t2")).outcome == "COMPLETED"


async def test_a_runner_that_lost_its_record_of_an_admitted_turn_asks_the_journal_and_sends_nothing(
    house: House,
) -> None:
    house.manager.turns["t1"] = former_turn("ADMITTED")
    house.manager.turns["t1"].turn_id = "t1"
    house.manager.script.abandon_outcome = types_pb2.OUTCOME_INTERRUPTED
    assert (await house.turn("t1")).outcome == "INTERRUPTED"
    assert house.manager.of("PrepareTurn") == []
    assert sent_messages(house) == 0


async def test_a_turn_that_the_manager_never_heard_of_was_not_sent(house: House) -> None:
    """The runner died between its own record and the claim."""
    await house.stop_manager()
    running = asyncio.ensure_future(house.turn("t1"))
    await house.until_state("t1", "ACCEPTED")
    await house.stop_runner()
    await running
    house.manager.script.failures["AbandonTurn"] = [ScriptedError(grpc.StatusCode.NOT_FOUND, "TURN_UNKNOWN")]
    await house.start_manager()
    await house.start_runner()
    assert (await house.turn("t1")).outcome == "NOT_SENT"
    assert sent_messages(house) == 0


async def test_a_turn_too_many_is_refused_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async with house_in(tmp_path, settings={"turns_max": 1}) as house:
        gate = Gate()
        house.host.scripts = [held_in_turn(gate), ordinary_turn]
        running = asyncio.ensure_future(house.turn("t1"))
        await wait_for(gate.reached)
        refused = await house.turn("t2", conversation_id="c2")
        assert (refused.error.code, refused.error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TASKS_FULL")
        gate.open.set()
        assert (await running).outcome == "COMPLETED"
        while (again := await house.turn("t2", conversation_id="c2")).error is not None:
            assert again.error.reason == "TASKS_FULL"  # the first one's task ends a moment after its view
        assert again.outcome == "COMPLETED"


async def test_a_runner_that_stops_in_order_says_what_a_repeat_may_expect(house: House) -> None:
    gate = Gate()
    house.host.scripts = [held_in_turn(gate)]
    running = asyncio.ensure_future(house.turn("t1"))
    await wait_for(gate.reached)
    await house.runner.conductor.close()
    told = await running
    # Forwarded: "retry blindly" is no longer true.
    assert (told.error.code, told.error.reason) == (grpc.StatusCode.ABORTED, "ATTACH_LOST")
    refused = await house.turn("t2")
    assert (refused.error.code, refused.error.reason) == (grpc.StatusCode.UNAVAILABLE, "TASKS_CLOSED")


async def test_a_runner_that_died_after_the_native_end_settles_from_the_journal_once(house: House) -> None:
    gate = Gate()
    house.host.scripts = [held_in_turn(gate)]
    running = asyncio.ensure_future(house.turn("t1"))
    await wait_for(gate.reached)
    cli = house.host.clis[0]
    house.host.taps[cli.activation_id] = bytes(cli.printed) + lines(cli.result(), cli.lifecycle("completed"))
    house.manager.script.failures["AbandonTurn"] = [
        ScriptedError(grpc.StatusCode.FAILED_PRECONDITION, "NATIVE_END_SEEN")
    ]
    await house.restart_runner()
    await running
    told = await house.turn("t1")
    assert told.outcome == "COMPLETED"
    assert told.turn.output_text == "first"
    assert told.texts == ["first"]
    assert told.turn.locator_saved
    assert (await house.conversation()).runner_locator.native_session_id == SESSION_A
    assert house.manager.settled == ["t1"]
    assert sent_messages(house) == 1


async def test_a_journal_that_is_gone_confirms_nothing(house: House) -> None:
    gate = Gate()
    house.host.scripts = [held_in_turn(gate)]
    running = asyncio.ensure_future(house.turn("t1"))
    await wait_for(gate.reached)
    house.manager.script.failures["AbandonTurn"] = [
        ScriptedError(grpc.StatusCode.FAILED_PRECONDITION, "NATIVE_END_SEEN")
    ]
    house.host.tap_failures = [ScriptedError(grpc.StatusCode.NOT_FOUND, "ACTIVATION_UNKNOWN")]
    await house.restart_runner()
    await running
    told = await house.turn("t1")
    assert (told.outcome, told.turn.failure.reason) == ("FAILED", "IDENTITY_UNPROVEN")
    assert not (await house.conversation()).HasField("runner_locator")


def former_turn(state: str) -> sandbox_pb.ManagedTurn:
    return sandbox_pb.ManagedTurn(
        turn_id="t0", state=state, agent="claude-code", activation_id="act-0", message_id="m0", locator=locator()
    )


@pytest.mark.parametrize("state", ["CLAIMED", "PREPARED", "ADMITTED"])
async def test_a_former_turn_of_a_lost_runner_is_given_up_first(house: House, state: str) -> None:
    house.manager.script.unresolved = former_turn(state)
    told = await house.turn("t1")
    assert told.outcome == "COMPLETED"
    [abandoned] = house.manager.of("AbandonTurn")
    expected = types_pb2.OUTCOME_INTERRUPTED if state == "ADMITTED" else types_pb2.OUTCOME_NOT_SENT
    assert (abandoned.turn_id, abandoned.outcome) == ("t0", expected)


async def test_a_former_turn_with_a_native_end_is_settled_by_whoever_comes_next(house: House) -> None:
    former = former_turn("ADMITTED")
    former.host_address = house.manager.host_address
    house.manager.turns["t0"] = former
    house.manager.script.unresolved = former
    house.manager.script.failures["AbandonTurn"] = [
        ScriptedError(grpc.StatusCode.FAILED_PRECONDITION, "NATIVE_END_SEEN")
    ]
    lost = Cli(None, "act-0")
    lost.message_id = "m0"
    printed = (lost.lifecycle("started"), lost.init(), lost.assistant("plum"), lost.result())
    house.host.taps["act-0"] = lines(*printed)
    told = await house.turn("t1")
    assert told.outcome == "COMPLETED"
    first = house.manager.of("SettleTurn")[0]
    assert (first.turn_id, first.claim.verdict) == ("t0", types_pb2.VERDICT_CONFIRMED)
    assert house.manager.of("PrepareTurn")[0].locator.native_session_id == SESSION_A


async def test_a_former_turn_that_cannot_be_resolved_yet_lets_nothing_begin(house: House) -> None:
    house.manager.script.unresolved = former_turn("ADMITTED")
    pending = ScriptedError(grpc.StatusCode.ABORTED, "OBSERVATION_PENDING")
    house.manager.script.failures["AbandonTurn"] = [pending] * 50
    told = await house.turn("t1")
    assert (told.error.code, told.error.reason) == (grpc.StatusCode.ABORTED, "OBSERVATION_PENDING")
    assert house.host.clis == []


def lines(*frames: dict[str, object]) -> bytes:
    import json

    return b"".join(json.dumps(frame).encode() + b"\n" for frame in frames)
