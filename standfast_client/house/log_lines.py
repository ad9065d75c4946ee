"""The lines of the house's processes, each behind its process's name; JSON log lines shortened for a terminal."""

from __future__ import annotations

import json
from typing import TextIO

from standfast_client.screen.control_characters import shown

_NAME_WIDTH = 10
_COLOURS = {"manager": 35, "host-agent": 34, "runner": 32, "lab": 36}
# Said by the prefix, or of no use to a person.
_LEFT_OUT = {"event", "level", "timestamp", "service", "logger", "exception"}


class LogLines:
    """Writes lines to one stream."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_terminal = out.isatty()

    def line(self, name: str, text: str) -> None:
        """One line of the process `name`."""
        if not self._is_terminal:
            self._out.write(f"{name:<{_NAME_WIDTH}} | {text}\n")
        else:
            self._out.write(
                f"\x1b[{_COLOURS.get(name, 37)}m{name:<{_NAME_WIDTH}} |\x1b[0m {shown(_for_people(text))}\n"
            )
        self._out.flush()

    def note(self, text: str) -> None:
        """A line of the house itself."""
        self.line("up", text)


def _for_people(text: str) -> str:
    try:
        found = json.loads(text)
    except ValueError:
        return text
    if not isinstance(found, dict) or "event" not in found:
        return text
    rest = " ".join(f"{key}={value}" for key, value in found.items() if key not in _LEFT_OUT)
    clock = str(found.get("timestamp", ""))[11:23]
    trace = f"\n{found['exception']}" if found.get("exception") else ""
    return f"{clock} {str(found.get('level', '')).upper():<7} {found['event']}  {rest}".rstrip() + trace
