"""Checks requests before anything is looked up. Values in, values out; what is wrong is named by field, expected and found."""

from __future__ import annotations

import re

from sandbox_manager.agents.registry import AGENTS
from sandbox_manager.core.records import ConversationRef, Permissions, SaidSettings
from sandbox_manager.core.refusals import (
    AgentUnknownError,
    IdInvalidError,
    RequestInvalidError,
)
from sandbox_manager.core.values import NativeLocator
from standfast.types.v1 import types_pb2
from standfast_chassis.limits import MESSAGE_MAX_BYTES

DEFAULT_TENANT = "local"
DEFAULT_PERMISSION_MODE = "auto"

_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_PLAIN_TEXT_MAX = 1024


def checked_ref(key: types_pb2.ConversationKey) -> ConversationRef:
    """The conversation's key, with the default tenant where none is given."""
    return ConversationRef(
        tenant=checked_id("conversation.tenant", key.tenant or DEFAULT_TENANT),
        conversation_id=checked_id("conversation.conversation_id", key.conversation_id),
    )


def checked_id(field: str, value: str) -> str:
    """An id of the client's or of a runner's."""
    if not _ID.fullmatch(value):
        raise IdInvalidError(field, "none" if not value else f"one of {len(value)} characters that is not so")
    return value


def checked_digest(field: str, value: str) -> str:
    """sha256 as lower-case hex."""
    if not _DIGEST.fullmatch(value):
        raise RequestInvalidError(field, "sha256 as 64 lower-case hex digits", f"a text of {len(value)} characters")
    return value


def checked_length(field: str, value: int) -> int:
    """A message's length in bytes."""
    if not 1 <= value <= MESSAGE_MAX_BYTES:
        raise RequestInvalidError(field, f"1 to {MESSAGE_MAX_BYTES} bytes", str(value))
    return value


def checked_text(field: str, value: str, *, is_required: bool = True) -> str:
    """A short text such as an address or a word."""
    if (is_required and not value) or len(value) > _PLAIN_TEXT_MAX or "\x00" in value:
        raise RequestInvalidError(
            field, f"a text of at most {_PLAIN_TEXT_MAX} characters", f"one of {len(value)}" if value else "none"
        )
    return value


def checked_agent(name: str) -> str:
    """The name of an agent that this build has."""
    if name not in AGENTS:
        known = ", ".join(sorted(AGENTS))
        raise AgentUnknownError(
            f"unknown agent {name[:80]!r}; this build has: {known}.", {"agent": name, "known": known}
        )
    return name


def checked_locator(field: str, locator: types_pb2.NativeLocator) -> NativeLocator:
    """A locator as a runner has saved it."""
    return NativeLocator(
        agent=checked_text(f"{field}.agent", locator.agent),
        native_session_id=checked_text(f"{field}.native_session_id", locator.native_session_id),
        cwd=checked_text(f"{field}.cwd", locator.cwd),
        store=checked_text(f"{field}.store", locator.store),
    )


def said_settings(settings: types_pb2.AgentSettings) -> SaidSettings:
    """What a turn says of its settings. A mode or a rule says all of the permissions."""
    permissions = None
    if settings.permission_mode or settings.allow_rules or settings.deny_rules:
        mode = settings.permission_mode or DEFAULT_PERMISSION_MODE
        permissions = Permissions(mode, tuple(settings.allow_rules), tuple(settings.deny_rules))
    return SaidSettings(settings.model or None, permissions, tuple(sorted(settings.options.items())))
