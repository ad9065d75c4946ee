"""The failure cases that concern Claude Code's stream, through the runner's driver and identity judge."""

from __future__ import annotations

import json

import pytest

from runner.core.events import AssistantMessage, HandshakeRefused
from runner.core.identity import IdentityJudge
from runner.core.verdict import Verdict
from runner.drivers.claude_code.driver import ClaudeCodeDriver
from tests.native.runner_side.reading import MESSAGE_ID, Reading, read_bytes
from tests.native.runner_side.recordings import case, case_input

SESSION_A = "aaaaaaaa-0000-4000-8000-000000000001"
SESSION_B = "bbbbbbbb-0000-4000-8000-000000000002"


def judge(reading: Reading, expected: str = SESSION_A) -> Verdict:
    identity = IdentityJudge(expected, naming=frozenset({"system/init"}))
    for body in reading.bodies:
        identity.observe(body)
    return identity.verdict().verdict


def test_a_good_answer_under_another_id_is_contradicted() -> None:
    reading = read_bytes(case_input("identity-resume-other-id"))
    assert judge(reading) is Verdict.CONTRADICTED
    assert [end.failed for end in reading.ends] == [False]


def test_a_sub_agents_id_and_text_stay_the_sub_agents() -> None:
    reading = read_bytes(case_input("identity-subagent-impostor"))
    assert reading.root_text == [case("identity-subagent-impostor")["expected"]["output_text"]]
    assert reading.session_ids == [SESSION_A]
    assert judge(reading) is Verdict.CONFIRMED


def test_an_unknown_conversation_is_a_refused_handshake() -> None:
    process = json.loads(case_input("loss-no-such-conversation"))
    silent = read_bytes(process["stdout"].encode())
    assert [refused.cause for refused in silent.of(HandshakeRefused)] == ["OTHER"]
    spoken = read_bytes(process["variant"]["stdout"].encode())
    assert [refused.cause for refused in spoken.of(HandshakeRefused)] == ["NO_SUCH_SESSION"]
    for reading in (silent, spoken):
        assert reading.ends == []
        assert judge(reading) is Verdict.UNPROVEN


def test_a_retry_notice_retires_the_process_and_keeps_the_turn() -> None:
    printed = case_input("chain-retry-notice-retires-process")
    reading = read_bytes(printed, process_is_new=False)
    assert reading.root_text == ["42"]
    assert "API_RETRY_SEEN" in reading.retirements
    assert judge(reading) is Verdict.CONFIRMED
    without = b"".join(line for line in printed.splitlines(keepends=True) if b"api_retry" not in line)
    assert "API_RETRY_SEEN" not in read_bytes(without, process_is_new=False).retirements


@pytest.mark.parametrize("index", [0, 1])
def test_a_line_of_any_length_is_one_line(index: int) -> None:
    recipe = json.loads(case_input("frame-line-over-64k"))["cases"][index]
    line = recipe["line"]
    long = line["prefix"] + line["repeat"] * line["count"] + line["suffix"]
    rows = [*map(json.dumps, recipe["before"]), long, *map(json.dumps, recipe["after"])]
    reading = read_bytes("".join(row + "\n" for row in rows).encode(), cut_every=65536)
    assert [len(text) for text in reading.root_text] == [
        case("frame-line-over-64k")["expected"]["output_length"][index]
    ]
    assert [end.failed for end in reading.ends] == [False]
    assert judge(reading) is Verdict.CONFIRMED


def test_stray_lines_are_counted_and_never_joined() -> None:
    reading = read_bytes(case_input("frame-noise-lines"))
    assert reading.noise == case("frame-noise-lines")["expected"]["noise_lines"]
    assert reading.root_text == ["ok"]
    assert judge(reading) is Verdict.CONFIRMED


def test_a_character_cut_between_two_reads_stays_whole() -> None:
    chunks = [bytes.fromhex(chunk) for chunk in json.loads(case_input("frame-split-utf8"))["chunks_hex"]]
    driver = ClaudeCodeDriver()
    driver.handshake_frames(process_is_new=True)
    driver.user_frames("hello", message_id=MESSAGE_ID)
    reading = Reading(driver, [event for chunk in chunks for event in driver.feed(chunk)])
    assert reading.root_text == [case("frame-split-utf8")["expected"]["output_text"]]
    assert not any("�" in message.text for message in reading.of(AssistantMessage))


def test_an_end_mark_inside_a_message_ends_nothing() -> None:
    reading = read_bytes(case_input("end-claude-no-result"))
    assert reading.ends == []
    assert judge(reading) is Verdict.UNPROVEN


def test_the_error_flag_decides_and_the_text_explains() -> None:
    expected = case("end-claude-success-word-with-error-flag")["expected"]
    reading = read_bytes(case_input("end-claude-success-word-with-error-flag"))
    [end] = reading.ends
    assert (end.failed, end.status, end.error) == (True, expected["status"], expected["message"])
    assert end.reason != "success"
    assert reading.content == []
    assert judge(reading) is Verdict.CONFIRMED


def test_the_message_is_data_and_goes_as_it_is() -> None:
    given = json.loads(case_input("input-dash-slash-and-large"))
    generated = given["generated"]
    for text in [*given["messages"], generated["repeat"] * generated["count"]]:
        [frame] = ClaudeCodeDriver().user_frames(text, message_id=MESSAGE_ID)
        assert frame.count(b"\n") == 1
        assert frame.endswith(b"\n")
        content = json.loads(frame)["message"]["content"]
        assert content[0]["text"].encode() == text.encode()
        assert content[1:] == ([{"type": "text", "text": ""}] if text.startswith("/") else [])


def test_a_result_ends_the_turn_although_the_output_stays_open() -> None:
    process = json.loads(case_input("cont-output-held-by-background-child"))
    driver = ClaudeCodeDriver()
    driver.handshake_frames(process_is_new=True)
    driver.user_frames("hello", message_id=MESSAGE_ID)
    reading = Reading(driver, driver.feed(process["stdout"].encode()))
    assert [end.failed for end in reading.ends] == [False]
    assert reading.root_text == ["done"]
