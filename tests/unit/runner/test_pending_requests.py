"""Native requests of a turn: every state and event, and what an answer must look like."""

from __future__ import annotations

import itertools

import pytest

from runner.core.answers import (
    Answer,
    AnswerShapeError,
    PermissionAnswer,
    QuestionAnswer,
    RejectAnswer,
    check_answer,
)
from runner.core.events import NativeRequest, Question, QuestionOption
from runner.core.pending_requests import (
    OPEN_MAX,
    Answered,
    Asked,
    Event,
    Expired,
    NativeRequestClosedError,
    NativeRequestUnknownError,
    PendingRequests,
    RefuseNatively,
    RequestState,
    SendAnswer,
    ShowEnd,
    ShowRequest,
    StopUnanswered,
    TurnStopping,
    Withdrawn,
    answer_word,
)

COLOUR = Question("Colour", "Which colour?", (QuestionOption("Red", "warm"), QuestionOption("Blue", "cold")))
FRUITS = Question("Fruit", "Which fruits?", (QuestionOption("Apple", ""), QuestionOption("Pear", "")), multiple=True)
OPEN_TEXT = Question("Name", "Which name?", (QuestionOption("Ada", ""),), free_text=True)
ALLOW = PermissionAnswer(allow=True)


def permission(request_id: str = "r1") -> NativeRequest:
    return NativeRequest(request_id, "permission", "{}", tool="Bash")


def question(request_id: str = "r1", *questions: Question) -> NativeRequest:
    return NativeRequest(request_id, "question", "{}", tool="Ask", questions=questions or (COLOUR,))


def asking(request: NativeRequest, *, mode: str = "ask", rejects: bool = True) -> PendingRequests:
    pending = PendingRequests(mode, rejects_questions=rejects)
    pending.step(Asked(request))
    return pending


# --- asking -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("mode", "request_", "waits"),
    [
        ("ask", permission(), True),
        ("ask", question(), True),
        ("auto", permission(), False),
        ("auto", question(), True),
        ("deny", permission(), False),
        ("deny", question(), True),
        ("ask", NativeRequest("r1", "other", "{}"), False),
    ],
)
def test_who_is_asked_depends_on_mode_and_kind(mode: str, request_: NativeRequest, waits: bool) -> None:
    pending = PendingRequests(mode, rejects_questions=True)
    assert pending.would_wait(request_) is waits
    effects = pending.step(Asked(request_))
    assert effects[0] == ShowRequest(request_, waits=waits)
    assert pending.open == ((request_,) if waits else ())


def test_the_mode_auto_allows_a_permission_and_deny_refuses_it_with_nobody_asked() -> None:
    for mode, allow in (("auto", True), ("deny", False)):
        effects = PendingRequests(mode, rejects_questions=True).step(Asked(permission()))
        [sent] = [effect for effect in effects if isinstance(effect, SendAnswer)]
        assert isinstance(sent.answer, PermissionAnswer)
        assert sent.answer.allow is allow
        assert effects[-1] == ShowEnd("r1", RequestState.BY_MODE, sent.answer)


def test_no_mode_answers_a_question_for_anybody() -> None:
    for mode in ("auto", "ask", "deny"):
        effects = PendingRequests(mode, rejects_questions=True).step(Asked(question()))
        assert effects == [ShowRequest(question(), waits=True)]


def test_a_request_of_an_unknown_kind_gets_a_protocol_error_and_no_silence() -> None:
    other = NativeRequest("r1", "other", "{}")
    effects = PendingRequests("ask", rejects_questions=True).step(Asked(other))
    assert effects == [
        ShowRequest(other, waits=False),
        RefuseNatively("r1"),
        ShowEnd("r1", RequestState.REFUSED, None),
    ]


def test_one_request_too_many_is_refused_natively_and_the_open_ones_stay() -> None:
    pending = PendingRequests("ask", rejects_questions=True)
    for number in range(OPEN_MAX):
        pending.step(Asked(permission(f"r{number}")))
    effects = pending.step(Asked(permission("one more")))
    assert RefuseNatively("one more") in effects
    assert len(pending.open) == OPEN_MAX
    pending.step(Answered("r0", ALLOW))
    assert pending.step(Asked(permission("next"))) == [ShowRequest(permission("next"), waits=True)]


def test_the_same_request_said_twice_asks_once() -> None:
    pending = asking(permission())
    assert pending.step(Asked(permission())) == []
    pending.step(Answered("r1", ALLOW))
    assert pending.step(Asked(permission())) == []
    assert pending.open == ()


# --- answering ----------------------------------------------------------------------------------------------------------
def test_an_answer_goes_out_once_and_the_same_one_again_is_already_so() -> None:
    pending = asking(permission())
    assert pending.step(Answered("r1", ALLOW)) == [
        SendAnswer("r1", ALLOW),
        ShowEnd("r1", RequestState.ANSWERED, ALLOW),
    ]
    assert pending.step(Answered("r1", ALLOW)) == []
    with pytest.raises(NativeRequestClosedError) as refused:
        pending.step(Answered("r1", PermissionAnswer(allow=False)))
    assert refused.value.metadata["end"] == "ANSWERED"


def test_an_answer_to_a_request_that_nobody_made_is_refused() -> None:
    with pytest.raises(NativeRequestUnknownError):
        asking(permission()).step(Answered("r2", ALLOW))


def test_an_answer_of_the_wrong_shape_leaves_the_request_open() -> None:
    pending = asking(question())
    with pytest.raises(AnswerShapeError):
        pending.step(Answered("r1", ALLOW))
    assert pending.open == (question(),)
    assert pending.step(Answered("r1", QuestionAnswer((("Blue",),)))) != []


ENDS: list[tuple[Event, RequestState]] = [
    (Answered("r1", ALLOW), RequestState.ANSWERED),
    (Expired("r1"), RequestState.EXPIRED),
    (Withdrawn("r1"), RequestState.WITHDRAWN),
    (TurnStopping(), RequestState.CANCELLED),
]


@pytest.mark.parametrize(("first", "second"), list(itertools.product(ENDS, ENDS)))
def test_what_ended_a_request_is_its_end_and_sends_nothing_more(
    first: tuple[Event, RequestState], second: tuple[Event, RequestState]
) -> None:
    pending = asking(permission())
    [end] = [effect for effect in pending.step(first[0]) if isinstance(effect, ShowEnd)]
    assert end.state is first[1]
    if isinstance(second[0], Answered) and first[1] is not RequestState.ANSWERED:
        with pytest.raises(NativeRequestClosedError):
            pending.step(second[0])
    else:
        assert pending.step(second[0]) == []
    assert pending.open == ()


def test_an_expired_permission_gets_the_native_refusal() -> None:
    effects = asking(permission(), rejects=False).step(Expired("r1"))
    [sent] = [effect for effect in effects if isinstance(effect, SendAnswer)]
    assert isinstance(sent.answer, PermissionAnswer)
    assert not sent.answer.allow
    assert not any(isinstance(effect, StopUnanswered) for effect in effects)


def test_an_expired_question_is_rejected_where_that_can_be_and_else_the_turn_is_stopped_for_it() -> None:
    effects = asking(question()).step(Expired("r1"))
    assert isinstance(effects[0], SendAnswer)
    assert isinstance(effects[0].answer, RejectAnswer)
    effects = asking(question(), rejects=False).step(Expired("r1"))
    assert effects == [ShowEnd("r1", RequestState.EXPIRED, None), StopUnanswered("r1")]


def test_a_turn_that_stops_cancels_what_is_open_and_opens_nothing_more() -> None:
    pending = asking(permission("r1"))
    pending.step(Asked(question("r2")))
    assert pending.step(TurnStopping()) == [
        ShowEnd("r1", RequestState.CANCELLED, None),
        ShowEnd("r2", RequestState.CANCELLED, None),
    ]
    late = pending.step(Asked(permission("r3")))
    assert late == [ShowRequest(permission("r3"), waits=False), ShowEnd("r3", RequestState.CANCELLED, None)]


def test_an_answer_has_a_word_for_the_client() -> None:
    answers: list[tuple[Answer | None, str]] = [
        (ALLOW, "ALLOW"),
        (PermissionAnswer(allow=False), "DENY"),
        (RejectAnswer("no"), "DENY"),
        (QuestionAnswer((("Red",),)), "ANSWER"),
        (None, ""),
    ]
    assert [answer_word(answer) for answer, _ in answers] == [word for _, word in answers]


# --- shapes -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (permission(), ALLOW),
        (permission(), PermissionAnswer(allow=False, message="not now")),
        (question(), QuestionAnswer((("Red",),))),
        (question(), RejectAnswer("nobody is here")),
        (question("r1", COLOUR, FRUITS), QuestionAnswer((("Blue",), ("Apple", "Pear")))),
        (question("r1", OPEN_TEXT), QuestionAnswer((("Grace",),))),
    ],
)
def test_an_answer_that_fits_is_taken(request_: NativeRequest, answer: Answer) -> None:
    check_answer(request_, answer)


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (permission(), QuestionAnswer((("Red",),))),
        (permission(), RejectAnswer("no")),
        (permission(), PermissionAnswer(allow=False, message="x" * 5000)),
        (permission(), PermissionAnswer(allow=False, message="a\0b")),
        (question(), ALLOW),
        (question(), QuestionAnswer(())),
        (question(), QuestionAnswer(((),))),
        (question(), QuestionAnswer((("Red",), ("Blue",)))),
        (question(), QuestionAnswer((("Red", "Blue"),))),
        (question(), QuestionAnswer((("",),))),
        (question(), QuestionAnswer(((" ",),))),
        (question(), QuestionAnswer((("red",),))),
        (question("r1", COLOUR, FRUITS), QuestionAnswer((("Red",),))),
        (question("r1", FRUITS), QuestionAnswer((("Apple", "Apple"),))),
        (question("r1", FRUITS), QuestionAnswer((("Apple", "Plum"),))),
        (question("r1", OPEN_TEXT), QuestionAnswer((("x" * 20000,),))),
        (NativeRequest("r1", "other", "{}"), ALLOW),
        (NativeRequest("r1", "other", "{}"), RejectAnswer("no")),
    ],
)
def test_an_answer_that_does_not_fit_is_refused_with_what_was_expected_and_found(
    request_: NativeRequest, answer: Answer
) -> None:
    with pytest.raises(AnswerShapeError) as refused:
        check_answer(request_, answer)
    assert refused.value.metadata["expected"]
    assert refused.value.metadata["found"]
