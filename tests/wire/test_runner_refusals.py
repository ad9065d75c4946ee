"""What the runner refuses by its own checks, although the manager or the host agent would let it through.

Each disagreement is scripted: no real part shows it. In every one nothing is overwritten on the runner's side.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from runner.policy import RunnerPolicy
from standfast.runner.v1 import runner_pb2 as pb
from standfast.sandbox.v1 import sandbox_manager_pb2 as sandbox_pb
from standfast.types.v1 import types_pb2
from tests.wire.runner_house import (
    SESSION_A,
    SESSION_B,
    Cli,
    House,
    Script,
    ScriptedError,
    Told,
    house_in,
    locator,
    ordinary_turn,
)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    """A house with one settled turn in SESSION_A."""
    async with house_in(tmp_path / "state") as opened:
        assert (await opened.turn("t0")).outcome == "COMPLETED"
        yield opened


async def saved_session(house: House) -> str:
    return (await house.conversation()).runner_locator.native_session_id


def sent_messages(house: House) -> int:
    return sum(frame["type"] == "user" for cli in house.host.clis for frame in cli.frames)


async def expect_refused(house: House, told: Told, reason: str) -> None:
    assert told.error is not None, told.kinds
    assert (told.error.code, told.error.reason) == (grpc.StatusCode.FAILED_PRECONDITION, reason)
    assert await saved_session(house) == SESSION_A
    assert sent_messages(house) == 1  # t0's


# --- before anything is sent ------------------------------------------------------------------------------------------
async def test_a_manager_that_grants_another_session_is_refused(house: House) -> None:
    house.manager.script.grant_session = SESSION_B
    told = await house.turn("t1")
    await expect_refused(house, told, "LOCATOR_MISMATCH")
    [abandoned] = house.manager.of("AbandonTurn")
    assert (abandoned.outcome, abandoned.reason) == (types_pb2.OUTCOME_REFUSED, "LOCATOR_MISMATCH")
    assert len(house.host.clis) == 1


async def test_a_manager_that_would_begin_a_saved_session_anew_is_refused(house: House) -> None:
    house.manager.script.resumes = False
    await expect_refused(house, await house.turn("t1"), "LOCATOR_MISMATCH")


async def test_a_host_agent_that_activates_another_session_is_refused(house: House) -> None:
    async def other(cli: Cli) -> None:
        await cli.ready(is_new=True, session=SESSION_B)
        while await cli.read() is not None:
            pass

    house.host.scripts = [other]
    await expect_refused(house, await house.turn("t1"), "NATIVE_SESSION_MISMATCH")
    assert house.manager.of("AdmitTurn")[1:] == []


async def test_a_locator_of_the_client_that_is_not_the_saved_one_is_refused(house: House) -> None:
    told = await house.turn("t1", locator=locator(SESSION_B))
    await expect_refused(house, told, "LOCATOR_MISMATCH")
    assert (await house.turn("t2", locator=locator(SESSION_A))).outcome == "COMPLETED"


async def test_a_refused_turn_is_recorded_and_repeats_its_status(house: House) -> None:
    first = await house.turn("t1", locator=locator(SESSION_B))
    again = await house.turn("t1", locator=locator(SESSION_B))
    watched = await house.watch("t1")
    assert first.error.reason == again.error.reason == watched.error.reason == "LOCATOR_MISMATCH"
    assert first.error.metadata == again.error.metadata
    await house.restart_runner()
    after_restart = await house.turn("t1")
    assert after_restart.error.reason == "LOCATOR_MISMATCH"
    turn = await house.get("t1")
    assert (turn.state, turn.outcome) == ("ENDED", types_pb2.OUTCOME_REFUSED)
    assert (await house.turn("t2")).outcome == "COMPLETED"


async def test_lost_is_told_with_cause_and_cure_and_nothing_is_sent(house: House) -> None:
    lost = ScriptedError(
        grpc.StatusCode.FAILED_PRECONDITION,
        "CONTEXT_LOST",
        {"cause": "CONTAINER_GONE", "cure": "none", "readable": "nothing"},
    )
    house.manager.script.failures["PrepareTurn"] = [lost]
    told = await house.turn("t1")
    await expect_refused(house, told, "CONTEXT_LOST")
    assert told.error.metadata["cause"] == "CONTAINER_GONE"
    turn = await house.get("t1")
    assert (turn.context_state, turn.context_reason) == (types_pb2.CONTEXT_STATE_LOST, "CONTAINER_GONE")


async def test_a_cli_that_refuses_to_resume_is_a_lost_session(house: House) -> None:
    async def refusing(cli: Cli) -> None:
        await cli.ready(is_new=True)
        await cli.read_frame()
        errors = [f"No conversation found with session ID: {SESSION_A}"]
        await cli.print_lines(
            {"type": "result", "subtype": "error_during_execution", "is_error": True, "errors": errors}
        )
        raise ScriptedError(grpc.StatusCode.FAILED_PRECONDITION, "SESSION_NOT_RESUMED")

    house.host.scripts = [refusing]
    told = await house.turn("t1")
    await expect_refused(house, told, "CONTEXT_LOST")
    assert told.error.metadata["cause"] == "SESSION_NOT_RESUMED"


async def test_an_admission_after_a_refused_handshake_is_not_used(house: House) -> None:
    async def refusing(cli: Cli) -> None:
        await cli.ready(is_new=True)
        await cli.read_frame()
        errors = [f"No conversation found with session ID: {SESSION_A}"]
        await cli.print_lines(
            {"type": "result", "subtype": "error_during_execution", "is_error": True, "errors": errors}
        )
        await cli.report(is_new=True)
        while await cli.read() is not None:
            pass

    house.host.scripts = [refusing]
    await expect_refused(house, await house.turn("t1"), "SESSION_NOT_RESUMED")


async def test_a_state_that_this_side_saw_to_be_impossible_is_not_used(house: House) -> None:
    house.manager.script.context_state = types_pb2.CONTEXT_STATE_LIVE  # but the process is new
    await expect_refused(house, await house.turn("t1"), "VERDICTS_DIFFER")


@pytest.mark.parametrize("part", ["container", "activation"])
async def test_an_admission_for_another_generation_is_not_used(house: House, part: str) -> None:
    house.manager.script.admitted_generations = {part: 99}
    told = await house.turn("t1")
    assert (told.outcome, told.turn.failure.reason) == ("NOT_SENT", "GENERATION_STALE")
    assert sent_messages(house) == 1  # t0's


async def test_another_agent_than_the_conversations_is_refused(house: House) -> None:
    refusal = ScriptedError(grpc.StatusCode.FAILED_PRECONDITION, "AGENT_MISMATCH")
    house.manager.script.failures["PrepareTurn"] = [refusal]
    await expect_refused(house, await house.turn("t1"), "AGENT_MISMATCH")


# --- at the turn's end --------------------------------------------------------------------------------------------------
def changing(*, at: str, is_error: bool = False) -> Script:
    """A CLI that names another session at one place of a turn that is otherwise good (or failed)."""

    async def script(cli: Cli) -> None:
        await cli.activate()
        await cli.take_message()
        session = {place: SESSION_B if place == at else SESSION_A for place in ("init", "assistant", "result")}
        await cli.print_lines(cli.lifecycle("queued"), cli.lifecycle("started"))
        if at == "reset":
            await cli.print_lines({"type": "conversation_reset", "new_conversation_id": SESSION_B})
        await cli.print_lines(cli.init(session["init"]))
        if not is_error:
            await cli.print_lines(cli.assistant("plum", session["assistant"]))
        await cli.print_lines(cli.result(is_error=is_error, session=session["result"]), cli.lifecycle("completed"))
        await cli.observed()

    return script


@pytest.mark.parametrize("is_error", [False, True], ids=["good", "failed"])
@pytest.mark.parametrize("at", ["init", "assistant", "result", "reset"])
async def test_a_session_that_changes_in_the_turn_fails_it_and_saves_nothing(
    house: House, at: str, is_error: bool
) -> None:
    if at == "assistant" and is_error:
        at = "init"  # a failed turn has no assistant frame of its own
    house.host.scripts = [changing(at=at, is_error=is_error), ordinary_turn]
    told = await house.turn("t1", include_raw=True)
    assert told.error is None
    assert told.outcome == "FAILED"
    assert told.turn.failure.reason == "NATIVE_SESSION_MISMATCH"
    (ended,) = [event.ended for event in told.events if event.HasField("ended")]
    assert (ended.outcome, ended.failure.reason) == (types_pb2.OUTCOME_FAILED, "NATIVE_SESSION_MISMATCH")
    assert told.turn.runner_verdict == types_pb2.VERDICT_CONTRADICTED
    assert told.turn.manager_verdict == types_pb2.VERDICT_CONFIRMED  # the manager alone would have let it through
    assert not told.turn.locator_saved
    assert await saved_session(house) == SESSION_A
    [_, claim] = [request.claim for request in house.manager.of("SettleTurn")]
    assert claim.verdict == types_pb2.VERDICT_CONTRADICTED
    raw = [event.raw_frame.frame for event in told.events if event.HasField("raw_frame")]
    assert not [frame for frame in raw if SESSION_B.encode() in frame]
    if at in ("init", "reset", "assistant"):
        assert told.texts == []
        assert not [frame for frame in raw if b"plum" in frame]
    assert (await house.turn("t2")).outcome == "COMPLETED"
    assert house.manager.of("PrepareTurn")[-1].locator.native_session_id == SESSION_A


@pytest.mark.parametrize("is_error", [False, True], ids=["good", "failed"])
async def test_a_manager_that_confirms_another_session_is_not_believed(house: House, is_error: bool) -> None:
    async def script(cli: Cli) -> None:
        await cli.activate()
        await cli.take_message()
        await cli.answer(is_error=is_error)

    house.host.scripts = [script, ordinary_turn]
    house.manager.script.settle_session = SESSION_B
    told = await house.turn("t1")
    assert told.outcome == "FAILED"
    assert told.turn.failure.reason == "LOCATOR_MISMATCH"
    assert told.turn.output_unconfirmed == (not is_error)
    assert not told.turn.locator_saved
    assert await saved_session(house) == SESSION_A


async def test_a_first_turn_that_the_manager_confirms_for_another_session_saves_nothing(tmp_path: Path) -> None:
    async with house_in(tmp_path / "state") as house:
        house.manager.script.settle_session = SESSION_B
        told = await house.turn("t1")
        assert (told.outcome, told.turn.failure.reason) == ("FAILED", "LOCATOR_MISMATCH")
        assert not (await house.conversation()).HasField("runner_locator")


@pytest.mark.parametrize(
    ("verdict", "store", "finding", "reason"),
    [
        (types_pb2.VERDICT_CONTRADICTED, types_pb2.STORE_VERDICT_CONFIRMED, None, "NATIVE_SESSION_MISMATCH"),
        (types_pb2.VERDICT_UNPROVEN, types_pb2.STORE_VERDICT_CONFIRMED, None, "IDENTITY_UNPROVEN"),
        (types_pb2.VERDICT_CONFIRMED, types_pb2.STORE_VERDICT_UNWRITABLE, None, "STORE_UNWRITABLE"),
        (types_pb2.VERDICT_CONFIRMED, types_pb2.STORE_VERDICT_UNWRITABLE, "STORAGE_FULL", "STORAGE_FULL"),
        (types_pb2.VERDICT_CONFIRMED, types_pb2.STORE_VERDICT_CONTRADICTED, "HISTORY_BROKEN", "HISTORY_BROKEN"),
    ],
)
async def test_what_the_manager_does_not_confirm_fails_the_turn_by_its_name(
    house: House,
    verdict: types_pb2.Verdict.ValueType,
    store: types_pb2.StoreVerdict.ValueType,
    finding: str | None,
    reason: str,
) -> None:
    script = house.manager.script
    script.saved, script.verdict, script.store_verdict = False, verdict, store
    if finding is not None:
        script.findings = [types_pb2.Finding(code=finding, expected="x", observed="y")]
    told = await house.turn("t1")
    assert (told.outcome, told.turn.failure.reason) == ("FAILED", reason)
    assert told.turn.output_unconfirmed
    assert await saved_session(house) == SESSION_A


async def test_a_turn_whose_session_nothing_names_is_unproven(house: House) -> None:
    async def nameless(cli: Cli) -> None:
        await cli.activate()
        await cli.take_message()
        await cli.print_lines(cli.lifecycle("queued"), cli.lifecycle("started"), cli.assistant("plum"), cli.result())
        await cli.observed()

    house.host.scripts = [nameless]
    told = await house.turn("t1")
    assert (told.outcome, told.turn.failure.reason) == ("FAILED", "IDENTITY_UNPROVEN")
    assert told.texts == []  # nothing is passed on before the session is named


async def test_missing_bytes_are_unproven(house: House) -> None:
    async def gap(cli: Cli) -> None:
        await cli.activate()
        await cli.take_message()
        cli.offset += 10
        await cli.answer()

    house.host.scripts = [gap]
    told = await house.turn("t1")
    assert (told.outcome, told.turn.failure.reason) == ("FAILED", "IDENTITY_UNPROVEN")
    assert [finding.code for finding in told.turn.findings] == ["OUTPUT_GAP"]


async def test_with_its_own_check_off_only_the_managers_side_is_left(tmp_path: Path) -> None:
    async with house_in(tmp_path / "state", policy=RunnerPolicy(check_identity=False)) as house:
        await house.turn("t0")
        house.host.scripts = [changing(at="init")]
        told = await house.turn("t1")
        assert told.outcome == "COMPLETED"
        assert house.manager.of("SettleTurn")[-1].claim.verdict == types_pb2.VERDICT_CONFIRMED
        house.manager.script.saved, house.manager.script.verdict = False, types_pb2.VERDICT_CONTRADICTED
        told = await house.turn("t2")
        assert (told.outcome, told.turn.failure.reason) == ("FAILED", "NATIVE_SESSION_MISMATCH")


# --- requests -----------------------------------------------------------------------------------------------------------
BAD: list[tuple[str, dict[str, object], str]] = [
    ("empty message", {"message": ""}, "MESSAGE_EMPTY"),
    ("message with NUL", {"message": "a\0b"}, "MESSAGE_HAS_NUL"),
    ("message over the limit", {"message": "x" * (4 * 1024 * 1024 + 1)}, "MESSAGE_TOO_LARGE"),
    ("unknown agent", {"agent": "clippy"}, "AGENT_UNKNOWN"),
    ("no agent", {"agent": ""}, "AGENT_UNKNOWN"),
    ("turn id with a slash", {"turn_id": "a/b"}, "ID_INVALID"),
    ("turn id over the length", {"turn_id": "x" * 129}, "ID_INVALID"),
    ("no turn id", {"turn_id": ""}, "ID_INVALID"),
    ("steer", {"when_busy": pb.WHEN_BUSY_STEER}, "WHEN_BUSY_UNSUPPORTED"),
    ("unknown option", {"settings": types_pb2.AgentSettings(options={"x": "y"})}, "SETTING_UNKNOWN"),
    ("permission mode", {"settings": types_pb2.AgentSettings(permission_mode="plan")}, "SETTING_UNKNOWN"),
    ("model with a dash", {"settings": types_pb2.AgentSettings(model="--resume")}, "SETTING_UNKNOWN"),
    ("negative limit", {"turn_limit_ms": -1}, "REQUEST_INVALID"),
    ("locator without session", {"locator": types_pb2.NativeLocator(agent="claude-code")}, "REQUEST_INVALID"),
]


@pytest.mark.parametrize(("fields", "reason"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
async def test_bad_input_is_a_clear_error_and_leaves_nothing(house: House, fields: dict[str, Any], reason: str) -> None:
    told = await house.turn(**({"turn_id": "t1"} | fields))
    assert (told.error.code, told.error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, reason)
    assert house.manager.of("ClaimTurn")[1:] == []
    assert (await house.watch("t1")).error.reason == "TURN_UNKNOWN"


async def test_a_message_of_the_full_size_goes_through(house: House) -> None:
    text = "läng line\n" * (4 * 1024 * 1024 // 11)
    told = await house.turn("t1", text)
    assert told.outcome == "COMPLETED", told.turn.failure
    [frame] = [frame for frame in house.host.clis[1].frames if frame["type"] == "user"]
    assert frame["message"]["content"][0]["text"] == text


# --- what the manager answers to a claim --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (grpc.StatusCode.ABORTED, "TURN_ELSEWHERE"),
        (grpc.StatusCode.ABORTED, "CONVERSATION_BUSY"),
        (grpc.StatusCode.ALREADY_EXISTS, "CONVERSATION_EXISTS"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "NO_HOST"),
        (grpc.StatusCode.UNAVAILABLE, "HOST_UNAVAILABLE"),
        (grpc.StatusCode.UNAVAILABLE, "ENGINE_UNAVAILABLE"),
    ],
)
@pytest.mark.parametrize("rpc", ["ClaimTurn", "PrepareTurn"])
async def test_what_passes_by_itself_records_nothing(
    house: House, rpc: str, code: grpc.StatusCode, reason: str
) -> None:
    house.manager.script.failures[rpc] = [ScriptedError(code, reason, {"address": "elsewhere:1"})]
    told = await house.turn("t1")
    assert (told.error.code, told.error.reason) == (code, reason)
    assert told.error.metadata["address"] == "elsewhere:1"
    assert (await house.watch("t1")).error.reason == "TURN_UNKNOWN"
    assert (await house.turn("t1")).outcome == "COMPLETED"


async def test_a_turn_that_is_over_elsewhere_is_told_as_it_ended(house: House) -> None:
    house.manager.script.ended = sandbox_pb.ManagedTurn(
        turn_id="t1",
        state="SETTLED",
        outcome=types_pb2.OUTCOME_COMPLETED,
        locator=locator(),
        settlement=sandbox_pb.Settlement(saved=True, manager_verdict=types_pb2.VERDICT_CONFIRMED),
    )
    told = await house.turn("t1")
    assert told.outcome == "COMPLETED"
    assert told.turn.state == "SETTLED"
    assert sent_messages(house) == 1
