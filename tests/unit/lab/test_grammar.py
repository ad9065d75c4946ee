"""The default reply depends on the texts of the request and on nothing else."""

from __future__ import annotations

import pytest

from standfast_lab.provider.grammar import default_reply
from standfast_lab.provider.heard import Block, BlockKind, Message


def history(*texts: str) -> list[Message]:
    """User and assistant take turns, the user first."""
    roles = ("user", "assistant")
    return [Message(roles[i % 2], (Block(BlockKind.TEXT, text),)) for i, text in enumerate(texts)]


TOLD = ("remember: the word is plum", "noted: plum", "remember: the Colour is deep red.", "noted: deep red")


@pytest.mark.parametrize(
    ("texts", "reply"),
    [
        (("remember: the word is plum",), "noted: plum"),
        (("Remember:  milk and bread",), "noted: milk and bread"),
        ((*TOLD, "what is the word?"), "the word is plum"),
        ((*TOLD, "What is the colour"), "the colour is deep red"),
        ((*TOLD, "what is the name?"), "I do not know the name"),
        ((*TOLD, "remember: the word is fig", "noted: fig", "what is the word?"), "the word is fig"),
        ((*TOLD[2:], "what is the word?"), "I do not know the word"),
        ((*TOLD, 'what did you reply to "Remember: the word is plum"?'), "I replied: noted: plum"),
        ((*TOLD, "what did you reply to 'hello'"), "I have no reply to: hello"),
        ((*TOLD, "repeat your last reply"), "my last reply was: noted: deep red"),
        (("repeat your last reply.",), "I have no earlier reply"),
        ((*TOLD, "count"), "count: 3"),
        (("remember: the word is plum [[lab:status=529 times=1]]",), "noted: plum"),
        (("remember: the word is plum [[lab:slow=2x1ms]]", "noted: plum", "what is the word?"), "the word is plum"),
    ],
)
def test_the_reply_is_a_function_of_the_texts_sent(texts: tuple[str, ...], reply: str) -> None:
    assert default_reply(history(*texts)) == reply


def test_a_fact_that_only_the_assistant_states_was_not_told() -> None:
    assert default_reply(history("hi", "remember: the word is plum", "what is the word?")) == "I do not know the word"


def test_a_lost_reply_is_not_replaced_by_the_next_one() -> None:
    texts = [("user", "one"), ("user", "two"), ("assistant", "reply two"), ("user", 'what did you reply to "one"?')]
    messages = [Message(role, (Block(BlockKind.TEXT, text),)) for role, text in texts]
    assert default_reply(messages) == "I have no reply to: one"


def test_the_reply_after_a_tool_call_is_the_last_text_of_its_turn() -> None:
    call = Message("assistant", (Block(BlockKind.TEXT, "calling"), Block(BlockKind.TOOL_USE, "Bash", "t1")))
    result = Message("user", (Block(BlockKind.TOOL_RESULT, "hi", "t1"),))
    done = Message("assistant", (Block(BlockKind.TEXT, "done"),))
    asked = history("go")[0], call, result, done, history('what did you reply to "go"?')[0]
    assert default_reply(asked) == "I replied: done"


def test_what_the_cli_adds_is_not_what_the_user_said() -> None:
    first = Message(
        "user", (Block(BlockKind.REMINDER, "<system-reminder>x</system-reminder>"), Block(BlockKind.TEXT, "hi"))
    )
    added = ["[Request interrupted by user]\n", "Continue from where you left off."]
    others = [Message("user", (Block(BlockKind.TEXT, text),)) for text in added]
    assert default_reply([first, *others, *history("count")]) == "count: 2"


def test_an_echo_differs_with_every_earlier_text_role_and_order() -> None:
    histories = [("a", "b", "x"), ("a", "c", "x"), ("b", "a", "x"), ("x",), ("a", "b", "a", "b", "x"), ("ab", "", "x")]
    replies = {default_reply(history(*texts)) for texts in histories}
    assert len(replies) == len(histories)
    assert default_reply(history("a", "b", "x")) == default_reply(history("a", "b", "x"))
