"""Makes or resumes the native session, before any prompt."""

from dataclasses import dataclass
from urllib.parse import quote

from .http_client import CallError, HttpClient
from .message_ids import newer
from .shapes import fields, text

TITLE = "conversation"  # without one the server asks the model for a title
PAGE = 50


class SessionRefusedError(RuntimeError):
    """The session cannot be used. `cause` is a stable word."""

    def __init__(self, cause: str, detail: str) -> None:
        super().__init__(detail)
        self.cause = cause


@dataclass(frozen=True)
class Session:
    """An open session. `messages`: how many its newest page has; `newest`: the greatest native message id in it."""

    id: str
    directory: str
    is_new: bool
    messages: int
    has_more: bool
    newest: str | None


async def open_session(client: HttpClient, wanted: str | None, directory: str) -> Session:
    """Raises SessionRefusedError; a session that is not there is never made anew under another id."""
    try:
        if wanted is None:
            answer = await client.call("POST", f"/session?directory={quote(directory, safe='')}", {"title": TITLE})
        else:
            answer = await client.call("GET", f"/session/{quote(wanted, safe='')}")
        if answer.status == 404:
            raise SessionRefusedError("NO_SUCH_SESSION", f"the server knows no session {wanted}")
        if answer.status != 200:
            raise SessionRefusedError("SESSION_REFUSED", f"HTTP {answer.status}: {answer.detail}")
        found = answer.json()
        session = text(found, "id") if isinstance(found, dict) else None
        if session is None or (wanted is not None and session != wanted):
            raise SessionRefusedError("SESSION_DIFFERS", f"expected session {wanted or 'ses_...'}, found {session}")
        if text(found, "directory") != directory:
            raise SessionRefusedError(
                "DIRECTORY_DIFFERS", f"expected directory {directory}, found {text(found, 'directory')}"
            )
        if wanted is None:
            return Session(session, directory, True, 0, False, None)
        return await _with_messages(client, session, directory)
    except CallError as error:
        raise SessionRefusedError("SERVER_UNREACHABLE", str(error)) from error


async def _with_messages(client: HttpClient, session: str, directory: str) -> Session:
    page = await client.call("GET", f"/session/{session}/message?limit={PAGE}")
    messages = page.json()
    if page.status != 200 or not isinstance(messages, list):
        raise SessionRefusedError("SESSION_UNREADABLE", f"HTTP {page.status}: {page.detail}")
    newest = None
    for message in messages:
        newest = newer(newest, text(fields(message, "info"), "id") if isinstance(message, dict) else None)
    return Session(session, directory, False, len(messages), "x-next-cursor" in page.headers, newest)
