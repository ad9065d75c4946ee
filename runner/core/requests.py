"""Checks what a client asks for, before anything happens. Pure. Raises the domain error that names the field.

A NUL in the message is refused: JSON could carry it, but terminals, argument lists and C strings along the way of a
tool cannot, and the text must arrive as it is or not at all.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runner.core.errors import (
    AgentUnknownError,
    IdInvalidError,
    MessageEmptyError,
    MessageHasNulError,
    MessageTooLargeError,
    RequestInvalidError,
    SettingUnknownError,
    WhenBusyUnsupportedError,
)
from runner.core.values import ConversationKey, TurnKey

MESSAGE_MAX_BYTES = 4 * 1024 * 1024
ID_MAX_LENGTH = 128
DEFAULT_TENANT = "local"
PERMISSION_MODES = ("auto",)
SETTING_MAX_LENGTH = 256

_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
# Names of models are sent to a command line as one argument; a control character or a leading dash has no place there.
_SETTING_VALUE = re.compile(r"[^\x00-\x1f\x7f-][^\x00-\x1f\x7f]*")


@dataclass(frozen=True, slots=True)
class Message:
    """A checked message. `digest` is sha256 hex of its UTF-8 bytes, `length` their number."""

    text: str
    digest: str
    length: int


def check_id(field: str, value: str) -> str:
    """An id of a client: 1 to 128 characters of A-Z, a-z, 0-9, '.', '_', ':' and '-'."""
    if not _ID.fullmatch(value):
        found = "nothing" if not value else f"{len(value)} characters, {value[:40]!r}"
        raise IdInvalidError(
            f"{field}: expected 1 to {ID_MAX_LENGTH} characters of A-Z, a-z, 0-9, '.', '_', ':' and '-'; found {found}.",
            {"field": field, "length": len(value)},
        )
    return value


def check_conversation(tenant: str, conversation_id: str) -> ConversationKey:
    """An empty tenant is the default one."""
    return ConversationKey(
        check_id("conversation.tenant", tenant or DEFAULT_TENANT),
        check_id("conversation.conversation_id", conversation_id),
    )


def check_turn(tenant: str, conversation_id: str, turn_id: str) -> TurnKey:
    conversation = check_conversation(tenant, conversation_id)
    return TurnKey(conversation.tenant, conversation.conversation_id, check_id("turn_id", turn_id))


def check_message(text: str) -> Message:
    """The message as it will go, with its digest."""
    raw = text.encode("utf-8")
    if not raw:
        raise MessageEmptyError("message: expected at least one byte, found none.", {"field": "message"})
    if len(raw) > MESSAGE_MAX_BYTES:
        raise MessageTooLargeError(
            f"message: expected at most {MESSAGE_MAX_BYTES} bytes, found {len(raw)}. Put the text into a file of the "
            "workspace and refer to it.",
            {"field": "message", "limit_bytes": MESSAGE_MAX_BYTES, "length_bytes": len(raw)},
        )
    if (at := raw.find(b"\x00")) >= 0:
        raise MessageHasNulError(
            f"message: expected text without NUL, found one at byte {at}. Remove it: it cannot pass on unchanged.",
            {"field": "message", "offset": at},
        )
    return Message(text, hashlib.sha256(raw).hexdigest(), len(raw))


def check_agent(name: str, known: Sequence[str]) -> str:
    if name not in known:
        raise AgentUnknownError(
            f"agent: expected one of {', '.join(known)}; found {name[:80]!r}.",
            {"field": "agent", "known": ",".join(known)},
        )
    return name


def check_settings(model: str, permission_mode: str, options: Mapping[str, str], known_options: Sequence[str]) -> None:
    """The settings of a member's processes. Empty means the agent's default."""
    if model and (len(model) > SETTING_MAX_LENGTH or not _SETTING_VALUE.fullmatch(model)):
        raise SettingUnknownError(
            f"settings.model: expected at most {SETTING_MAX_LENGTH} printable characters with no leading dash; found "
            f"{model[:40]!r}.",
            {"field": "settings.model"},
        )
    if permission_mode and permission_mode not in PERMISSION_MODES:
        raise SettingUnknownError(
            f"settings.permission_mode: expected one of {', '.join(PERMISSION_MODES)}; found {permission_mode[:40]!r}. "
            "Other modes come with the permission RPCs.",
            {"field": "settings.permission_mode", "known": ",".join(PERMISSION_MODES)},
        )
    unknown = sorted(set(options) - set(known_options))
    if unknown:
        raise SettingUnknownError(
            f"settings.options: expected only {', '.join(known_options) or 'none'}; found {', '.join(unknown)[:200]}.",
            {"field": "settings.options", "unknown": ",".join(unknown)[:200]},
        )


def check_when_busy(name: str) -> None:
    """`name`: REJECT or empty. The others come with the queue and with steering."""
    if name not in ("", "REJECT"):
        raise WhenBusyUnsupportedError(
            f"when_busy: expected REJECT, found {name}. This build has no queue and cannot steer; retry when the "
            "running turn is over.",
            {"field": "when_busy", "known": "REJECT"},
        )


def check_not_negative(field: str, value: int) -> int:
    if value < 0:
        raise RequestInvalidError(f"{field}: expected 0 or more, found {value}.", {"field": field})
    return value
