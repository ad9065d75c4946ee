"""What the model said and which tools it used, from events that name parts before, with or after the role of their message. Pure.

Output is text of a message with the role `assistant`, of this turn: in the root its `parentID` is our message, a child's is any. A part
whose message has no role yet is held; the role may come as late as the end of the turn. A message of an earlier turn is dropped. The last
full text of a part is the truth, whatever its deltas added up to; a whole text is said once.
"""

from dataclasses import dataclass

from .family import Family
from .shapes import Fields, fields, flag, items, text


@dataclass
class _Message:
    role: str
    parent: str | None


@dataclass
class _Part:
    id: str
    session: str
    message: str
    kind: str | None = None
    full: str = ""
    told: int = 0  # characters told as deltas
    is_shown: bool = True  # neither synthetic nor ignored
    is_over: bool = False
    is_said: bool = False
    tool_told: bool = False
    result_told: bool = False
    state: Fields | None = None
    tool: str = ""
    call: str = ""


class Texts:
    """One turn's parts. `message` is our message's native id."""

    def __init__(self, family: Family, message: str) -> None:
        self._family = family
        self._ours = message
        self._messages: dict[str, _Message] = {}
        self._parts: dict[str, _Part] = {}

    def note(self, kind: str, properties: Fields) -> list[Fields]:
        """Takes one event; gives the lines that it frees."""
        match kind:
            case "message.updated":
                return self._message(fields(properties, "info"))
            case "message.part.updated":
                part = self._part(fields(properties, "part"))
                return self._lines(part) if part is not None else []
            case "message.part.delta":
                return self._delta(properties)
            case _:
                return []

    def close(self, messages: list[Fields]) -> list[Fields]:
        """The turn is over. `messages` are the root's as the server keeps them: late roles and texts are applied, the rest is said."""
        lines: list[Fields] = []
        for message in messages:
            info = fields(message, "info")
            lines += self._message(info)
            if not self._is_ours(text(info, "sessionID"), text(info, "id")):
                continue
            for found in items(message, "parts"):
                part = self._part({"sessionID": info.get("sessionID"), "messageID": info.get("id"), **found})
                if part is not None:
                    lines += self._lines(part)
        for part in self._parts.values():
            part.is_over = True
            lines += self._lines(part)
        return lines

    # --- private ------------------------------------------------------------------------------------------------------------------------
    def _message(self, info: Fields) -> list[Fields]:
        message, session, role = text(info, "id"), text(info, "sessionID"), text(info, "role")
        if message is None or role is None or not self._family.holds(session):
            return []
        known = self._messages.setdefault(message, _Message(role, None))
        known.role = role
        known.parent = text(info, "parentID") or known.parent
        return [line for part in list(self._parts.values()) if part.message == message for line in self._lines(part)]

    def _part(self, found: Fields) -> _Part | None:
        part_id, session, message = text(found, "id"), text(found, "sessionID"), text(found, "messageID")
        if part_id is None or session is None or message is None or not self._family.holds(session):
            return None
        part = self._parts.setdefault(part_id, _Part(part_id, session, message))
        part.kind = text(found, "type")
        if part.kind == "text":
            part.full = text(found, "text") or ""
            part.is_shown = not (flag(found, "synthetic") or flag(found, "ignored"))
            part.is_over = part.is_over or fields(found, "time").get("end") is not None
        elif part.kind == "tool":
            part.state = fields(found, "state")
            part.tool, part.call = text(found, "tool") or "", text(found, "callID") or ""
        return part

    def _delta(self, properties: Fields) -> list[Fields]:
        part_id, more = text(properties, "partID"), text(properties, "delta")
        session, message = text(properties, "sessionID"), text(properties, "messageID")
        if part_id is None or more is None or text(properties, "field") != "text":
            return []
        if session is None or message is None or not self._family.holds(session):
            return []
        part = self._parts.setdefault(part_id, _Part(part_id, session, message))
        if not part.is_over:
            part.full += more
        return self._lines(part)

    def _is_ours(self, session: str | None, message: str | None) -> bool:
        """Whether it is an answer of this turn. Unknown is not yet."""
        known = self._messages.get(message or "")
        if known is None or known.role != "assistant" or session is None:
            return False
        return session != self._family.root or known.parent in (None, self._ours)

    def _lines(self, part: _Part) -> list[Fields]:
        if not self._is_ours(part.session, part.message):
            return []
        where = {"session": part.session, "parent": self._family.call_of(part.session)}
        if part.kind == "tool":
            return _tool_lines(part, where)
        if part.kind != "text" or not part.is_shown or part.is_said:
            return []
        which = {**where, "message": part.message, "part": part.id}
        lines: list[Fields] = []
        if len(part.full) > part.told:
            lines.append({"ev": "delta", **which, "text": part.full[part.told :]})
            part.told = len(part.full)
        # Only the part itself says that it is over: said at its message's end, a text was seen cut short (OpenCode, right after an abort).
        if part.is_over and part.full:
            part.is_said = True
            lines.append({"ev": "text", **which, "text": part.full})
        return lines


def _tool_lines(part: _Part, where: Fields) -> list[Fields]:
    state = part.state or {}
    status = text(state, "status")
    lines: list[Fields] = []
    if status in ("running", "completed", "error") and not part.tool_told:
        part.tool_told = True
        lines.append({"ev": "tool", **where, "call": part.call, "tool": part.tool, "input": fields(state, "input")})
    if status in ("completed", "error") and not part.result_told:
        part.result_told = True
        said = text(state, "output") if status == "completed" else text(state, "error")
        lines.append(
            {"ev": "tool_result", **where, "call": part.call, "text": said or "", "is_error": status == "error"}
        )
    return lines
