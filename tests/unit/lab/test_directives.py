"""Lab words are read exactly, and a wrong one says what was expected."""

from __future__ import annotations

import json

import pytest

from standfast_lab.provider.answer import Answer, Fault, How, Stop, Text, Thinking, Where
from standfast_lab.provider.directives import (
    Directive,
    DirectiveError,
    apply_directives,
    find_directives,
    parse_directive,
    without_directives,
)

BASE = Answer("grammar", (Text("reply"),))


def applied(word: str) -> Answer:
    return apply_directives(BASE, [parse_directive(word)])


def test_words_are_found_in_order_and_taken_out_and_nothing_else_changes() -> None:
    text = "a [[lab:status=529 times=1]] b\n[[lab:slow=20x50ms]]"
    assert [(d.name, d.value, d.times) for d in find_directives(text)] == [
        ("status", "529", 1),
        ("slow", "20x50ms", None),
    ]
    assert without_directives(text) == "a  b\n"


def test_a_text_without_words_or_with_an_unclosed_one_stays_as_it_is() -> None:
    for text in ("plain [[x]]", "open [[lab:status=403", "[[lab", "]] [["):
        assert find_directives(text) == []
        assert without_directives(text) == text


def test_words_nest_in_a_sub_agents_prompt() -> None:
    (word,) = find_directives("go [[lab:task [[lab:status=529 times=1]] count]] end")
    assert word == Directive("task", "[[lab:status=529 times=1]] count")


def test_a_tools_input_may_end_in_brackets() -> None:
    (word,) = find_directives('[[lab:tool=X {"a":[[1]]}]]')
    assert json.loads(word.options["input"]) == {"a": [[1]]}
    (word,) = find_directives('[[lab:tool=X {"a":[1],"b":"]] [[lab:empty]]"}]] then')
    assert json.loads(word.options["input"]) == {"a": [1], "b": "]] [[lab:empty]]"}


def test_say_is_verbatim_behind_one_space() -> None:
    (word,) = find_directives("[[lab:say   two\n ]]")
    assert word.value == "  two\n "


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        ("say x", Answer("say", (Text("x"),))),
        ("empty", Answer("empty", ())),
        ("refusal", Answer("refusal", (), Stop.REFUSAL)),
        ("max_tokens", Answer("max_tokens", BASE.parts, Stop.MAX_TOKENS)),
        ("think=hm", Answer("think", (Thinking("hm"), Text("reply")))),
        ("slow=20x50ms", Answer("slow", BASE.parts, deltas=20, delta_delay_s=0.05)),
        ("latency=1.5s", Answer("latency", BASE.parts, latency_s=1.5)),
        ("cut", Answer("cut", BASE.parts, fault=Fault(Where.MID_TEXT, How.CUT))),
        ("cut=mid-event pause=200ms", Answer("cut", BASE.parts, fault=Fault(Where.MID_EVENT, How.CUT, pause_s=0.2))),
        ("end=mid-event", Answer("end", BASE.parts, fault=Fault(Where.MID_EVENT, How.END))),
        ("hang", Answer("hang", BASE.parts, fault=Fault(Where.BEFORE_HEAD, How.HANG))),
        ("hang=mid-text", Answer("hang", BASE.parts, fault=Fault(Where.MID_TEXT, How.HANG))),
        (
            "error-event=api_error",
            Answer("error-event", BASE.parts, fault=Fault(Where.MID_TEXT, How.ERROR_EVENT, "api_error")),
        ),
    ],
)
def test_each_word_changes_the_answer_in_its_own_way(word: str, answer: Answer) -> None:
    assert applied(word) == answer


@pytest.mark.parametrize(
    ("word", "status", "kind", "message", "retry_after_s"),
    [
        ("status=403", 403, "permission_error", "lab: status 403", None),
        (
            'status=400 message="prompt is too long: 2 > 1"',
            400,
            "invalid_request_error",
            "prompt is too long: 2 > 1",
            None,
        ),
        ("status=529 type=x", 529, "x", "lab: status 529", None),
        ("retry-after=1", 429, "rate_limit_error", "lab: status 429", 1.0),
    ],
)
def test_a_status_has_the_error_type_of_the_protocol(
    word: str, status: int, kind: str, message: str, retry_after_s: float | None
) -> None:
    answer = applied(word)
    assert (answer.status, answer.error_type, answer.error_message) == (status, kind, message)
    assert answer.retry_after_s == retry_after_s


def test_a_retry_after_goes_with_the_status_beside_it() -> None:
    answer = apply_directives(BASE, find_directives("[[lab:status=529]][[lab:retry-after=2s]]"))
    assert (answer.status, answer.retry_after_s) == (529, 2.0)


@pytest.mark.parametrize(("word", "size"), [("long=5B", 5), ("long=7", 7), ("long=3KiB", 3072), ("long=8MiB", 8 << 20)])
def test_a_long_reply_has_exactly_that_many_bytes(word: str, size: int) -> None:
    (part,) = applied(word).parts
    assert isinstance(part, Text)
    assert len(part.text.encode()) == size


@pytest.mark.parametrize(
    ("word", "complaint"),
    [
        ("nonsense", "no such word"),
        ("status=200", "expected 400 to 599"),
        ("status=x", "not a whole number"),
        ("cut=here", "expected one of"),
        ("end=mid-chunk", "use cut"),
        ("slow=20", "not a duration"),
        ("long=1GiB", "expected 1B to 64MiB"),
        ("tool=X {", "not JSON"),
        ("tool=X [1]", "must be a JSON object"),
        ('status=403 message="open', "quotes do not match"),
        ("empty times=x", "not a whole number"),
    ],
)
def test_a_wrong_word_says_what_was_expected(word: str, complaint: str) -> None:
    with pytest.raises(DirectiveError, match=complaint):
        applied(word)
