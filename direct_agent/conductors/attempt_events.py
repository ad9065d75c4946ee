"""The observable events of attempts, as plain mappings.

    attempt_begin    attempt
    attempt_discard  attempt, reason (of the closed list, or null): throw away all that the attempt showed
    attempt_commit   attempt
    retrying         attempt, limit, reason, phase, status, delay_s, next_at (s since 1970), waited_s, waiting
    countdown        remaining_s, waiting: every 10 s of a long pause; counts as activity
    delta            kind (text, reasoning, tool), text

None holds an address, an argument, a path or an error's raw text; deltas are the model's own words.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from direct_agent.ports import Events


def emit(events: Events, name: str, **fields: Any) -> None:
    values = {key: value.value if isinstance(value, StrEnum) else value for key, value in fields.items()}
    events.emit({"event": name, **values})
