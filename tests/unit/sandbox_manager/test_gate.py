"""The last gate: every state and every kind of frame."""

from __future__ import annotations

import json

import pytest

from sandbox_manager.agents.port import GateContext
from sandbox_manager.host.core.errors import IllegalTransitionError
from sandbox_manager.host.core.gate import (
    Admission,
    FrameKind,
    Gate,
    GatePolicy,
    GateState,
    Passed,
    Refused,
)
from tests.unit.sandbox_manager.settled_turn import AGENT, CONTEXT, MESSAGE, MESSAGE_ID, digest

ADMISSION = Admission("act-1", MESSAGE_ID, digest(MESSAGE), len(MESSAGE))


def message(text: str = MESSAGE, message_id: str = MESSAGE_ID, *, decorated: bool = False) -> bytes:
    content = [{"type": "text", "text": text}] + ([{"type": "text", "text": ""}] if decorated else [])
    frame = {"type": "user", "uuid": message_id, "message": {"role": "user", "content": content}}
    return json.dumps(frame).encode() + b"\n"


def control(subtype: str, request_id: str = "r1") -> bytes:
    frame = {"type": "control_request", "request_id": request_id, "request": {"subtype": subtype}}
    return json.dumps(frame).encode() + b"\n"


def answer(request_id: str = "q1") -> bytes:
    inner = {"behavior": "deny", "message": "no"}
    frame = {
        "type": "control_response",
        "response": {"subtype": "success", "request_id": request_id, "response": inner},
    }
    return json.dumps(frame).encode() + b"\n"


def gate_in(state: GateState, *, policy: GatePolicy | None = None) -> Gate:
    made = Gate(AGENT, CONTEXT, handshake_expected=True, policy=policy)
    if state in (GateState.ADMITTED, GateState.FORWARDED):
        made.admit(ADMISSION)
    if state is GateState.FORWARDED:
        assert made.check(message()) == Passed(FrameKind.MESSAGE)
        made.note_open_requests(("q1",))
    if state is GateState.ENDED:
        made.end()
    assert made.state is state
    return made


FRAMES = {
    "handshake": control("initialize"),
    "message": message(),
    "answer": answer(),
    "interrupt": control("interrupt"),
    "forbidden": control("set_model"),
}
RULINGS: dict[GateState, dict[str, str]] = {
    GateState.HANDSHAKE: {
        "handshake": "HANDSHAKE",
        "message": "NOT_ADMITTED",
        "answer": "NOT_FORWARDED",
        "interrupt": "NOT_FORWARDED",
        "forbidden": "FRAME_FORBIDDEN",
    },
    GateState.ADMITTED: {
        "handshake": "HANDSHAKE_TOO_LATE",
        "message": "MESSAGE",
        "answer": "NOT_FORWARDED",
        "interrupt": "NOT_FORWARDED",
        "forbidden": "FRAME_FORBIDDEN",
    },
    GateState.FORWARDED: {
        "handshake": "HANDSHAKE_TOO_LATE",
        "message": "SECOND_MESSAGE",
        "answer": "ANSWER",
        "interrupt": "INTERRUPT",
        "forbidden": "FRAME_FORBIDDEN",
    },
    GateState.ENDED: dict.fromkeys(FRAMES, "TURN_ENDED"),
}


@pytest.mark.parametrize("state", GateState)
@pytest.mark.parametrize("name", FRAMES)
def test_each_state_and_frame(state: GateState, name: str) -> None:
    gate = gate_in(state)
    ruling = gate.check(FRAMES[name])
    assert (ruling.kind.value if isinstance(ruling, Passed) else ruling.reason) == RULINGS[state][name]
    if isinstance(ruling, Refused):
        assert gate.state is state


@pytest.mark.parametrize(
    "frame",
    [
        message(MESSAGE + "!"),
        message(MESSAGE.replace("plum", "pear")),
        message(" " + MESSAGE),
        message(MESSAGE[:-1]),
        message(""),
        message(message_id="m-0"),
    ],
)
def test_only_the_admitted_text_under_the_admitted_id_passes(frame: bytes) -> None:
    gate = gate_in(GateState.ADMITTED)
    refused = gate.check(frame)
    assert isinstance(refused, Refused)
    assert refused.reason == "MESSAGE_MISMATCH"
    assert MESSAGE not in refused.why
    assert gate.check(message()) == Passed(FrameKind.MESSAGE)


def test_a_message_without_an_id_does_not_pass() -> None:
    frame = message().replace(f'"uuid": "{MESSAGE_ID}", '.encode(), b"")
    refused = gate_in(GateState.ADMITTED).check(frame)
    assert isinstance(refused, Refused)
    assert refused.reason == "MESSAGE_MISMATCH"


def test_the_listed_decoration_passes() -> None:
    assert gate_in(GateState.ADMITTED).check(message(decorated=True)) == Passed(FrameKind.MESSAGE)


def test_a_native_command_passes_only_where_the_lab_lets_it() -> None:
    admission = Admission("act-1", MESSAGE_ID, digest("/clear"), 6)
    for policy, expected in ((None, "MESSAGE_NOT_LITERAL"), (GatePolicy(let_slash_through=True), None)):
        gate = Gate(AGENT, CONTEXT, handshake_expected=False, policy=policy)
        gate.admit(admission)
        ruling = gate.check(message("/clear"))
        assert (ruling.reason if isinstance(ruling, Refused) else None) == expected
    gate = Gate(AGENT, CONTEXT, handshake_expected=False)
    gate.admit(admission)
    assert gate.check(message("/clear", decorated=True)) == Passed(FrameKind.MESSAGE)


def test_the_lab_policy_opens_nothing_else() -> None:
    gate = gate_in(GateState.ADMITTED, policy=GatePolicy(let_slash_through=True))
    refused = gate.check(message("/clear"))
    assert isinstance(refused, Refused)
    assert refused.reason == "MESSAGE_MISMATCH"


def test_a_handshake_passes_once_and_only_for_a_new_process() -> None:
    gate = gate_in(GateState.HANDSHAKE)
    assert gate.check(control("initialize")) == Passed(FrameKind.HANDSHAKE, "r1")
    second = gate.check(control("initialize", "r2"))
    running = Gate(AGENT, CONTEXT, handshake_expected=False).check(control("initialize"))
    for refused in (second, running):
        assert isinstance(refused, Refused)
        assert refused.reason == "HANDSHAKE_REPEATED"


def test_an_answer_goes_once_to_a_request_that_is_open() -> None:
    gate = gate_in(GateState.FORWARDED)
    assert list(gate.unanswered) == ["q1"]
    unknown = gate.check(answer("q9"))
    assert isinstance(unknown, Refused)
    assert gate.check(answer()) == Passed(FrameKind.ANSWER, "q1")
    assert not list(gate.unanswered)
    gate.note_open_requests(("q1",))
    repeated = gate.check(answer())
    assert isinstance(repeated, Refused)
    assert (unknown.reason, repeated.reason) == ("REQUEST_NOT_OPEN", "REQUEST_NOT_OPEN")


def test_interrupts_have_a_bound() -> None:
    gate = gate_in(GateState.FORWARDED)
    for number in range(16):
        assert isinstance(gate.check(control("interrupt", f"i{number}")), Passed)
    refused = gate.check(control("interrupt", "i16"))
    assert isinstance(refused, Refused)
    assert refused.reason == "TOO_MANY_INTERRUPTS"


def test_a_frame_that_is_too_large_is_not_even_read() -> None:
    class Unreadable:
        def classify(self, frame: bytes, context: GateContext) -> None:
            raise AssertionError("it was read")

    gate = Gate(Unreadable(), CONTEXT, handshake_expected=True, message_length_max=10)  # type: ignore[arg-type]  # it must not be asked
    refused = gate.check(b"x" * (10 * 6 + 4097))
    assert isinstance(refused, Refused)
    assert refused.reason == "FRAME_TOO_LARGE"


def test_a_message_of_the_largest_length_passes_in_any_escaping() -> None:
    text = "\x01" * 1000
    gate = Gate(AGENT, CONTEXT, handshake_expected=False, message_length_max=1000)
    gate.admit(Admission("act-1", MESSAGE_ID, digest(text), 1000))
    assert gate.check(message(text)) == Passed(FrameKind.MESSAGE)


def test_an_admission_beyond_the_limit_lets_nothing_pass() -> None:
    gate = Gate(AGENT, CONTEXT, handshake_expected=False, message_length_max=10)
    gate.admit(ADMISSION)
    assert isinstance(gate.check(message()), Refused)


@pytest.mark.parametrize("state", [GateState.ADMITTED, GateState.FORWARDED, GateState.ENDED])
def test_a_second_admission_is_illegal_and_changes_nothing(state: GateState) -> None:
    gate = gate_in(state)
    with pytest.raises(IllegalTransitionError):
        gate.admit(ADMISSION)
    assert gate.state is state


def test_the_end_can_be_said_again() -> None:
    gate = gate_in(GateState.ENDED)
    gate.end()
    assert gate.state is GateState.ENDED
