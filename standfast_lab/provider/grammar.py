"""The default reply: computed from the texts of the request itself and from nothing else.

The provider keeps no memory of a conversation here, so a request whose history was cut gets a wrong answer. The small
language, on the last user text without its `[[lab:...]]` words (case and outer spaces do not matter):

    remember: the NAME is VALUE        noted: VALUE
    remember: FACT                     noted: FACT
    what is the NAME?                  the NAME is VALUE (the newest remembered)  |  I do not know the NAME
    what did you reply to "TEXT"?      I replied: REPLY (to the newest such text)  |  I have no reply to: TEXT
    repeat your last reply             my last reply was: REPLY  |  I have no earlier reply
    count                              count: N (user texts in the request, this one too)
    anything else                      echo N DIGEST: TEXT (at most 120 characters of it; DIGEST: of the whole history)
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from standfast_lab.added_texts import is_added_by_any
from standfast_lab.provider.directives import without_directives
from standfast_lab.provider.heard import Message

_REMEMBER_NAMED = re.compile(r"remember:\s*the\s+(?P<name>.+?)\s+is\s+(?P<value>.+?)\.?\s*", re.IGNORECASE | re.DOTALL)
_REMEMBER = re.compile(r"remember:\s*(?P<fact>.+?)\s*", re.IGNORECASE | re.DOTALL)
_WHAT_IS = re.compile(r"what\s+is\s+the\s+(?P<name>.+?)\s*\?*\s*", re.IGNORECASE | re.DOTALL)
_WHAT_REPLY = re.compile(
    r"what\s+did\s+you\s+reply\s+to\s+[\"“'](?P<text>.*)[\"”']\s*\?*\s*", re.IGNORECASE | re.DOTALL
)
_REPEAT = re.compile(r"repeat\s+your\s+last\s+reply\s*[.!?]*\s*", re.IGNORECASE)
_COUNT = re.compile(r"count\s*[.!?]*\s*", re.IGNORECASE)
_ECHO_CHARS_MAX = 120

Said = tuple[str, str]
"""(role, text)"""


def spoken(messages: Sequence[Message]) -> list[Said]:
    """Returns what user and assistant said, in order, without the CLI's own additions."""
    return [(m.role, text) for m in messages for text in m.texts if not is_added_by_any(m.role, text)]


def last_user_text(messages: Sequence[Message]) -> str | None:
    """Returns the newest text of the user, directive words included; None if there is none."""
    return next((text for role, text in reversed(spoken(messages)) if role == "user"), None)


def default_reply(messages: Sequence[Message]) -> str:
    """Returns the reply to the last user text."""
    said = spoken(messages)
    asked_at = max((i for i, (role, _) in enumerate(said) if role == "user"), default=None)
    if asked_at is None:
        return "I was asked nothing"
    before, text = said[:asked_at], without_directives(said[asked_at][1]).strip()
    if match := _REMEMBER_NAMED.fullmatch(text):
        return f"noted: {match['value']}"
    if match := _REMEMBER.fullmatch(text):
        return f"noted: {match['fact']}"
    if match := _WHAT_IS.fullmatch(text):
        value = _remembered(before, match["name"])
        return f"I do not know the {match['name']}" if value is None else f"the {match['name']} is {value}"
    if match := _WHAT_REPLY.fullmatch(text):
        reply = _reply_to(before, match["text"])
        return f"I have no reply to: {match['text']}" if reply is None else f"I replied: {reply}"
    if _REPEAT.fullmatch(text):
        last = next((t for role, t in reversed(before) if role == "assistant"), None)
        return "I have no earlier reply" if last is None else f"my last reply was: {last}"
    users = sum(1 for role, _ in said if role == "user")
    if _COUNT.fullmatch(text):
        return f"count: {users}"
    return f"echo {users} {history_digest(said)}: {text[:_ECHO_CHARS_MAX]}"


def history_digest(said: Sequence[Said]) -> str:
    """Returns 8 hexadecimal digits that stand for roles, texts and order."""
    digest = hashlib.sha256()
    for role, text in said:
        raw = text.encode("utf-8", "surrogatepass")
        digest.update(f"{role} {len(raw)} ".encode() + raw)
    return digest.hexdigest()[:8]


def _remembered(before: Sequence[Said], name: str) -> str | None:
    for role, text in reversed(before):
        if role != "user":
            continue
        match = _REMEMBER_NAMED.fullmatch(without_directives(text).strip())
        if match and match["name"].lower() == name.lower():
            return match["value"]
    return None


def _reply_to(before: Sequence[Said], asked: str) -> str | None:
    """Returns the last assistant text between the newest user text that equals `asked` and the user text after it."""
    wanted = without_directives(asked).strip().lower()
    at = max(
        (i for i, (r, t) in enumerate(before) if r == "user" and without_directives(t).strip().lower() == wanted),
        default=None,
    )
    if at is None:
        return None
    reply = None
    for role, text in before[at + 1 :]:
        if role == "user":
            break
        reply = text
    return reply
