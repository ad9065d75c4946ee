"""What a call can come to, as exceptions: one class where a caller would do something different.

Every one has `reason` (a name of ErrorReason), `code` (gRPC's), `metadata` and `is_retryable`: true means that nothing reached the
CLI and that the very same call, with the same turn_id, may be made again.
"""

from __future__ import annotations

import grpc

from standfast_chassis.errors import StandfastError
from standfast_chassis.rpc_status import RemoteError


class ClientError(StandfastError):
    """A call that did not do what was asked."""

    code: grpc.StatusCode = grpc.StatusCode.UNKNOWN
    is_retryable = False


class UnavailableError(ClientError):
    """Somebody on the way does not answer. Nothing was sent; retry with the same turn_id."""

    is_retryable = True


class InvalidRequestError(ClientError):
    """The request itself is wrong: an empty or too large message, a bad id, an unknown agent or setting."""


class NotFoundError(ClientError):
    """No such conversation, or no such turn."""


class RefusedError(ClientError):
    """Refused before anything was sent, and recorded; someone must act before it can go on."""


class ContextLostError(RefusedError):
    """The native context cannot be confirmed. Nothing was sent and nothing was overwritten."""

    @property
    def cause(self) -> str | None:
        """Why, as a stable word."""
        return self.metadata.get("cause")

    @property
    def cure(self) -> str | None:
        """What would cure it."""
        return self.metadata.get("cure")


class LegacyConversationError(RefusedError):
    """CONTINUE was expected and no native session is retained here: open a new conversation."""


class LocatorError(RefusedError):
    """A locator is missing, or is not the saved one, or another session answered."""


class ConversationRemovedError(RefusedError):
    """The conversation was removed; its id is not used again."""


class ConversationExistsError(RefusedError):
    """NEW was expected and the conversation is known."""


class MessageChangedError(RefusedError):
    """The turn_id was used with another message."""


class BusyError(ClientError):
    """Another turn of the conversation runs; the new one was not accepted."""


class TurnElsewhereError(BusyError):
    """Another runner has this turn."""

    @property
    def address(self) -> str | None:
        """The address of the runner that has it."""
        return self.metadata.get("address")


class NoRoomError(ClientError):
    """No host, no space, or a bounded queue is full."""


class NotBuiltError(ClientError):
    """This build does not have the capability yet."""


class FaultError(ClientError):
    """A fault of the product, or an answer that is none of ours."""


_BY_REASON: dict[str, type[ClientError]] = {
    "CONTEXT_LOST": ContextLostError,
    "LEGACY_CONVERSATION": LegacyConversationError,
    "LOCATOR_REQUIRED": LocatorError,
    "LOCATOR_MISMATCH": LocatorError,
    "NATIVE_SESSION_MISMATCH": LocatorError,
    "CONVERSATION_REMOVED": ConversationRemovedError,
    "CONVERSATION_EXISTS": ConversationExistsError,
    "MESSAGE_CHANGED": MessageChangedError,
    "TURN_ELSEWHERE": TurnElsewhereError,
    "CONVERSATION_BUSY": BusyError,
}

_BY_CODE: dict[grpc.StatusCode, type[ClientError]] = {
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequestError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.FAILED_PRECONDITION: RefusedError,
    grpc.StatusCode.ALREADY_EXISTS: RefusedError,
    grpc.StatusCode.ABORTED: BusyError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: NoRoomError,
    grpc.StatusCode.UNIMPLEMENTED: NotBuiltError,
}


def client_error(error: RemoteError) -> ClientError:
    """The typed form of what a peer answered."""
    kind = _BY_REASON.get(error.reason) or _BY_CODE.get(error.code, FaultError)
    typed = kind(error.message, error.metadata)
    typed.reason = error.reason
    typed.code = error.code
    return typed
