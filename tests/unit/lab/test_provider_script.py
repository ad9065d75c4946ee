"""Which answer is given when: steps first, then words, then the grammar; each as often as it says."""

from __future__ import annotations

import pytest

from standfast_lab.provider import DirectiveError, Step
from standfast_lab.provider.answer import Text, ToolCall
from standfast_lab.provider.heard import Block, BlockKind, Heard, Kind, Message
from standfast_lab.provider.script import Script


def heard(
    *messages: Message | str, session: str | None = "s", kind: Kind = Kind.ROOT, tools: tuple[str, ...] = ()
) -> Heard:
    whole = tuple(m if isinstance(m, Message) else Message("user", (Block(BlockKind.TEXT, m),)) for m in messages)
    return Heard(kind, "m", True, session, whole, tools)


def step(**value: object) -> Script:
    script = Script()
    script.add([value])
    return script


def test_a_word_works_as_often_as_it_says_for_each_session_and_text() -> None:
    script = Script()
    text = "hi [[lab:status=529 times=2]]"
    assert [script.decide(heard(text)).status for _ in range(4)] == [529, 529, 200, 200]
    assert script.decide(heard(text, session="other")).status == 529
    assert script.decide(heard("again " + text)).status == 529


def test_a_word_in_an_earlier_text_does_not_work_any_more() -> None:
    reply = Message("assistant", (Block(BlockKind.TEXT, "x"),))
    assert Script().decide(heard("hi [[lab:status=403]]", reply, "next")).status == 200


def test_a_text_that_the_cli_joined_with_its_own_counts_as_the_same() -> None:
    script = Script()
    text = "hi [[lab:status=529 times=1]]"
    assert script.decide(heard(text)).status == 529
    assert script.decide(heard(text + "\n", "Continue from where you left off.")).status == 200


def test_a_step_for_the_second_root_request_counts_root_requests_only() -> None:
    script = step(root=2, do="status=403")
    kinds = (Kind.SUBAGENT, Kind.ROOT, Kind.SIDE, Kind.ROOT, Kind.ROOT)
    assert [script.decide(heard("x", kind=kind)).status for kind in kinds] == [200, 200, 200, 403, 200]


def test_a_step_with_a_session_counts_that_sessions_requests() -> None:
    script = step(root=2, session="b", do="status=403")
    sessions = ("a", "b", "a", "b")
    assert [script.decide(heard("x", session=session)).status for session in sessions] == [200, 200, 200, 403]


def test_a_step_by_text_wears_out_unless_told_otherwise() -> None:
    script = step(text="plum", do=["status=529"])
    assert [script.decide(heard(t)).status for t in ("fig", "a plum", "a plum")] == [200, 529, 200]
    always = step(text="plum", times=0, do=["status=529"])
    assert [always.decide(heard("plum")).status for _ in range(3)] == [529] * 3


def test_a_step_goes_before_the_words_of_the_text() -> None:
    script = step(do="say from the step")
    assert script.decide(heard("hi [[lab:status=403]]")).parts == (Text("from the step"),)
    assert script.decide(heard("hi [[lab:status=403]]")).status == 403


def test_reset_forgets_steps_and_counters() -> None:
    script = step(times=0, do="status=403")
    script.decide(heard("hi [[lab:status=529 times=1]]"))
    script.clear()
    assert script.steps == ()
    assert script.decide(heard("hi [[lab:status=529 times=1]]")).status == 529


def test_tools_are_called_one_after_the_other_and_then_the_reply_follows() -> None:
    text = 'go [[lab:tool=Bash {"command":"a"}]] [[lab:tool=Read {"path":"b"}]]'
    call = Message("assistant", (Block(BlockKind.TOOL_USE, "Bash", "1"),))
    result = Message("user", (Block(BlockKind.TOOL_RESULT, "", "1"),))
    script = Script()
    calls = [script.decide(heard(text, *[call, result] * done)).parts[0] for done in range(3)]
    assert calls[0] == ToolCall("Bash", '{"command":"a"}')
    assert calls[1] == ToolCall("Read", '{"path":"b"}')
    assert isinstance(calls[2], Text)


@pytest.mark.parametrize(("tools", "name"), [(("Task",), "Task"), (("Agent", "Bash"), "Agent"), ((), "Agent")])
def test_a_task_calls_the_sub_agent_tool_by_the_name_on_offer(tools: tuple[str, ...], name: str) -> None:
    (call,) = Script().decide(heard("go [[lab:task say hi]]", tools=tools)).parts
    assert isinstance(call, ToolCall)
    assert call.name == name
    assert '"prompt": "say hi"' in call.arguments


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("x", "expected an object"),
        ({"do": "status=403", "wen": 1}, "unknown keys"),
        ({"root": 1}, "`do` must be"),
        ({"do": ["no-such"]}, "no such word"),
        ({"do": "empty", "times": -1}, "`times` must be"),
        ({"do": "empty", "root": "2"}, "`root` is a number"),
        ({"do": "empty", "kind": "boss"}, "`kind` must be one of"),
    ],
)
def test_a_bad_step_is_refused_and_adds_none(value: object, complaint: str) -> None:
    script = Script()
    with pytest.raises(DirectiveError, match=complaint):
        script.add([{"do": "empty"}, value])
    assert script.steps == ()


def test_a_step_may_be_given_as_a_value() -> None:
    script = Script()
    script.add([Step.from_json({"do": "status=403", "kind": "subagent"})])
    assert script.decide(heard("x")).status == 200
    assert script.decide(heard("x", kind=Kind.SUBAGENT)).status == 403
