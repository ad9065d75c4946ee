"""Which answers count as recalled: expected facts, and sentences that say the history cannot be seen."""

from __future__ import annotations

import pytest

from deploy.preflight.judgement import judge, lost_history_sentence
from deploy.preflight.questions import GROUPS, Words, questions
from direct_agent.transcript import AssistantMessage, UserMessage

WORDS = Words("Mirella", "tangerine-5f", ("a_1.txt", "b_2.txt", "c_3.txt"), "7312", "9458")


@pytest.mark.parametrize(
    "sentence",
    [
        "I don't have access to our previous conversation.",
        "I\N{RIGHT SINGLE QUOTATION MARK}m sorry, but I cannot see any earlier messages.",
        "There is no previous context in this chat.",
        "I do not have any memory of that.",
        "I can't recall what you said before.",
        "This appears to be the first message you sent.",
        "We are at the beginning of our conversation.",
        "Each conversation starts fresh.",
        "You haven't told me your name yet.",
        "我看不到之前的对话。",
        "抱歉\N{FULLWIDTH COMMA}我无法访问历史记录。",
        "这是我们的第一条消息。",
        "没有任何对话记录。",
        "我们的对话刚开始。",
        "您没有告诉我您的名字。",
        "我不记得先前的内容",
    ],
)
def test_a_sentence_of_lost_history_is_found(sentence: str) -> None:
    assert lost_history_sentence(f"Hello. {sentence} 42") is not None
    assert not judge(f"{sentence} 42", [("42",)]).recalled


@pytest.mark.parametrize(
    "sentence",
    [
        "Hello again, Mirella!",
        "The question was about Peru; the code word is tangerine-5f.",
        "b_2.txt and c_3.txt have not been checked yet.",
        "The valid shelf number is 9458, not 7312.",
        "17 + 25 = 42",
        "你好\N{FULLWIDTH COMMA}Mirella\N{FULLWIDTH EXCLAMATION MARK}",
        "现在有效的货架号是9458。",
    ],
)
def test_a_good_answer_is_not_flagged(sentence: str) -> None:
    assert lost_history_sentence(sentence) is None


def test_a_quoted_sentence_may_be_flagged_and_that_is_said_elsewhere() -> None:
    assert lost_history_sentence('It would be wrong to say "I cannot see our earlier conversation".') is not None


@pytest.mark.parametrize("answer", ["\uff19\uff14\uff15\uff18", "**9458**", "It is 9458."])
def test_facts_are_found_in_other_forms(answer: str) -> None:
    assert judge(answer, [("9458",)]).recalled


def test_one_of_several_spellings_is_enough_and_each_fact_is_needed() -> None:
    facts = [("Lima", "利马"), ("tangerine-5f",)]
    assert judge("利马, tangerine-5f", facts).recalled
    assert judge("Lima", facts).missing_facts == ("tangerine-5f",)


def test_every_group_asks_once_ends_with_the_user_and_hides_its_facts_in_the_history() -> None:
    asked = questions(WORDS)
    assert tuple(question.group for question in asked) == GROUPS
    for question in asked:
        last = question.history[-1]
        assert isinstance(last, UserMessage)
        roles = [type(message) for message in question.history]
        assert roles == [UserMessage if at % 2 == 0 else AssistantMessage for at in range(len(roles))]
        for spellings in question.facts:
            # The last question alone must not give the answer away.
            assert not any(each in last.text for each in spellings if question.has_history and each not in ("Peru",))
        assert question.has_history == (len(question.history) > 1)
