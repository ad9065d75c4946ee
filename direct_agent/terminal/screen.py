"""What a person sees of a turn, line by line. Implements Audience; also the JSON lines for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TextIO

_RESULT_LINES = 6
_VALUE_CHARACTERS = 200


class JsonLines:
    """Each event as one JSON line, as it happens. `session_id` is part of each."""

    def __init__(self, out: TextIO, session_id: Callable[[], str | None]) -> None:
        self._out = out
        self._session_id = session_id

    def say(self, event: Mapping[str, Any]) -> None:
        # ASCII: half surrogate pairs and line separators are escapes then.
        self._out.write(json.dumps({**event, "session_id": self._session_id()}) + "\n")
        self._out.flush()


class Screen:
    """Plain text; control characters of models and tools do not reach the terminal."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_in_line = False
        self._shown = 0  # characters of the answer that came as deltas

    def say(self, event: Mapping[str, Any]) -> None:
        match event["type"]:
            case "text_delta":
                self._shown += len(event["text"])
                self._write(event["text"])
            case "discarded":
                if self._shown:
                    self._line("[the text above is taken back: the answer was cut]")
                self._shown = 0
            case "assistant":
                if not self._shown and event["text"]:
                    self._write(event["text"])
                self._shown = 0
                self._end_line()
                for call in event["tool_calls"]:
                    self._line(f"· {call['tool']} {_clipped(call['arguments'])}")
            case "tool_result":
                self._result(event)
            case "retrying":
                what = "waiting for the provider" if event["waiting"] else "trying again"
                self._line(f"[{event['reason']}: {what} in {event['delay_s']:.0f} s, attempt {event['attempt']}]")
            case "countdown":
                self._line(f"[still waiting: {event['remaining_s']:.0f} s]")
            case "compacted":
                self._line("[the conversation was shortened to a summary and its last part]")
            case "turn_end":
                self._ended(event)
            case _:
                pass

    def show(self, text: str) -> None:
        self._line(text)

    def _result(self, event: Mapping[str, Any]) -> None:
        mark = "✗" if event["is_error"] else "✓"
        lines = str(event["text"]).splitlines() or [""]
        more = f" (… {len(lines) - _RESULT_LINES} more lines)" if len(lines) > _RESULT_LINES else ""
        self._line(f"  {mark} " + "\n    ".join(_clipped(line) for line in lines[:_RESULT_LINES]) + more)

    def _ended(self, event: Mapping[str, Any]) -> None:
        self._end_line()
        if event["outcome"] != "completed":
            self._line(f"[{event['outcome']}: {event['error'] or event['reason'] or 'no reason given'}]")

    def _line(self, text: str) -> None:
        self._end_line()
        self._write(text + "\n")

    def _end_line(self) -> None:
        if self._is_in_line:
            self._write("\n")

    def _write(self, text: str) -> None:
        shown = "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text)
        if shown:
            self._out.write(shown)
            self._out.flush()
            self._is_in_line = not shown.endswith("\n")


def _clipped(text: str) -> str:
    line = text.replace("\n", "⏎")
    return line if len(line) <= _VALUE_CHARACTERS else f"{line[:_VALUE_CHARACTERS]}…"
