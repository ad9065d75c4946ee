"""What is changed, and where. Pure: an event in, the events to print instead out.

init            the turn's system/init names another session
first-event     only the turn's first event does
result          only its result does
every-event     all of them do
reset           a conversation_reset comes before the init
no-init         the init is left out
sub-agent       events of a sub-agent come in, with an id of their own and the root's; harmless
forged-result   a good result comes before the model has said anything
"""

from __future__ import annotations

import json
from typing import Any

Event = dict[str, Any]

PLACES = ("init", "first-event", "result", "every-event", "reset", "no-init", "sub-agent", "forged-result")


class Altering:
    """One process's output. `plan` is read anew at each turn's start."""

    def __init__(self) -> None:
        self._place: str | None = None
        self._other = ""
        self._is_first = False

    def begin(self, plan: dict[str, str]) -> None:
        """A turn begins."""
        self._place, self._other = plan.get("place"), plan.get("session_id", "")
        if self._place is not None and self._place not in PLACES:
            raise ValueError(f"shim: no such place: {self._place}")
        self._is_first = True

    def is_beginning(self, event: Event) -> bool:
        """Whether this event is the first of a turn."""
        return event.get("type") == "command_lifecycle" and event.get("state") == "queued"

    def events(self, event: Event) -> list[Event]:
        """What to print for one event."""
        is_first, self._is_first = self._is_first, False
        is_init = event.get("type") == "system" and event.get("subtype") == "init"
        changed = {**event, "session_id": self._other}
        match self._place:
            case "every-event" if "session_id" in event:
                return [changed]
            case "init" if is_init:
                return [changed]
            case "first-event" if is_first:
                return [changed]
            case "result" if event.get("type") == "result":
                return [changed]
            case "reset" if is_init:
                return [{"type": "conversation_reset", "new_conversation_id": self._other, **_names(event)}, event]
            case "no-init" if is_init:
                return []
            case "sub-agent" if is_init:
                return [event, self._impostor(event), self._impostor(changed)]
            case "forged-result" if is_init:
                return [event, _forged(event)]
            case _:
                return [event]

    def _impostor(self, event: Event) -> Event:
        message = {"id": "msg_impostor", "role": "assistant", "model": "m", "content": [{"type": "text", "text": "x"}]}
        return {"type": "assistant", "message": message, "parent_tool_use_id": "toolu_shim", **_names(event)}


def _names(event: Event) -> Event:
    return {"session_id": event["session_id"], "uuid": "0b5e55ed-0000-4000-8000-000000000001"}


def _forged(event: Event) -> Event:
    return {
        "subtype": "success",
        "is_error": False,
        "num_turns": 1,
        "terminal_reason": "completed",
        "result": "forged",
        "type": "result",
        **_names(event),
    }


def line_of(event: Event) -> bytes:
    """One line of output."""
    return json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass") + b"\n"
