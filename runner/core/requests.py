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
PERMISSION_MODES = ("auto", "ask", "deny")
RULES_MAX = 100
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


@dataclass(frozen=True, slots=True)
class Takes:
    """What an agent takes: permission modes, tools that a permission rule may name (none: it has no rules), options."""

    permission_modes: Sequence[str]
    rule_tools: Sequence[str]
    options: Sequence[str]


def check_settings(model: str, permission_mode: str, options: Mapping[str, str], takes: Takes) -> None:
    """The settings of a member's processes. Empty means the agent's default, or what the conversation has already."""
    if model and (len(model) > SETTING_MAX_LENGTH or not _SETTING_VALUE.fullmatch(model)):
        raise SettingUnknownError(
            f"settings.model: expected at most {SETTING_MAX_LENGTH} printable characters with no leading dash; found "
            f"{model[:40]!r}.",
            {"field": "settings.model"},
        )
    if permission_mode and permission_mode not in takes.permission_modes:
        has_no_notion = permission_mode in PERMISSION_MODES
        why = " This agent has no notion of it, and a mode that would do nothing is refused." if has_no_notion else ""
        raise SettingUnknownError(
            f"settings.permission_mode: expected one of {', '.join(takes.permission_modes)}; found "
            f"{permission_mode[:40]!r}.{why}",
            {"field": "settings.permission_mode", "known": ",".join(takes.permission_modes)},
        )
    unknown = sorted(set(options) - set(takes.options))
    if unknown:
        raise SettingUnknownError(
            f"settings.options: expected only {', '.join(takes.options) or 'none'}; found {', '.join(unknown)[:200]}.",
            {"field": "settings.options", "unknown": ",".join(unknown)[:200]},
        )


def check_rules(field: str, rules: Sequence[str], takes: Takes) -> None:
    """Permission rules, as far as they are the same for every agent: a tool's name, and a pattern in brackets after it."""
    if rules and not takes.rule_tools:
        raise SettingUnknownError(
            f"{field}: this agent has no rules per tool; leave them out, or choose a permission mode.", {"field": field}
        )
    if len(rules) > RULES_MAX:
        raise SettingUnknownError(f"{field}: expected at most {RULES_MAX}, found {len(rules)}.", {"field": field})
    for rule in rules:
        if rule.partition("(")[0] not in takes.rule_tools:
            raise SettingUnknownError(
                f"{field}: expected TOOL or TOOL(PATTERN) with a tool of {', '.join(takes.rule_tools)}; found {rule[:80]!r}. "
                "The CLI would take another name in silence.",
                {"field": field, "known": ",".join(takes.rule_tools)},
            )


def check_when_busy(name: str, *, steer: str) -> None:
    """`name`: REJECT, QUEUE, STEER or empty. `steer`: the agent's word on steering, "yes" or "no: why"."""
    if name == "STEER" and steer != "yes":
        why = steer.partition(": ")[2] or "it has no native way to"
        raise WhenBusyUnsupportedError(
            f"when_busy: expected REJECT or QUEUE, found STEER. This agent cannot be steered: {why}. QUEUE sends the message "
            "when the running turn is over.",
            {"field": "when_busy", "known": "REJECT,QUEUE", "why": why},
        )
    if name not in ("", "REJECT", "QUEUE", "STEER"):
        raise WhenBusyUnsupportedError(
            f"when_busy: expected REJECT, QUEUE or STEER, found {name}.",
            {"field": "when_busy", "known": "REJECT,QUEUE,STEER"},
        )


def check_not_negative(field: str, value: int) -> int:
    if value < 0:
        raise RequestInvalidError(f"{field}: expected 0 or more, found {value}.", {"field": field})
    return value
