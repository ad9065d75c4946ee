"""The sandbox side of a session whose id or store the CLI names itself, and of handshakes in several steps."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest

from sandbox_manager.agents.errors import AgentLocatorError
from sandbox_manager.agents.naming import below_home, complete_locator
from sandbox_manager.agents.port import (
    FenceFrame,
    ForbiddenFrame,
    GateContext,
    GateFrame,
    HandshakeFrame,
    UserFrame,
)
from sandbox_manager.core.context import Ruling, decide
from sandbox_manager.core.locators import complete_locator as complete_from_report
from sandbox_manager.core.values import NativeLocator, TapFindings
from sandbox_manager.host.core.errors import GrantInvalidError
from sandbox_manager.host.core.gate import Admission, FrameKind, Gate, Passed, Refused
from sandbox_manager.host.core.grant import Grant
from tests.unit.sandbox_manager.settled_turn import LOCATOR, whole_report

OPEN = NativeLocator("codex", "", "/workspace", "")
HOME = "/members/1"
FINDINGS = TapFindings((), None, False, "OK", False, None, (), False, False, False, 0, (), None)


def findings(session_id: str | None, store: str | None) -> TapFindings:
    return replace(FINDINGS, handshake_session_id=session_id, handshake_store=store)


# --- the locator ---------------------------------------------------------------------------------------------------------------------
def test_the_handshake_completes_the_granted_locator() -> None:
    whole = complete_locator(OPEN, findings("thread-1", f"{HOME}/.codex/t.jsonl"), home=HOME)
    assert whole == NativeLocator("codex", "thread-1", "/workspace", ".codex/t.jsonl")
    assert whole.is_whole
    assert not OPEN.is_whole
    granted = replace(OPEN, native_session_id="chosen")
    assert complete_locator(granted, findings("other", f"{HOME}/x"), home=HOME).native_session_id == "chosen"


@pytest.mark.parametrize(
    ("session_id", "store"),
    [
        (None, f"{HOME}/t.jsonl"),
        ("thread-1", None),
        ("thread-1", "/etc/passwd"),
        ("thread-1", f"{HOME}/../m2/t.jsonl"),
        ("thread-1", f"{HOME}//t.jsonl"),
        ("thread-1", HOME),
    ],
)
def test_a_handshake_that_names_no_place_in_the_home_is_refused(session_id: str | None, store: str | None) -> None:
    with pytest.raises(AgentLocatorError):
        complete_locator(OPEN, findings(session_id, store), home=HOME)


def test_a_store_elsewhere_is_said_as_it_is() -> None:
    assert below_home(f"{HOME}/a/b", HOME) == "a/b"
    assert below_home("/members/10/a", HOME) == "/members/10/a"
    assert below_home(None, HOME) == ""


def test_the_manager_takes_from_the_report_only_what_was_left_open() -> None:
    reported = NativeLocator("codex", "thread-1", "/elsewhere", ".codex/t.jsonl")
    assert complete_from_report(OPEN, reported) == replace(reported, cwd="/workspace")
    assert complete_from_report(LOCATOR, reported) == LOCATOR


# --- the state -----------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("state", ["LIVE", "RESTORED"])
def test_a_cli_that_names_another_store_than_the_locators_is_lost(state: str) -> None:
    before = whole_report(state)
    same = before.but(report={"observed_store": LOCATOR.store})
    assert decide(same.report, same.member, same.container).ruling is Ruling.ADMIT
    other = before.but(report={"observed_store": "/tmp/other.jsonl"})
    decision = decide(other.report, other.member, other.container)
    assert (decision.ruling, decision.reason) == (Ruling.REFUSE, "NATIVE_SESSION_MISMATCH")


def test_a_first_turn_whose_session_nobody_named_is_not_admitted() -> None:
    for part in ("native_session_id", "store"):
        locator = replace(LOCATOR, **{part: ""})
        before = whole_report("NEW").but(report={"locator": locator}, member={"locator": locator})
        decision = decide(before.report, before.member, before.container)
        assert (decision.ruling, decision.reason) == (Ruling.REFUSE, "HANDSHAKE_FAILED")


# --- the grant -----------------------------------------------------------------------------------------------------------------------
CLAIMS = {
    **dict.fromkeys(
        ("activation_id", "turn_id", "tenant", "conversation_id", "group_id", "member_id", "container_id", "nonce"), "x"
    ),
    **dict.fromkeys(("slot", "container_generation", "activation_generation", "next_process_generation"), 1),
    "agent": "codex",
    "settings": {},
    "settings_digest": "d",
    "locator": {"agent": "codex", "native_session_id": "", "cwd": "/workspace", "store": ""},
    "resumes": False,
    "first_turn": True,
    "message_id": "m",
    "store": None,
}


def test_a_grant_names_the_session_unless_it_begins() -> None:
    assert Grant.read(CLAIMS).locator == OPEN
    with pytest.raises(GrantInvalidError):
        Grant.read({**CLAIMS, "resumes": True})


# --- the gate ------------------------------------------------------------------------------------------------------------------------
class Steps:
    """A grammar with a handshake of two steps, of which the second names the session."""

    def classify(self, frame: bytes, context: GateContext) -> GateFrame:
        value = json.loads(frame)
        match value["kind"]:
            case "hello":
                return HandshakeFrame("1", "hello")
            case "resume" if context.locator is not None and value["id"] == context.locator.native_session_id:
                return HandshakeFrame("2", "resume")
            case "fence":
                return FenceFrame(value["id"])
            case "message":
                return UserFrame(value["text"].encode(), "m")
            case _:
                return ForbiddenFrame("another session")


def frame(kind: str, **more: str) -> bytes:
    return json.dumps({"kind": kind, **more}).encode() + b"\n"


def gate() -> Gate:
    return Gate(Steps(), GateContext("/workspace", "auto", None, (), None, resumes=True), handshake_expected=True)


ADMISSION = Admission("act", "m", hashlib.sha256(b"hi").hexdigest(), 2)


def test_each_step_of_a_handshake_passes_once() -> None:
    made = gate()
    made.note_locator(LOCATOR)
    resume = frame("resume", id=LOCATOR.native_session_id)
    for step in (frame("hello"), resume):
        assert isinstance(made.check(step), Passed)
        repeated = made.check(step)
        assert isinstance(repeated, Refused)
        assert repeated.reason == "HANDSHAKE_REPEATED"


def test_a_frame_may_name_only_the_session_that_is_known() -> None:
    made = gate()
    resume = frame("resume", id=LOCATOR.native_session_id)
    assert isinstance(made.check(resume), Refused)
    made.note_locator(LOCATOR)
    assert isinstance(made.check(frame("resume", id="other")), Refused)
    assert isinstance(made.check(resume), Passed)


def test_a_fence_passes_from_the_admission_on_and_after_the_end_and_has_a_bound() -> None:
    made = gate()
    early = made.check(frame("fence", id="f"))
    assert isinstance(early, Refused)
    assert early.reason == "NOT_ADMITTED"
    made.admit(ADMISSION)
    assert made.check(frame("fence", id="f1")) == Passed(FrameKind.FENCE, "f1")
    assert made.check(frame("message", text="hi")) == Passed(FrameKind.MESSAGE)
    assert made.check(frame("fence", id="f2")) == Passed(FrameKind.FENCE, "f2")
    made.end()
    rulings = [made.check(frame("fence", id=f"e{number}")) for number in range(15)]
    assert [isinstance(ruling, Passed) for ruling in rulings] == [True] * 14 + [False]
    assert isinstance(made.check(frame("message", text="hi")), Refused)
