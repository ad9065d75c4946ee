"""Who may pass: which route a request asks for, which slot it names, and whether that slot may call now.

Rules, in this order:
- Routes are a fixed list. Batches, files, models and the rest of the provider's API answer 404: under one provider key
  they would show one sandbox what another left there.
- A model route needs a registered slot's secret (else 401), the slot's own UID where the engine has UIDs (else
  403; a caller whose UID cannot be read is refused too), and an open activation (else 403). 403, not 401: this CLI
  retries 401 for minutes.
- `/api/hello`, the CLI's greeting at its start, carries no body and gets no key. It needs no activation; a
  secret, when given, must be a slot's, and the caller's UID must be that slot's, or without a secret any slot's.

A model request outside an activation is refused, title requests and the like included: a process kept between
turns has nothing to ask, and nothing may be spent or added to a native history outside an admitted turn. It is counted
apart (`outside`) and told in the next observation.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from sandbox_manager.host.relay.slots import Slot, SlotTable
from sandbox_manager.host.relay.upstream import ModelProtocol


class Route(enum.Enum):
    """What a request asks for."""

    MESSAGES = "messages"
    CHAT = "chat"
    RESPONSES = "responses"
    COUNT_TOKENS = "count_tokens"
    HELLO = "hello"

    @property
    def protocol(self) -> ModelProtocol:
        """Whose upstream serves it."""
        match self:
            case Route.CHAT:
                return ModelProtocol.CHAT
            case Route.RESPONSES:
                return ModelProtocol.RESPONSES
            case Route.MESSAGES | Route.COUNT_TOKENS | Route.HELLO:
                return ModelProtocol.MESSAGES

    @property
    def calls_a_model(self) -> bool:
        """Whether an answer of a model comes back."""
        return self in (Route.MESSAGES, Route.CHAT, Route.RESPONSES)


class IncidentKind(enum.Enum):
    """Why a request was refused, or a response cut by us."""

    UNKNOWN_SECRET = "UNKNOWN_SECRET"
    WRONG_UID = "WRONG_UID"
    CALLER_UNKNOWN = "CALLER_UNKNOWN"
    NO_ACTIVATION = "NO_ACTIVATION"
    UNKNOWN_ROUTE = "UNKNOWN_ROUTE"
    BODY_TOO_LARGE = "BODY_TOO_LARGE"
    KEY_IN_RESPONSE = "KEY_IN_RESPONSE"


@dataclass(frozen=True)
class Incident:
    """One refusal, for the host agent's journal. No secret and no content; `slot` None: none was named."""

    sandbox_id: str
    kind: IncidentKind
    slot: str | None
    activation_id: str | None
    expected_uid: int | None = None
    observed_uid: int | None = None


@dataclass(frozen=True)
class Refusal:
    """A request that does not pass, with the protocol's error type and a message for the caller."""

    status: int
    error_type: str
    message: str
    kind: IncidentKind
    slot: Slot | None = None


@dataclass(frozen=True)
class Caller:
    """The caller's UID as the kernel shows it. `is_checked` False: this engine has no UIDs."""

    is_checked: bool
    uid: int | None = None


_ROUTES = {
    (b"POST", b"/v1/messages"): Route.MESSAGES,
    (b"POST", b"/v1/chat/completions"): Route.CHAT,
    (b"POST", b"/v1/responses"): Route.RESPONSES,
    (b"POST", b"/v1/messages/count_tokens"): Route.COUNT_TOKENS,
    (b"HEAD", b"/api/hello"): Route.HELLO,
    (b"GET", b"/api/hello"): Route.HELLO,
}


def route_of(method: bytes, target: bytes) -> Route | Refusal:
    """The route of a request line; the query does not matter."""
    route = _ROUTES.get((method, target.partition(b"?")[0]))
    if route is None:
        return Refusal(404, "not_found_error", "The model port does not serve this.", IncidentKind.UNKNOWN_ROUTE)
    return route


def admit(
    route: Route, secrets: list[bytes], caller: Caller, slots: SlotTable, active: set[str]
) -> Slot | Refusal | None:
    """The slot that may pass, or why none may. None: a greeting without a secret, which may pass.

    `active`: names of the slots that have an open activation.
    """
    named = [slot for secret in secrets if (slot := slots.by_secret(secret)) is not None]
    if len({slot.name for slot in named}) > 1 or (not named and (secrets or route is not Route.HELLO)):
        return Refusal(
            401,
            "authentication_error",
            "The credential is no slot's of this sandbox.",
            IncidentKind.UNKNOWN_SECRET,
        )
    slot = named[0] if named else None
    expected = slots.uids if slot is None else {slot.uid} - {None}
    # A sandbox without a single slot has nobody who could greet.
    if caller.is_checked and caller.uid not in expected:
        kind = IncidentKind.CALLER_UNKNOWN if caller.uid is None else IncidentKind.WRONG_UID
        return Refusal(403, "permission_error", "The caller is not the slot that the credential names.", kind, slot)
    if route is not Route.HELLO and (slot is None or slot.name not in active):
        return Refusal(403, "permission_error", "No turn is running for this slot.", IncidentKind.NO_ACTIVATION, slot)
    return slot
