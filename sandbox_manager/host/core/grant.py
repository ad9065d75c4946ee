"""What an activation token says: the manager's grant of one activation, read strictly. Pure.

The signature is checked before; a field that is missing or of another type refuses the whole grant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sandbox_manager.core.values import NativeLocator
from sandbox_manager.host.core.errors import GrantInvalidError
from sandbox_manager.host.core.gate import Admission


@dataclass(frozen=True, slots=True)
class GrantedStore:
    """Where the known part of the native store ends. `digest` is that of the first `prefix_length` bytes."""

    prefix_length: int
    digest: str | None


@dataclass(frozen=True, slots=True)
class Grant:
    """One activation as granted. `reuse_process_generation`: the kept process that may serve it, None to start anew."""

    activation_id: str
    turn_id: str
    tenant: str
    conversation_id: str
    group_id: str
    member_id: str
    slot: int
    container_id: str
    container_generation: int
    nonce: str
    activation_generation: int
    agent: str
    model: str | None
    permission_mode: str
    options: tuple[tuple[str, str], ...]
    settings_digest: str
    locator: NativeLocator
    resumes: bool
    first_turn: bool
    message_id: str
    store: GrantedStore
    reuse_process_generation: int | None
    next_process_generation: int

    @classmethod
    def read(cls, claims: Mapping[str, Any]) -> Grant:
        """From the token's claims. Raises GrantInvalidError."""
        resumes = _truth(claims, "resumes")
        settings = _mapping(claims, "settings")
        locator = _mapping(claims, "locator")
        store = claims.get("store")
        if store is not None and not isinstance(store, dict):
            raise GrantInvalidError("store", "an object or nothing", type(store).__name__)
        options = settings.get("options") or {}
        if not isinstance(options, dict) or not all(
            isinstance(name, str) and isinstance(value, str) for name, value in options.items()
        ):
            raise GrantInvalidError("settings.options", "texts by name", type(options).__name__)
        return cls(
            activation_id=_text(claims, "activation_id"),
            turn_id=_text(claims, "turn_id"),
            tenant=_text(claims, "tenant"),
            conversation_id=_text(claims, "conversation_id"),
            group_id=_text(claims, "group_id"),
            member_id=_text(claims, "member_id"),
            slot=_number(claims, "slot"),
            container_id=_text(claims, "container_id"),
            container_generation=_number(claims, "container_generation"),
            nonce=_text(claims, "nonce"),
            activation_generation=_number(claims, "activation_generation"),
            agent=_text(claims, "agent"),
            model=settings.get("model") or None,
            permission_mode=settings.get("permission_mode") or "auto",
            options=tuple(sorted(options.items())),
            settings_digest=_text(claims, "settings_digest"),
            locator=NativeLocator(
                agent=_text(locator, "agent"),
                native_session_id=_text(locator, "native_session_id", may_be_empty=not resumes),
                cwd=_text(locator, "cwd"),
                store=_text(locator, "store", may_be_empty=not resumes),
            ),
            resumes=resumes,
            first_turn=_truth(claims, "first_turn"),
            message_id=_text(claims, "message_id"),
            store=GrantedStore(0, None)
            if store is None
            else GrantedStore(_number(store, "prefix_length"), _text(store, "digest")),
            reuse_process_generation=None
            if claims.get("reuse_process_generation") is None
            else _number(claims, "reuse_process_generation"),
            next_process_generation=_number(claims, "next_process_generation"),
        )


def read_admission(claims: Mapping[str, Any], grant: Grant, process_generation: int) -> Admission:
    """The admission in a verified token. Raises GrantInvalidError when it is for another activation, process or message id."""
    for name, expected in (
        ("activation_id", grant.activation_id),
        ("activation_generation", grant.activation_generation),
        ("process_generation", process_generation),
        ("message_id", grant.message_id),
    ):
        if claims.get(name) != expected:
            raise GrantInvalidError(name, repr(expected), repr(claims.get(name))[:80])
    return Admission(
        activation_id=grant.activation_id,
        message_id=grant.message_id,
        message_digest=_text(claims, "message_digest"),
        message_length=_number(claims, "message_length"),
    )


def _mapping(claims: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = claims.get(name)
    if not isinstance(value, dict):
        raise GrantInvalidError(name, "an object", type(value).__name__)
    return value


def _text(claims: Mapping[str, Any], name: str, *, may_be_empty: bool = False) -> str:
    value = claims.get(name)
    if not isinstance(value, str) or not (value or may_be_empty):
        raise GrantInvalidError(name, "a text", type(value).__name__)
    return value


def _number(claims: Mapping[str, Any], name: str) -> int:
    value = claims.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise GrantInvalidError(name, "a whole number", type(value).__name__)
    return value


def _truth(claims: Mapping[str, Any], name: str) -> bool:
    value = claims.get(name)
    if not isinstance(value, bool):
        raise GrantInvalidError(name, "true or false", type(value).__name__)
    return value
