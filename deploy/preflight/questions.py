"""The five groups of questions: a short history, a last question, and the facts that an answer must hold.

Pure: the words that make a repetition unlike another are arguments, so that no cache can answer for the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from direct_agent.transcript import AssistantMessage, Transcript, UserMessage


@dataclass(frozen=True, slots=True)
class Words:
    """What one repetition is about: a name, a code word, three file names, an old and a new number."""

    name: str
    code: str
    files: tuple[str, str, str]
    old_number: str
    new_number: str


@dataclass(frozen=True, slots=True)
class Question:
    """`facts`: each must be found in the answer; one of several spellings is enough. `has_history`: earlier turns exist."""

    group: str
    history: Transcript
    facts: tuple[tuple[str, ...], ...]
    has_history: bool = True


GROUPS = ("greeting", "repeated question", "task", "fact and update", "no history")


def questions(words: Words) -> Sequence[Question]:
    """One question a group, in the order of GROUPS."""
    first, second, third = words.files
    return (
        Question(
            GROUPS[0],
            _talk(
                f"Hello! My name is {words.name}.",
                f"Hello {words.name}, nice to meet you.",
                "Greet me again, by my name.",
            ),
            ((words.name,),),
        ),
        Question(
            GROUPS[1],
            _talk(
                f"The code word is {words.code}. What is the capital of Peru?",
                "The capital of Peru is Lima.",
                "What is the capital of Peru?",
                "It is Lima, as before.",
                "I asked you one question twice. Which capital was it about, and what is the code word I gave you before?",
            ),
            (("Lima", "Peru", "利马", "秘鲁"), (words.code,)),
        ),
        Question(
            GROUPS[2],
            _talk(
                f"Task: check three files one by one, {first}, {second} and {third}. Start with the first and tell me what is next.",
                f"I have checked {first}. Next is {second}.",
                "Which files of the task are not checked yet? Name them all.",
            ),
            ((second,), (third,)),
        ),
        Question(
            GROUPS[3],
            _talk(
                f"The shelf number is {words.old_number}.",
                f"Noted: shelf {words.old_number}.",
                f"It has been changed: the shelf number is now {words.new_number}.",
                "Noted.",
                "Which shelf number is the valid one now?",
            ),
            ((words.new_number,),),
        ),
        Question(GROUPS[4], _talk("How much is 17 plus 25? Answer with the number."), (("42",),), has_history=False),
    )


def _talk(*texts: str) -> Transcript:
    """User and assistant in turn, the user first and last."""
    return tuple(UserMessage(text) if at % 2 == 0 else AssistantMessage(text) for at, text in enumerate(texts))
