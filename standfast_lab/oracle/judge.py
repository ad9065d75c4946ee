"""Decides from the lab's log whether a request carried the whole conversation, whatever protocol it came in.

It judges what the provider received, not what the model made of it. It does not judge tool calls, only texts. What an agent adds or
joins by itself stands in `added_texts` and does not break a history.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from standfast_lab.added_texts import OF_AGENT
from standfast_lab.oracle.compare import compare
from standfast_lab.oracle.conversation import Turn, wanted_texts
from standfast_lab.oracle.observed import seen_texts
from standfast_lab.oracle.verdict import State, Verdict
from standfast_lab.provider.log import Row


def judge_request(row: Row, settled: Sequence[Turn], current: Turn | None, *, agent: str = "claude-code") -> Verdict:
    """Judges one request (a log row) sent in the turn `current`, after the `settled` ones. KeyError: an unknown agent."""
    added = OF_AGENT[agent]
    wanted = wanted_texts(tuple(settled), current)
    turns = [*settled, current] if current else list(settled)
    seen = seen_texts(row["messages"], {one.text for one in wanted}, added.joins_user_texts)
    return replace(compare(turns, wanted, seen, added), request_n=row["n"])


def judge_session(
    rows: Sequence[Row], session_id: str, turns: Sequence[Turn], *, agent: str = "claude-code"
) -> Verdict:
    """Judges the last root request of a session; see `judge_roots`."""
    return judge_roots([row for row in rows if row["session_id"] == session_id], turns, agent=agent)


def judge_roots(rows: Sequence[Row], turns: Sequence[Turn], *, agent: str = "claude-code") -> Verdict:
    """Judges the last root request among the rows.

    The last of `turns` is the one that sent it; UNOBSERVED if there is no such request.
    """
    roots = [row for row in rows if row["is_root"]]
    if not roots or not turns:
        return Verdict(State.UNOBSERVED)
    return judge_request(max(roots, key=lambda row: int(row["n"])), turns[:-1], turns[-1], agent=agent)


def rows_of_talk(rows: Sequence[Row], first_text: str) -> list[Row]:
    """The rows of the conversation that began with this user text: for clients that name no session. After a native
    compaction the first text may be gone; then only a session id tells."""
    return [row for row in rows if first_text in _first_user_texts(row)]


def _first_user_texts(row: Row) -> list[str]:
    return next((list(m["texts"]) for m in row["messages"] if m["role"] == "user" and m["texts"]), [])
