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
    names_session: str = "HOST",
    check_identity: bool = True,
) -> NativeLocator:
    """The locator to run on. `record` and `has_settled_turns` are the runner's own; `requested` is the client's.

    Of a session that begins it may lack its store, and its id too where `names_session` is CLI.

    Raises LocatorRequiredError, LocatorMismatchError or AGENT_MISMATCH; nothing was started for the message then.
    `check_identity` False: which session it is, is left to the manager's side (a test's or the lab's switch).
    """
    if granted is None or not _is_named_enough(granted, resumes=resumes, names_session=names_session):
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


def _is_named_enough(granted: NativeLocator, *, resumes: bool, names_session: str) -> bool:
    if resumes:
        return granted.is_whole
    return bool(granted.native_session_id) or names_session == "CLI"


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


def check_named(
    *,
    granted: NativeLocator,
    admitted: NativeLocator | None,
    session_id: str | None,
    store: str | None,
    process_is_new: bool,
) -> NativeLocator:
    """The whole locator that the turn runs on. `session_id` and `store` (absolute) are what this side's driver read.

    `admitted` is the manager's, None for one that says none. Raises LocatorRequiredError, LocatorMismatchError,
    NATIVE_SESSION_MISMATCH or IDENTITY_UNPROVEN; nothing was sent.
    """
    locator = admitted if admitted is not None else granted
    if not locator.is_whole:
        raise LocatorRequiredError(
            "The message was admitted for a session that neither the grant nor the manager names. Nothing was sent.",
            {"side": "runner"},
        )
    pairs = [
        (getattr(granted, name), getattr(locator, name)) for name in ("agent", "native_session_id", "cwd", "store")
    ]
    if any(wanted and wanted != found for wanted, found in pairs):
        raise LocatorMismatchError(
            f"The activation was granted for native session {granted.native_session_id or 'of its own naming'}, the message "
            f"was admitted for {locator.native_session_id}; they differ. Nothing was sent.",
            {"expected": granted.native_session_id, "observed": locator.native_session_id, "source": "the admission"},
        )
    if not process_is_new:
        return locator
    if session_id is None and not granted.native_session_id:
        raise ReasonedError(
            "IDENTITY_UNPROVEN",
            f"The manager admitted the message for native session {locator.native_session_id}; this side expected the CLI "
            "to name it in its handshake, and it named none. Nothing was sent.",
            {"expected": locator.native_session_id, "observed": "", "side": "runner"},
        )
    if session_id is not None and session_id != locator.native_session_id:
        raise ReasonedError(
            "NATIVE_SESSION_MISMATCH",
            f"Expected native session {locator.native_session_id}, the CLI's handshake named {session_id}. Nothing was "
            "sent.",
            {"expected": locator.native_session_id, "observed": session_id, "side": "runner"},
        )
    if store is not None and not f"/{store}".endswith(f"/{locator.store}"):
        raise ReasonedError(
            "NATIVE_SESSION_MISMATCH",
            f"Expected the native store {locator.store}, the CLI's handshake named {store}. Nothing was sent.",
            {"expected": locator.store, "observed": store, "side": "runner"},
        )
    return locator


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
