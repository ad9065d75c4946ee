"""The runner's own checks before anything is sent: of the locator it is given, and of what was activated. Pure.

They rest on the runner's record and the client's request alone; that the manager checks the same is no reason to skip
them.
"""

from __future__ import annotations

from runner.core.errors import LocatorMismatchError, LocatorRequiredError, ReasonedError
from runner.core.locator_record import LocatorRecord
from runner.core.values import NativeLocator


def check_grant(
    *,
    record: LocatorRecord,
    has_settled_turns: bool,
    requested: NativeLocator | None,
    granted: NativeLocator | None,
    resumes: bool,
    agent: str,
    check_identity: bool = True,
) -> NativeLocator:
    """The locator to run on. `record` and `has_settled_turns` are the runner's own; `requested` is the client's.

    Raises LocatorRequiredError, LocatorMismatchError or AGENT_MISMATCH; nothing was started for the message then.
    `check_identity` False: which session it is, is left to the manager's side (a test's or the lab's switch).
    """
    if granted is None:
        raise LocatorRequiredError(
            "The manager granted an activation without a native locator; expected one to start or resume. "
            "Nothing was sent.",
            {"side": "runner"},
        )
    if granted.agent != agent:
        raise ReasonedError(
            "AGENT_MISMATCH",
            f"Expected agent {agent}, but the conversation's native session belongs to {granted.agent}. A conversation "
            "keeps its agent: use that one, or open a new conversation.",
            {"expected": agent, "observed": granted.agent},
        )
    if not check_identity:
        return granted
    record.check(granted, source="the manager's grant")
    if has_settled_turns and record.saved is None and not resumes:
        raise LocatorRequiredError(
            "This conversation has settled turns, but neither the runner nor the manager has a saved locator. "
            "Nothing was sent; the native session cannot be named.",
            {"side": "runner"},
        )
    if record.saved is not None and not resumes:
        raise LocatorMismatchError(
            f"The runner has saved native session {record.saved.native_session_id}, but the manager would begin it "
            "anew instead of resuming it. Nothing was sent.",
            {"expected": record.saved.native_session_id, "observed": "a new session", "source": "the manager's grant"},
        )
    check_requested(requested=requested, saved=granted)
    return granted


def check_requested(*, requested: NativeLocator | None, saved: NativeLocator | None) -> None:
    """A client's locator must be the saved one. Either may be unknown. Raises LocatorMismatchError."""
    if requested is None or saved is None or requested == saved:
        return
    raise LocatorMismatchError(
        f"The request names native session {requested.native_session_id}, the saved one is "
        f"{saved.native_session_id}. Send the locator of the conversation's last settled turn, or none.",
        {"expected": saved.native_session_id, "observed": requested.native_session_id, "source": "the request"},
    )


def check_activated(*, locator: NativeLocator, native_session_id: str) -> None:
    """The process was started for the session that the grant names. Raises NATIVE_SESSION_MISMATCH."""
    if native_session_id != locator.native_session_id:
        raise ReasonedError(
            "NATIVE_SESSION_MISMATCH",
            f"Expected a process of native session {locator.native_session_id}, the host agent activated one of "
            f"{native_session_id or 'no named session'}. Nothing was sent.",
            {"expected": locator.native_session_id, "observed": native_session_id, "side": "runner"},
        )


def check_admitted(*, context_state: str, process_is_new: bool, resumes: bool, handshake_refused: str | None) -> None:
    """What the manager admitted is possible by what this side saw. `handshake_refused`: the CLI's own words.

    Raises SESSION_NOT_RESUMED or VERDICTS_DIFFER; nothing was sent.
    """
    if handshake_refused is not None:
        raise ReasonedError(
            "SESSION_NOT_RESUMED",
            f"The CLI refused its native start: {handshake_refused}. Nothing was sent.",
            {"side": "runner"},
        )
    possible = {"NEW": not resumes, "LIVE": not process_is_new, "RESTORED": process_is_new and resumes}
    if not possible.get(context_state, False):
        raise ReasonedError(
            "VERDICTS_DIFFER",
            f"The manager admitted the message as {context_state or 'nothing'}, but this side saw a "
            f"{'new' if process_is_new else 'running'} process that {'resumes' if resumes else 'begins'} a session. "
            "Nothing was sent.",
            {"context_state": context_state, "process_is_new": process_is_new, "resumes": resumes, "side": "runner"},
        )
