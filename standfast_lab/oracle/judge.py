"""Decides from the lab's log whether a request carried the whole conversation.

It judges what the provider received, not what the model made of it. It does not judge tool calls, only texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from standfast_lab.oracle.compare import compare
from standfast_lab.oracle.conversation import Turn, wanted_texts
from standfast_lab.oracle.observed import seen_texts
from standfast_lab.oracle.verdict import State, Verdict
from standfast_lab.provider.log import Row


def judge_request(row: Row, settled: Sequence[Turn], current: Turn | None) -> Verdict:
    """Judges one request (a log row) sent in the turn `current`, after the `settled` ones."""
    wanted = wanted_texts(tuple(settled), current)
    turns = [*settled, current] if current else list(settled)
    seen = seen_texts(row["messages"], {one.text for one in wanted})
    return replace(compare(turns, wanted, seen), request_n=row["n"])


def judge_session(rows: Sequence[Row], session_id: str, turns: Sequence[Turn]) -> Verdict:
    """Judges the last root request of a session.

    The last of `turns` is the one that sent it; UNOBSERVED if there is no such request.
    """
    roots = [row for row in rows if row["is_root"] and row["session_id"] == session_id]
    if not roots or not turns:
        return Verdict(State.UNOBSERVED)
    return judge_request(max(roots, key=lambda row: int(row["n"])), turns[:-1], turns[-1])
