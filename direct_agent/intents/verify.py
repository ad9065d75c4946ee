"""Whether an intended change is there: the state of one record, and of a call. Pure: what was looked at is an argument.

    first match wins, per record                                         state
    version is not 1; other host; relative path; path not permitted      unknown
    it leads elsewhere than recorded (a link was changed)                unknown
    overlay route without an identity, with an empty or another one      unknown
    route not known; file missing or unreadable                          unknown
    another encoding                                                     conflict
    digest is `after` / `before` / another                               satisfied / unchanged / conflict

A call is satisfied only if all its records can be read and every path, by its later record, is satisfied. Nothing else proves success.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from direct_agent.intents.record import VERSION, Route, WriteIntent, decode


class IntentState(StrEnum):
    SATISFIED = "satisfied"
    UNCHANGED = "unchanged"
    CONFLICT = "conflict"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Seen:
    """What is at an intent's path now. `resolved_path` None: the path is not permitted or leads out of the workspace.

    `digest` and `encoding` are None when there is no readable text. `transport_id` is the present channel's identity, None without one.
    """

    host: str
    resolved_path: str | None
    digest: str | None
    encoding: str | None
    transport_id: str | None = None


Look = Callable[[WriteIntent], Seen]


@dataclass(frozen=True, slots=True)
class CallProof:
    """What the records of one call prove. `states` are (path, state) in order of path; empty when they prove nothing at all."""

    is_satisfied: bool
    states: tuple[tuple[str, IntentState], ...] = ()


def state_of(intent: WriteIntent, seen: Seen) -> IntentState:
    """The state of one record."""
    if not _is_the_same_target(intent, seen):
        return IntentState.UNKNOWN
    if seen.digest is None:
        return IntentState.UNKNOWN
    if seen.encoding != intent.encoding:
        return IntentState.CONFLICT
    if seen.digest == intent.after:
        return IntentState.SATISFIED
    if seen.digest == intent.before:
        return IntentState.UNCHANGED
    return IntentState.CONFLICT


def _is_the_same_target(intent: WriteIntent, seen: Seen) -> bool:
    if intent.version != VERSION or intent.host != seen.host or not intent.path.startswith("/"):
        return False
    if seen.resolved_path is None or seen.resolved_path != intent.resolved_path:
        return False
    if intent.route == Route.OVERLAY:
        return bool(intent.transport_id) and intent.transport_id == seen.transport_id
    return intent.route == Route.DISK


def prove(raw_intents: Sequence[str], look: Look) -> CallProof:
    """What the stored records of one call prove now. `look` is asked once a path, in sorted order."""
    intents: dict[str, WriteIntent] = {}
    for raw in raw_intents:
        intent = decode(raw)
        if intent is None:
            return CallProof(is_satisfied=False)
        intents[intent.path] = intent
    states = tuple((path, state_of(intents[path], look(intents[path]))) for path in sorted(intents))
    return CallProof(
        is_satisfied=bool(states) and all(state is IntentState.SATISFIED for _, state in states), states=states
    )
