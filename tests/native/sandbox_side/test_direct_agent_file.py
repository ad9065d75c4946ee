"""The sandbox side's file of the built-in agent: launch, gate grammar, tap reader and store reader, on recordings of a real process."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.drivers.direct.driver import DirectDriver
from runner.drivers.port import Opening
from sandbox_manager.agents.errors import AgentLocatorError, AgentSettingError
from sandbox_manager.agents.port import (
    AnswerFrame,
    FenceFrame,
    ForbiddenFrame,
    GateContext,
    GateFrame,
    HandshakeFrame,
    InterruptFrame,
    UserFrame,
)
from sandbox_manager.agents.registry import agent_named
from sandbox_manager.core.store_check import AdmittedTurn, StoreCheck, check_store
from sandbox_manager.core.values import (
    LaunchSettings,
    NativeLocator,
    RecordKind,
    StoreReading,
    StoreRecord,
    TapFindings,
)

AGENT = agent_named("direct")
CAPTURES = Path(__file__).parents[2] / "captures" / "direct_agent"
SESSION = "11111111-0000-4000-8000-000000000001"
CONTEXT = GateContext("/workspace", "auto", None, (), None, resumes=False)
NAMES = ("first", "second", "cancelled", "failed")
IDS = {name: f"22222222-0000-4000-8000-00000000000{number}" for number, name in enumerate(NAMES, start=1)}
SETTINGS = LaunchSettings(
    agent="direct",
    native_session_id=SESSION,
    resume=False,
    home="/members/1/home",
    tmp="/run/slot",
    workspace="/workspace",
    executable="/opt/direct/direct",
    model_base_url="http://127.0.0.1:7000",
    slot_secret="slot-secret-0123456789",
    model="deepseek-v4-flash",
)


# --- launch --------------------------------------------------------------------------------------------------------------------------
def test_a_process_is_told_its_session_and_no_secret_on_its_command_line() -> None:
    spec = AGENT.launch(SETTINGS)
    assert f"--session-id={SESSION}" in spec.argv
    assert f"--resume={SESSION}" in AGENT.launch(replace(SETTINGS, resume=True)).argv
    assert all(SETTINGS.slot_secret not in word for word in spec.argv)
    assert dict(spec.env)["STANDFAST_MODEL_KEY"] == SETTINGS.slot_secret
    assert spec.cwd == "/workspace"


def test_options_are_words_of_the_agents_own_command_line() -> None:
    options = (
        ("protocol", "chat"),
        ("wait_budget_s", "0"),
        ("transport_retries", "off"),
    )
    argv = AGENT.launch(replace(SETTINGS, options=options, deny_rules=("shell", "write(*.env)"))).argv
    assert argv[-5:] == (
        "--protocol=chat",
        "--wait-budget-s=0",
        "--no-transport-retries",
        "--deny=shell",
        "--deny=write(*.env)",
    )


def test_what_the_launch_says_the_agent_itself_understands() -> None:
    from direct_agent.settings import from_arguments, parser

    options = tuple((name, value) for name, value in _GOOD_OPTIONS.items())
    rules: dict[str, Any] = {"allow_rules": ("read",), "deny_rules": ("shell(rm*)",)}
    argv = AGENT.launch(replace(SETTINGS, options=options, permission_mode="ask", **rules)).argv
    settings = from_arguments(parser("direct").parse_args(argv[1:]))
    assert (settings.session_id, str(settings.home), str(settings.workspace)) == (
        SESSION,
        "/members/1/home",
        "/workspace",
    )
    assert settings.endpoint.effort == "high"
    assert settings.policy.wait_budget_s == 600
    assert not settings.policy.transport_retries
    assert [rule.tool for rule in settings.permissions.deny] == ["shell"]
    assert settings.key.read(dict(AGENT.launch(SETTINGS).env)) == SETTINGS.slot_secret


_GOOD_OPTIONS = {
    "protocol": "responses",
    "contract": "deepseek",
    "thinking": "on",
    "effort": "high",
    "max_tokens": "1000",
    "wait_budget_s": "600",
    "turn_limit_s": "60",
    "transport_retries": "off",
}


@pytest.mark.parametrize(
    "change",
    [
        {"permission_mode": "yolo"},
        {"options": (("speed", "1"),)},
        {"options": (("protocol", "gopher"),)},
        {"options": (("max_tokens", "-1"),)},
        {"options": (("effort", "high --key-file=/etc/passwd"),)},
        {"allow_rules": ("Bash",)},
        {"deny_rules": ("shell(rm\n--key-file=/etc/passwd)",)},
    ],
)
def test_a_setting_that_is_not_known_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(AgentSettingError):
        AGENT.launch(replace(SETTINGS, **change))


def test_the_store_is_where_the_process_said_it_is() -> None:
    locator = AGENT.locator(SESSION, "/workspace")
    location = AGENT.store_location(locator)
    assert "/members/1/home/" + "/".join(location.components) == findings("first").handshake_store
    assert AGENT.named_locator(locator, findings("first"), home="/members/1/home") == locator


@pytest.mark.parametrize(
    "store", ["", "../x.jsonl", f".standfast-direct/sessions/../{SESSION}.jsonl", ".claude/x.jsonl"]
)
def test_a_locator_of_another_place_is_refused(store: str) -> None:
    with pytest.raises(AgentLocatorError):
        AGENT.store_location(NativeLocator("direct", SESSION, "/workspace", store))


@pytest.mark.parametrize("session_id", ["", "..", "a/b", "a b", "x" * 101, "ä"])
def test_a_session_id_that_is_no_plain_name_is_refused(session_id: str) -> None:
    with pytest.raises(AgentLocatorError):
        AGENT.locator(session_id, "/workspace")


# --- gate ----------------------------------------------------------------------------------------------------------------------------
def classify(value: Any) -> GateFrame:
    line = value if isinstance(value, bytes) else json.dumps(value).encode() + b"\n"
    return AGENT.classify(line, CONTEXT)


@pytest.mark.parametrize("text", ["plain", "/clear", "--x", "a\nb\u2028c\x85", "☃" * 1000, ""])
def test_the_drivers_frames_are_what_the_gate_knows(text: str) -> None:
    driver = DirectDriver(Opening())
    (handshake,) = driver.handshake_frames(process_is_new=True)
    (message,) = driver.user_frames(text, message_id="m1")
    (interrupt,) = driver.interrupt_frames()
    (refusal,) = driver.answer_unknown_frames("r1")
    assert isinstance(classify(handshake), HandshakeFrame)
    assert classify(message) == UserFrame(text.encode(), "m1")
    assert isinstance(classify(interrupt), InterruptFrame)
    assert classify(refusal) == AnswerFrame("r1")
    assert isinstance(classify(AGENT.interrupt_frame("i1", AGENT.locator("s", "/workspace"))), InterruptFrame)


def test_answers_and_a_look_up() -> None:
    assert classify({"type": "answer", "request_id": "r", "allow": True}) == AnswerFrame("r")
    assert classify({"type": "answer", "request_id": "r", "answers": [["a"], []]}) == AnswerFrame("r")
    assert classify({"type": "answer", "request_id": "r", "refused": "no"}) == AnswerFrame("r")
    assert classify({"type": "lookup", "id": "l", "message_id": "m"}) == FenceFrame("l")


USER = {"type": "user", "message_id": "m", "text": "x"}


@pytest.mark.parametrize(
    "value",
    [
        {**USER, "more": 1},
        {**USER, "text": 1},
        {**USER, "text": "\ud800"},
        {**USER, "message_id": ""},
        {"type": "user", "text": "x"},
        {"type": "compact", "id": "c"},
        {"type": "steer", "message_id": "m", "text": "x"},
        {"type": "fork"},
        {"type": ["user"]},
        {"type": "initialize", "id": "i", "workspace": "/"},
        {"type": "answer", "request_id": "r"},
        {"type": "answer", "request_id": "r", "allow": 1},
        {"type": "answer", "request_id": "r", "allow": True, "answers": []},
        {"type": "answer", "request_id": "r", "answers": ["a"]},
        {"type": "answer", "request_id": "r", "answers": [[1]]},
        {"type": "answer", "request_id": "r" * 201, "allow": True},
        b'{"type":"user","message_id":"m","text":"x"}',
        b'{"type":"user","message_id":"m","text":"x","text":"y"}\n',
        b'{"type":"user","message_id":"m","text":"x"}\n{"type":"interrupt","id":"i"}\n',
        b'{"type":"user",\t"message_id":"m","text":"x"}\n',
        b'\xef\xbb\xbf{"type":"interrupt","id":"i"}\n',
        b'{"type":"interrupt","id":"\xff"}\n',
        b"[]\n",
        b"\n",
        b"[" * 100_000 + b"\n",
    ],
)
def test_everything_else_is_forbidden(value: Any) -> None:
    assert isinstance(classify(value), ForbiddenFrame)


# --- tap -----------------------------------------------------------------------------------------------------------------------------
def printed(name: str) -> bytes:
    return (CAPTURES / f"{name}.jsonl").read_bytes()


def findings(name: str, *, step: int | None = None) -> TapFindings:
    data = printed(name)
    reader = AGENT.tap_reader(message_id=IDS.get(name), start_offset=0)
    for start in range(0, len(data), step or len(data)):
        reader.feed(data[start : start + (step or len(data))])
    return reader.findings()


def test_the_tap_of_a_first_turn_proves_handshake_identity_and_end() -> None:
    found = findings("first")
    assert (found.handshake, found.handshake_session_id, found.agent_version) == ("OK", SESSION, AGENT.version)
    assert found.session_ids == (SESSION,)
    assert found.message_started
    assert found.identity_before_output
    assert found.end is not None
    assert not found.end.is_error
    assert found.end.tap_offset == len(printed("first"))
    assert found.open_requests == ()
    assert len(found.printed) == 3
    assert len(found.assistant) == 1
    assert AGENT.must_retire(found) is None


def test_the_ends_of_cancelled_and_failed_turns() -> None:
    cancelled, failed = findings("cancelled"), findings("failed")
    assert cancelled.end is not None
    assert failed.end is not None
    assert (cancelled.end.cancelled, AGENT.must_retire(cancelled)) == (True, "CANCELLED")
    assert (failed.end.is_error, failed.end.status, failed.end.reason) == (True, 401, "auth")
    assert AGENT.must_retire(failed) is None


def test_a_refused_resume_is_said_in_short() -> None:
    assert findings("refused").handshake == "NO_SUCH_SESSION"


@pytest.mark.parametrize("name", NAMES)
def test_the_cuts_between_reads_do_not_matter(name: str) -> None:
    assert {findings(name, step=step) for step in (1, 7, 64)} == {findings(name)}


def test_a_request_is_open_until_it_is_closed() -> None:
    lines = printed("cancelled").splitlines(keepends=True)
    reader = AGENT.tap_reader(message_id=IDS["cancelled"], start_offset=0)
    for line in lines:
        reader.feed(line)
        if b'"request"' in line:
            assert reader.findings().open_requests == (f"{IDS['cancelled']}-r2",)
        if b'"request_closed"' in line:
            assert reader.findings().open_requests == ()


def test_another_messages_end_is_not_ours() -> None:
    reader = AGENT.tap_reader(message_id="another", start_offset=0)
    reader.feed(printed("second"))
    found = reader.findings()
    assert found.end is None
    assert not found.message_started
    assert found.assistant == ()
    assert AGENT.must_retire(found) == "NO_NATIVE_END"


def test_what_could_not_be_stored_retires_the_process() -> None:
    end = {"type": "turn_end", "session_id": SESSION, "message_id": "m", "outcome": "failed", "reason": "STORAGE_FULL"}
    reader = AGENT.tap_reader(message_id="m", start_offset=0)
    reader.feed(json.dumps(end).encode() + b"\n")
    assert AGENT.must_retire(reader.findings()) == "SESSION_NOT_WRITTEN"


# --- store ---------------------------------------------------------------------------------------------------------------------------
SESSION_FILE = (CAPTURES / "session.jsonl").read_bytes()


def ends() -> list[int]:
    """The offsets after each `end` record."""
    offsets, at = [], 0
    for line in SESSION_FILE.splitlines(keepends=True):
        at += len(line)
        if json.loads(line)["kind"] == "end":
            offsets.append(at)
    return offsets


def reading(data: bytes, prefix: int) -> StoreReading:
    return StoreReading(
        error=None,
        length=len(data),
        digest=hashlib.sha256(data).hexdigest(),
        prefix_length=prefix,
        prefix_digest=hashlib.sha256(data[:prefix]).hexdigest() if prefix else None,
        segment=AGENT.read_segment(data[prefix:], from_start=prefix == 0),
    )


def admitted(name: str) -> AdmittedTurn:
    text = next(
        json.loads(line)["data"]["message"]["text"]
        for line in SESSION_FILE.splitlines()
        if json.loads(line)["id"] == IDS[name]
    )
    found = findings(name)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return AdmittedTurn(IDS[name], digest, found.assistant, found.printed, found.bases)


def checked(data: bytes, record: StoreRecord | None, **turns: Any) -> StoreCheck:
    return check_store(record, reading(data, record.length if record else 0), session_id=SESSION, **turns)


def test_each_turn_of_the_recording_is_confirmed_on_the_one_before() -> None:
    record: StoreRecord | None = None
    for name, end in zip(NAMES, ends(), strict=True):
        check = checked(SESSION_FILE[:end], record, current=admitted(name))
        assert check.reasons == (), name
        assert check.promised == ()
        record = check.record
    assert record is not None
    assert checked(SESSION_FILE, record).reasons == ()


def settled_first() -> StoreRecord:
    record = checked(SESSION_FILE[: ends()[0]], None, current=admitted("first")).record
    assert record is not None
    return record


def test_what_no_admitted_turn_explains_is_found() -> None:
    check = checked(SESSION_FILE[: ends()[1]], settled_first())
    assert [reason.code for reason in check.reasons] == ["HISTORY_CHANGED_OUTSIDE_TURN"]


def test_one_changed_byte_in_an_old_record_is_found() -> None:
    changed = SESSION_FILE[: ends()[0]].replace(b"1223871f", b"1223871e")
    assert changed != SESSION_FILE[: ends()[0]]
    assert [reason.code for reason in checked(changed, settled_first()).reasons] == ["HISTORY_CHANGED_OUTSIDE_TURN"]


def test_half_a_record_at_the_end_is_harmless_and_a_glued_one_is_not() -> None:
    record = settled_first()
    settled = SESSION_FILE[: ends()[0]]
    following = SESSION_FILE[ends()[0] : ends()[1]]
    for cut in (1, 40, len(following.split(b"\n")[0])):
        assert checked(settled + following[:cut], record).reasons == ()
    glued = settled + following[:40] + following
    assert "HISTORY_TORN" in [reason.code for reason in checked(glued, record, current=admitted("second")).reasons]


def test_a_record_of_another_version_is_foreign_and_a_second_header_too() -> None:
    header = SESSION_FILE.splitlines(keepends=True)[0]
    for line in (b'{"v":2,"kind":"message","id":"x","parent":null,"data":{}}\n', header):
        segment = AGENT.read_segment(line, from_start=False)
        assert [one.kind for one in segment.records] == [RecordKind.FOREIGN]


def test_kinds_of_the_recording() -> None:
    segment = AGENT.read_segment(SESSION_FILE[: ends()[0]], from_start=True)
    assert [one.kind.name for one in segment.records] == [
        "BOOKKEEPING",
        "USER",
        "TOOL",
        "TOOL",
        "TOOL",
        "TOOL",
        "TOOL",
        "ASSISTANT",
        "TOOL",
    ]
    assert segment.dangling is None
    assert len(segment.chain) == len(segment.records)
