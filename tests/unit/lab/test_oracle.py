"""The oracle is tried: each way to spoil a history is named with its place.

What Claude adds by itself is not held against it.
"""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from standfast_lab.oracle import Difference, Fault, Outcome, Place, State, Turn, Verdict, judge_request, judge_session

Said = tuple[str, str]
TURNS = (
    Turn("remember: the word is plum", ("noted: plum",)),
    Turn("again", ("looking", "echo 2")),
    Turn("again", ("echo 3",)),
    Turn("what is the word?", ("the word is plum",)),
)
ASKED = Turn("and now?", ("later",))
SAID: list[Said] = [
    ("user", "remember: the word is plum"),
    ("assistant", "noted: plum"),
    ("user", "again"),
    ("assistant", "looking"),
    ("assistant", "echo 2"),
    ("user", "again"),
    ("assistant", "echo 3"),
    ("user", "what is the word?"),
    ("assistant", "the word is plum"),
    ("user", "and now?"),
]


def row(said: list[Said], n: int = 1, session: str = "s", is_root: bool = True) -> dict[str, Any]:
    """A log row with one message a text, as a plain client sends it."""
    return row_of([(role, [text]) for role, text in said], n, session, is_root)


def row_of(
    messages: list[tuple[str, list[str]]], n: int = 1, session: str = "s", is_root: bool = True
) -> dict[str, Any]:
    rows = [
        {"role": role, "texts": texts, "tools": [], "reminders": [], "blocks": [["text", i] for i in range(len(texts))]}
        for role, texts in messages
    ]
    return {"n": n, "session_id": session, "is_root": is_root, "messages": rows}


def judge(said: list[Said], turns: tuple[Turn, ...] = TURNS) -> Verdict:
    return judge_request(row(said), turns, ASKED)


def without(place: int) -> list[Said]:
    return SAID[:place] + SAID[place + 1 :]


def test_a_whole_history_is_complete() -> None:
    verdict = judge(SAID)
    assert verdict == Verdict(State.COMPLETE, request_n=1)
    assert verdict.is_complete


REPLIES = {
    1: Place(1, "assistant"),
    3: Place(2, "assistant", 0),
    4: Place(2, "assistant", 1),
    6: Place(3, "assistant"),
    8: Place(4, "assistant"),
}
USERS = {0: Place(1, "user"), 7: Place(4, "user")}


@pytest.mark.parametrize(("at", "place"), [*REPLIES.items(), *USERS.items()])
def test_one_dropped_text_is_missing_at_its_place(at: int, place: Place) -> None:
    verdict = judge(without(at))
    assert (verdict.state, verdict.turn) == (State.MISSING, place.turn)
    assert verdict.differences == (Difference(Fault.MISSING, place),)
    assert not verdict.is_complete


def test_a_repeat_that_was_dropped_is_missing_though_its_twin_is_there() -> None:
    verdict = judge(without(5))
    assert [d.fault for d in verdict.differences] == [Fault.MISSING]
    assert verdict.turn == 3


@pytest.mark.parametrize(("at", "place"), REPLIES.items())
def test_one_doubled_reply_is_named_at_its_place(at: int, place: Place) -> None:
    verdict = judge([*SAID[: at + 1], *SAID[at:]])
    assert [(d.fault, d.place) for d in verdict.differences] == [(Fault.DOUBLED, place)]
    assert (verdict.state, verdict.turn) == (State.CHANGED, place.turn)


@pytest.mark.parametrize(("a", "b"), [(1, 6), (1, 4), (3, 8), (4, 8), (3, 4)])
def test_two_swapped_replies_are_named_with_both_places(a: int, b: int) -> None:
    said = list(SAID)
    said[a], said[b] = said[b], said[a]
    verdict = judge(said)
    assert [d.fault for d in verdict.differences] == [Fault.SWAPPED]
    assert {verdict.differences[0].place, verdict.differences[0].other} == {REPLIES[a], REPLIES[b]}


def test_a_swapped_user_text_and_reply_are_named_with_both_places() -> None:
    said = list(SAID)
    said[7], said[8] = said[8], said[7]
    verdict = judge(said)
    assert [d.fault for d in verdict.differences] == [Fault.SWAPPED]
    assert {verdict.differences[0].place, verdict.differences[0].other} == {Place(4, "user"), Place(4, "assistant")}


@pytest.mark.parametrize(("at", "place"), [*REPLIES.items(), *USERS.items()])
def test_one_changed_role_is_named_at_its_place(at: int, place: Place) -> None:
    other = "user" if SAID[at][0] == "assistant" else "assistant"
    verdict = judge([*SAID[:at], (other, SAID[at][1]), *SAID[at + 1 :]])
    assert verdict.differences == (Difference(Fault.ROLE_CHANGED, place, (at, 0), role_found=other),)


@pytest.mark.parametrize(("at", "place"), [*REPLIES.items(), *USERS.items()])
@pytest.mark.parametrize("char", [0, 2, None])
def test_one_added_space_is_named_with_its_character(at: int, place: Place, char: int | None) -> None:
    role, text = SAID[at]
    char = len(text) if char is None else char
    verdict = judge([*SAID[:at], (role, text[:char] + " " + text[char:]), *SAID[at + 1 :]])
    assert verdict.differences == (Difference(Fault.TEXT_CHANGED, place, (at, 0), first_differing_char=char),)
    assert str(verdict) == f"CHANGED{{{place.turn}}}: TEXT_CHANGED {place} at character {char} (message {at}, block 0)"


def test_a_foreign_text_is_unexpected_after_the_text_before_it() -> None:
    verdict = judge([*SAID[:2], ("assistant", "something else"), *SAID[2:]])
    assert [(d.fault, d.place) for d in verdict.differences] == [(Fault.UNEXPECTED, Place(1, "assistant"))]
    before_all = judge([("user", "something else"), *SAID])
    assert [(d.fault, d.place) for d in before_all.differences] == [(Fault.UNEXPECTED, None)]
    assert not before_all.is_complete


def test_several_faults_are_all_named_in_order() -> None:
    said = [SAID[0], *SAID[2:8], ("assistant", "the word is  plum"), SAID[9]]
    verdict = judge(said)
    assert [(d.fault, d.place and d.place.turn) for d in verdict.differences] == [
        (Fault.MISSING, 1),
        (Fault.TEXT_CHANGED, 4),
    ]
    assert (verdict.state, verdict.turn) == (State.MISSING, 1)


def test_the_text_invented_after_a_lost_reply_does_not_stand_for_it() -> None:
    verdict = judge([*SAID[:6], ("assistant", "No response requested."), *SAID[7:]])
    assert verdict.differences == (Difference(Fault.MISSING, Place(3, "assistant")),)
    assert verdict.additions == ("No response requested.",)


def test_a_text_like_an_addition_counts_where_it_was_really_said() -> None:
    turns = (Turn("hi", ("No response requested.",)),)
    assert judge([("user", "hi"), ("assistant", "No response requested."), ("user", "and now?")], turns).is_complete
    assert str(judge([("user", "hi"), ("user", "and now?")], turns)).startswith("MISSING{1}")


def test_the_line_feed_of_joined_user_texts_is_allowed_only_where_claude_joins() -> None:
    turns = (Turn("fails", (), Outcome.FAILED), Turn("works", ("ok",)))
    joined = row_of([("user", ["fails\n", "works"]), ("assistant", ["ok"]), ("user", ["and now?"])])
    assert judge_request(joined, turns, ASKED).is_complete
    elsewhere = row_of([("user", ["fails\n"]), ("user", ["works"]), ("assistant", ["ok"]), ("user", ["and now?"])])
    assert [d.fault for d in judge_request(elsewhere, turns, ASKED).differences] == [Fault.TEXT_CHANGED]
    at_the_end = row_of([("user", ["fails\n", "works\n"]), ("assistant", ["ok"]), ("user", ["and now?"])])
    assert [d.fault for d in judge_request(at_the_end, turns, ASKED).differences] == [Fault.TEXT_CHANGED]
    twice = row_of([("user", ["fails\n\n", "works"]), ("assistant", ["ok"]), ("user", ["and now?"])])
    assert [d.fault for d in judge_request(twice, turns, ASKED).differences] == [Fault.TEXT_CHANGED]


def test_a_failed_turns_user_text_must_last() -> None:
    turns = (Turn("fails", (), Outcome.FAILED),)
    assert judge([("user", "fails"), ("user", "and now?")], turns).is_complete
    assert str(judge([("user", "and now?")], turns)) == "MISSING{1}: MISSING turn 1 user text 0"


def test_a_partial_reply_of_an_interrupted_turn_is_not_judged() -> None:
    turns = (Turn("go", ("whole reply",), Outcome.NOT_ENDED), Turn("more", ("ok",)))
    marker = ("user", "[Request interrupted by user]")
    said = [
        ("user", "go"),
        ("assistant", "whole re"),
        marker,
        ("user", "more"),
        ("assistant", "ok"),
        ("user", "and now?"),
    ]
    verdict = judge(said, turns)
    assert verdict.is_complete
    assert verdict.additions == ("whole re", "[Request interrupted by user]")
    # The same stray text after a turn that did end is held against the history.
    assert not judge([*said[:5], ("assistant", "whole re"), said[5]], turns).is_complete


def test_system_reminders_are_passed_over_unless_a_user_said_them() -> None:
    reminder = "<system-reminder>\nsaid by the user\n</system-reminder>"
    block = {"sha256": hashlib.sha256(reminder.encode()).hexdigest(), "chars": len(reminder), "head": reminder[:10]}
    first = {
        "role": "user",
        "texts": ["hi"],
        "tools": [],
        "reminders": [block],
        "blocks": [["reminder", 0], ["text", 0]],
    }
    sent = {"n": 1, "session_id": "s", "is_root": True, "messages": [first]}
    assert judge_request(sent, (), Turn("hi")).is_complete
    said_both = judge_request(sent, (Turn(reminder, (), Outcome.FAILED),), Turn("hi"))
    assert said_both.is_complete
    # Said once and sent twice is once too often.
    twice = {**first, "reminders": [block, block], "blocks": [["reminder", 0], ["reminder", 1], ["text", 0]]}
    doubled = judge_request({**sent, "messages": [twice]}, (Turn(reminder, (), Outcome.FAILED),), Turn("hi"))
    assert [d.fault for d in doubled.differences] == [Fault.DOUBLED]


def test_a_compacted_history_is_called_so_and_its_tail_is_still_judged() -> None:
    summary = (
        "user",
        "This session is being continued from a previous conversation that ran out of context. Facts: plum.",
    )
    assert judge([summary, *SAID[5:]]).state is State.COMPACTED
    assert str(judge([summary, SAID[5], *SAID[7:]])).startswith("MISSING{3}")


def test_the_last_root_request_of_the_session_is_judged_and_no_other() -> None:
    rows = [row(without(1), 1), row(SAID, 2), row(without(1), 3, is_root=False), row(without(1), 4, session="other")]
    verdict = judge_session(rows, "s", (*TURNS, ASKED))
    assert (verdict.state, verdict.request_n) == (State.COMPLETE, 2)


def test_a_session_without_a_root_request_is_unobserved() -> None:
    assert judge_session([row(SAID, is_root=False)], "s", (*TURNS, ASKED)).state is State.UNOBSERVED
    assert judge_session([], "s", (*TURNS, ASKED)).state is State.UNOBSERVED


def test_a_long_history_is_judged_without_comparing_every_pair() -> None:
    turns = tuple(Turn(f"u{i}", (f"a{i}",)) for i in range(3000))
    said = [s for t in turns for s in (("user", t.user), ("assistant", t.replies[0]))] + [("user", "and now?")]
    assert judge(said, turns).is_complete
    assert str(judge(said[:3001] + said[3002:], turns)).startswith("MISSING{1501}")
