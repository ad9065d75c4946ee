"""Which locator a turn uses, and whether the conversation is the one that the client expects. Pure.

The keeper of the session decides: a request's locator that differs is refused, an absent one is filled in. Never a silent NEW.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from sandbox_manager.core.errors import (
    ConversationExistsError,
    LegacyConversationError,
    LocatorMismatchError,
    LocatorRequiredError,
    StoreBehindError,
)
from sandbox_manager.core.values import NativeLocator


class Expect(Enum):
    """What the client expects of the conversation."""

    NEW = "NEW"
    CONTINUE = "CONTINUE"
    UNSET = "UNSET"


@dataclass(frozen=True, slots=True)
class LabelledContainer:
    """A container that a live host reports with this conversation's label, and that the manager does not know."""

    container_id: str
    host_id: str


def check_expectation(
    expect: Expect, *, is_known: bool, unknown_containers: tuple[LabelledContainer, ...] = ()
) -> None:
    """`is_known`: the manager has a member of this conversation, settled or not. A repeated turn id was looked up before.

    Raises StoreBehindError (the manager's store has forgotten what a host still holds), LegacyConversationError, or
    ConversationExistsError.
    """
    if not is_known and unknown_containers:
        first = unknown_containers[0]
        raise StoreBehindError(
            f"host {first.host_id} holds container {first.container_id} of this conversation, which the manager does not know",
            {"container_id": first.container_id, "host_id": first.host_id, "containers": len(unknown_containers)},
        )
    if expect is Expect.CONTINUE and not is_known:
        raise LegacyConversationError("no native session of this conversation is retained here; open a new one")
    if expect is Expect.NEW and is_known:
        raise ConversationExistsError("a new conversation was expected, and this one is known; continue it")


def complete_locator(granted: NativeLocator, reported: NativeLocator) -> NativeLocator:
    """The granted locator, with what the CLI was to name itself taken from the host's report. What was granted stays."""
    return replace(
        granted,
        native_session_id=granted.native_session_id or reported.native_session_id,
        store=granted.store or reported.store,
    )


def resolve_locator(
    requested: NativeLocator | None, saved: NativeLocator | None, *, settled_turns: int
) -> NativeLocator | None:
    """The locator to resume, None when there is nothing to resume yet.

    Raises LocatorMismatchError for a request that differs from the saved one, or names one where nothing was saved, and
    LocatorRequiredError when turns have settled and no locator is left anywhere.
    """
    if saved is None:
        if settled_turns > 0:
            raise LocatorRequiredError(
                f"{settled_turns} turns of this conversation have settled, and no locator of its native session is left",
                {"settled_turns": settled_turns},
            )
        if requested is not None:
            raise LocatorMismatchError(
                "the request names a native session, and none of this conversation is saved here",
                {"expected": "none", "found": requested.native_session_id},
            )
        return None
    if requested is not None and requested != saved:
        raise LocatorMismatchError(
            "the request's locator is not the saved one; nothing was changed",
            {"expected": saved.native_session_id, "found": requested.native_session_id},
        )
    return saved
