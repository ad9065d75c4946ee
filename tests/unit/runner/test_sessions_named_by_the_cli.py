"""The runner's side of a session whose id or store the CLI names itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.core.errors import LocatorMismatchError, LocatorRequiredError, ReasonedError
from runner.core.events import HandshakeAnswered, MessageStarted, NativeTurnEnded, SessionSeen
from runner.core.identity import IdentityJudge
from runner.core.locator_record import LocatorRecord
from runner.core.preparation import check_grant, check_named
from runner.core.values import NativeLocator
from runner.core.verdict import Verdict

WHOLE = NativeLocator("codex", "thread-1", "/workspace", ".codex/sessions/thread-1.jsonl")
OPEN = NativeLocator("codex", "", "/workspace", "")
STORE = "/members/1/.codex/sessions/thread-1.jsonl"
ENDED = NativeTurnEnded(failed=False, cancelled=False, reason=None, error=None, status=None)


def granted(locator: NativeLocator, *, names_session: str, resumes: bool = False) -> NativeLocator:
    return check_grant(
        record=LocatorRecord(),
        has_settled_turns=False,
        requested=None,
        granted=locator,
        resumes=resumes,
        agent="codex",
        names_session=names_session,
    )


def named(
    grant: NativeLocator = OPEN,
    admitted: NativeLocator | None = WHOLE,
    session_id: str | None = "thread-1",
    store: str | None = STORE,
    *,
    process_is_new: bool = True,
) -> NativeLocator:
    return check_named(
        granted=grant, admitted=admitted, session_id=session_id, store=store, process_is_new=process_is_new
    )


def test_a_grant_may_leave_open_only_what_the_cli_names_itself() -> None:
    assert granted(OPEN, names_session="CLI") == OPEN
    assert granted(replace(WHOLE, store=""), names_session="HOST").store == ""
    for locator, names_session, resumes in (
        (OPEN, "HOST", False),
        (OPEN, "CLI", True),
        (replace(WHOLE, store=""), "HOST", True),
    ):
        with pytest.raises(LocatorRequiredError):
            granted(locator, names_session=names_session, resumes=resumes)


def test_the_locator_is_whole_once_the_message_is_admitted() -> None:
    assert named() == WHOLE
    assert named(WHOLE, None, None, None) == WHOLE
    assert named(WHOLE, WHOLE, None, None, process_is_new=False) == WHOLE
    for admitted in (None, OPEN, replace(WHOLE, store="")):
        with pytest.raises(LocatorRequiredError):
            named(admitted=admitted)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"session_id": "thread-2"}, "NATIVE_SESSION_MISMATCH"),
        ({"store": STORE.replace("thread-1", "thread-2")}, "NATIVE_SESSION_MISMATCH"),
        ({"store": STORE.removesuffix(".jsonl")}, "NATIVE_SESSION_MISMATCH"),
        ({"session_id": None}, "IDENTITY_UNPROVEN"),
    ],
)
def test_an_admission_for_another_session_than_the_handshake_named_sends_nothing(
    changed: dict[str, str | None], reason: str
) -> None:
    with pytest.raises(ReasonedError) as raised:
        named(**changed)  # type: ignore[arg-type]  # the names are those of the parameters
    assert raised.value.reason == reason


def test_what_was_granted_stays() -> None:
    for part in ("agent", "native_session_id", "cwd", "store"):
        with pytest.raises(LocatorMismatchError):
            named(WHOLE, replace(WHOLE, **{part: "other"}))


def test_the_session_named_in_the_handshake_is_the_expected_one_from_then_on() -> None:
    judge = IdentityJudge(None, naming=frozenset({"turn/started"}))
    judge.observe(HandshakeAnswered("thread-1", STORE))
    assert judge.expected == "thread-1"
    judge.observe(MessageStarted())
    judge.observe(SessionSeen("thread-1", "turn/started"))
    judge.observe(ENDED)
    assert judge.verdict().verdict is Verdict.CONFIRMED
    judge.observe(SessionSeen("thread-2", "item/completed"))
    assert judge.verdict().verdict is Verdict.CONTRADICTED


def test_a_session_that_nobody_named_is_not_confirmed() -> None:
    judge = IdentityJudge(None, naming=frozenset({"turn/started"}))
    judge.observe(HandshakeAnswered(None))
    for body in (MessageStarted(), ENDED):
        judge.observe(body)
    assert judge.verdict().verdict is Verdict.UNPROVEN


def test_a_fence_before_the_message_names_its_turn_and_an_older_name_does_not() -> None:
    for opens_turn, expected in ((True, Verdict.CONFIRMED), (False, Verdict.UNPROVEN)):
        judge = IdentityJudge("s1", naming=frozenset({"get_state"}))
        judge.observe(SessionSeen("s1", "get_state", opens_turn))
        judge.observe(MessageStarted())
        judge.observe(ENDED)
        assert judge.verdict().verdict is expected
