"""Every recorded stream of Codex 0.171.0, through the runner's driver and identity judge."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest

from runner.core.events import (
    ContentBeforeIdentity,
    HandshakeAnswered,
    HandshakeRefused,
    MessageClosed,
    MessageStarted,
    ProviderRetry,
    RequestWithdrawn,
    SessionSeen,
    TextDelta,
    ToolCall,
    ToolResult,
    Usage,
    Warned,
)
from runner.core.verdict import Verdict
from tests.native.runner_side.codex_recordings import CAPTURES, Played, play


@dataclass
class Expected:
    """What one activation of a recording must read as. `failed` None: it has no native end."""

    texts: list[str]
    failed: bool | None = False
    cancelled: bool = False
    reason: str | None = "completed"
    status: int | None = None
    retire: list[str] = field(default_factory=list)
    tools: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    retries: list[tuple[int, int | None, int | None]] = field(default_factory=list)  # attempt, of, status
    verdict: Verdict = Verdict.CONFIRMED


CANCELLED = "CANCELLED"
UNPROVEN = Verdict.UNPROVEN

# Recording by recording, activation by activation. What is printed after an end belongs to the activation before it.
EXPECTED: dict[str, list[Expected]] = {
    "approval_command": [
        Expected(["done"], tools=["shell"], asked=["permission"]),
        Expected(["done2"], tools=["shell"], asked=["permission"]),
    ],
    # A text with a `delivery` is a tool's call, no text of the model's.
    "code_mode_and_async_message": [
        Expected(["calling", "done"], tools=["shell", "message_to_user"]),
        Expected(["default 4"]),
    ],
    "error_400_turn": [Expected(["A zero"]), Expected([], failed=True, reason="other"), Expected(["A two"])],
    "error_401": [Expected([], failed=True, reason="httpConnectionFailed", status=401, retries=[(1, 1, 401)])],
    "error_retries_exhausted": [
        Expected([], failed=True, reason="internalServerError", retries=[(1, 1, None)]),
        Expected(["A two"]),
    ],
    "fork": [Expected(["default reply 1"]), Expected(["default reply 2"]), Expected(["default reply 3"])],
    # The goal begins two more turns by itself once ours is over: R2 and R3 are not ours.
    "goal_autonomous_turns": [Expected(["R1"], retire=["AUTONOMOUS_TURN"])],
    "interrupt_stream": [
        Expected(["A zero"]),
        Expected([], failed=True, cancelled=True, reason="interrupted", retire=[CANCELLED]),
        Expected(["A two"]),
        Expected(["A three"]),
    ],
    "interrupt_tool": [
        Expected([], failed=True, cancelled=True, reason="interrupted", retire=[CANCELLED], tools=["shell"]),
        Expected(["A two"]),
    ],
    "interrupt_tool_then_clean": [
        Expected([], failed=True, cancelled=True, reason="interrupted", retire=[CANCELLED], tools=["shell"])
    ],
    "plain_two_turns": [Expected(["Reply ONE «ü»"]), Expected(["Reply TWO"])],
    "request_user_input": [Expected(["done"], asked=["question"])],
    "resume": [Expected(["Reply THREE"])],
    "resume_missing_id": [Expected([], failed=None, retire=["MESSAGE_REJECTED"], verdict=UNPROVEN)],
    "resume_second_writer_refused": [Expected([], failed=None, verdict=UNPROVEN)],
    "retry_429": [Expected(["A one"], retries=[(1, 1, 429)])],
    "retry_http_500_silent": [Expected(["A one"])],
    "retry_stream_cut_then_success": [
        Expected(["A zero"]),
        Expected(["A one"], retries=[(1, 2, None)]),
        Expected(["A two"]),
    ],
    "retry_two_replies_in_one_turn": [
        Expected(["A zero"]),
        Expected(["A whole reply, stream lost before response.completed", "A one"], retries=[(1, 2, None)]),
        Expected(["A two"]),
    ],
    # The child's turn ends after ours, on a thread of its own: CHILD DONE is not ours, and nothing retires the process.
    "subagent_outlives_turn": [Expected(["spawn", "PARENT DONE"], tools=["spawnAgent"]), Expected(["NEXT REPLY"])],
    "tool_shell": [Expected(["calling", "done"], tools=["shell"])],
    # The second message was merged into the running turn, whose beginning no `turn/started` of its own names.
    "turn_start_while_running": [
        Expected([], failed=None, verdict=UNPROVEN),
        Expected(["second"], verdict=UNPROVEN),
    ],
}


def test_every_recording_has_its_expectation() -> None:
    assert {path.stem for path in CAPTURES.glob("*.jsonl")} == set(EXPECTED)


@pytest.mark.parametrize("cut_every", [None, 61])
@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_recording_reads_as_expected_however_it_is_cut(name: str, cut_every: int | None) -> None:
    found = play(name, cut_every=cut_every)
    assert len(found) == len(EXPECTED[name])
    for played, expected in zip(found, EXPECTED[name], strict=True):
        assert _read(played) == expected


def _read(played: Played) -> Expected:
    end = played.ends[0] if played.ends else None
    assert len(played.ends) <= 1
    return Expected(
        texts=played.texts,
        failed=None if end is None else end.failed,
        cancelled=end is not None and end.cancelled,
        reason="completed" if end is None else end.reason,
        status=None if end is None else end.status,
        retire=played.retirements,
        tools=played.tools,
        asked=[request.kind for request in played.requests],
        retries=[(retry.attempt, retry.attempts_max, retry.status) for retry in played.of(ProviderRetry)],
        verdict=played.verdict,
    )


def test_the_handshake_names_thread_and_rollout() -> None:
    (answered,) = play("plain_two_turns")[0].of(HandshakeAnswered)
    assert answered.session_id == "01a22c47-c491-7d72-901c-a1f013b7b44d"
    assert answered.store is not None
    assert answered.store.endswith(f"rollout-2026-11-30T11-47-10-{answered.session_id}.jsonl")


@pytest.mark.parametrize("name", ["plain_two_turns", "resume", "interrupt_stream"])
def test_what_the_driver_writes_is_what_was_written(name: str) -> None:
    for played in play(name):
        for ours, recorded in played.wrote:
            assert ours["method"] == recorded["method"]
            if ours["method"] == "turn/start":
                recorded["params"].setdefault("clientUserMessageId", ours["params"]["clientUserMessageId"])
            assert ours["params"] == recorded["params"]


def test_an_unknown_thread_and_a_second_writer_are_told_apart() -> None:
    refused = play("resume_second_writer_refused")[0].of(HandshakeRefused)
    assert [one.cause for one in refused] == ["SESSION_IN_USE"]
    played = play("resume_missing_id")[0]
    assert [closed.state for closed in played.of(MessageClosed)] == ["cancelled"]
    assert "thread not found" in " ".join(warned.message for warned in played.of(Warned))


def test_each_event_of_our_turn_names_the_thread_that_began_it() -> None:
    for played in play("subagent_outlives_turn"):
        assert {seen.session_id for seen in played.of(SessionSeen)} == {"01a22c48-0490-7d11-9462-4fc7bd8987db"}
        assert len(played.of(MessageStarted)) == 1


def test_a_call_and_its_result_share_their_id() -> None:
    (played,) = play("tool_shell")
    (call,), (result,) = played.of(ToolCall), played.of(ToolResult)
    assert call.call_id == result.call_id
    assert json.loads(call.input_json)["command"] == "/bin/bash -lc 'echo hi > t.txt; cat t.txt; pwd'"
    assert (result.text, result.is_error) == ("hi\n/workspace\n", False)


def test_a_declined_call_is_a_failed_one() -> None:
    assert [result.is_error for result in play("approval_command")[1].of(ToolResult)] == [True]


def test_a_command_that_ends_after_its_turn_adds_nothing() -> None:
    (played,) = play("interrupt_tool_then_clean")
    assert played.of(ToolResult) == []


def test_pieces_of_a_text_that_a_retry_dropped_are_no_message() -> None:
    played = play("retry_stream_cut_then_success")[1]
    pieces = "".join(delta.text for delta in played.of(TextDelta))
    assert pieces != "A one"
    assert pieces.endswith("A one")
    assert played.texts == ["A one"]


def test_usage_is_the_turns_own() -> None:
    usage = [played.of(Usage) for played in play("plain_two_turns")]
    assert usage == [[Usage(11, 7, 0, 0)], [Usage(11, 7, 0, 0)]]
    (tools,) = play("tool_shell")[0].of(Usage)
    assert (tools.input_tokens, tools.output_tokens) == (22, 14)


def test_a_failed_turn_says_why_and_has_no_text() -> None:
    (end,) = play("error_400_turn")[1].ends
    assert end.error is not None
    assert "fixture error 400" in end.error


def test_a_question_that_was_resolved_by_others_is_withdrawn() -> None:
    (played,) = play("request_user_input")  # the recording's answer was not written by this driver
    assert [withdrawn.request_id for withdrawn in played.of(RequestWithdrawn)] == ["0"]


def test_nothing_comes_before_the_thread_is_named() -> None:
    for name in EXPECTED:
        for played in play(name):
            assert played.of(ContentBeforeIdentity) == []
