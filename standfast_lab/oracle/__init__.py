"""The history oracle: does a request carry every text of the conversation, in order, with roles and repeat counts?"""

from standfast_lab.oracle.conversation import Outcome, Place, Turn
from standfast_lab.oracle.judge import judge_request, judge_roots, judge_session, rows_of_talk
from standfast_lab.oracle.verdict import Difference, Fault, State, Verdict

__all__ = [
    "Difference",
    "Fault",
    "Outcome",
    "Place",
    "State",
    "Turn",
    "Verdict",
    "judge_request",
    "judge_roots",
    "judge_session",
    "rows_of_talk",
]
