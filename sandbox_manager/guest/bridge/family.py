"""Which sessions belong to the turn: the root, and the Task children that were *reported* on this very subscription. Pure.

A report is a `session.created` (or an update of it) whose parent leads to the root, or a task part of a known session that names its
child. A later update of a Kilo task part no longer names the child, so the first sight counts.
"""

from .shapes import Fields, fields, text


class Family:
    """One turn's sessions."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._parents: dict[str, str] = {}
        self._calls: dict[str, str] = {}

    def note(self, kind: str, properties: Fields) -> bool:
        """Takes one event; whether it reported a session."""
        match kind:
            case "session.created" | "session.updated":
                info = fields(properties, "info")
                return self._report(text(info, "id"), text(info, "parentID"), None)
            case "message.part.updated":
                part = fields(properties, "part")
                if text(part, "type") != "tool" or text(part, "tool") != "task":
                    return False
                parent = text(part, "sessionID")
                metadata = fields(part, "state", "metadata")
                if text(metadata, "parentSessionId") not in (None, parent):
                    return False
                return self._report(text(metadata, "sessionId"), parent, text(part, "callID"))
            case _:
                return False

    def _report(self, child: str | None, parent: str | None, call: str | None) -> bool:
        if child is None or parent is None or child == self.root:
            return False
        if call is not None:
            self._calls.setdefault(child, call)
        if child in self._parents:
            return False
        self._parents[child] = parent
        return True

    def holds(self, session: str | None) -> bool:
        """Whether the session is the root or its reported chain of parents leads there."""
        seen: set[str] = set()
        while session is not None and session not in seen:
            if session == self.root:
                return True
            seen.add(session)
            session = self._parents.get(session)
        return False

    def call_of(self, session: str) -> str | None:
        """What a child's lines name as their parent: its Task call, or its own id while that is not known; None for the root."""
        return None if session == self.root else self._calls.get(session, session)
