"""Recorded streams of Pi: what was printed for one prompt, with the answers that the recorder did not ask for put in.

The recorder asked for the state before some prompts only. Where it did not, the same session's answer stands in for the one to the question
that a driver asks right before its message, and for the one after the end.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CAPTURES = Path(__file__).parents[1] / "captures" / "pi"
SESSION = "01a22c47-27d2-72b4-869b-597912035f2e"
OTHER_SESSION = "01a22c47-4d29-72b4-869b-597aad1448a3"
STORE = f"/home/m/.pi/agent/sessions/2026-11-30T11-46-30-000Z_{SESSION}.jsonl"


def state(request_id: str, session: str = SESSION, *, pending: int = 0, model: str = "fx-1") -> dict[str, Any]:
    """The answer to get_state."""
    data = {
        "model": {"id": model},
        "sessionFile": STORE.replace(SESSION, session),
        "sessionId": session,
        "messageCount": 2,
        "pendingMessageCount": pending,
    }
    return {"id": request_id, "type": "response", "command": "get_state", "success": True, "data": data}


def accepted(message_id: str) -> dict[str, Any]:
    """The answer to a prompt that was taken."""
    return {
        "id": message_id,
        "type": "response",
        "command": "prompt",
        "success": True,
        "data": {"disposition": "started"},
    }


def lines(*frames: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(frame, ensure_ascii=False).encode() + b"\n" for frame in frames)


@dataclass(frozen=True)
class Prompt:
    """One prompt and all that was printed until the next one. `message_id` is its id in the recording."""

    message_id: str
    text: str
    printed: tuple[dict[str, Any], ...]

    def stream(self, *, session: str = SESSION, asked_before: bool = True, asked_after: bool = True) -> bytes:
        """As a driver's activation would have seen it."""
        frames = list(self.printed)
        if asked_before:
            frames.insert(0, state(f"who-{self.message_id}", session))
        if asked_after:
            frames.append(state(f"end-{self.message_id}", session))
        return lines(*frames)


def prompts(name: str) -> list[Prompt]:
    """The prompts of one recording, in order."""
    made: list[tuple[str, str, list[dict[str, Any]]]] = []
    for line in (CAPTURES / f"{name}.jsonl").read_text().splitlines():
        row = json.loads(line)
        frame = row["msg"]
        if row["dir"] == "in" and frame["type"] == "prompt":
            made.append((frame["id"], frame["message"], []))
        elif row["dir"] == "out" and made and frame.get("command") not in ("get_state", "abort"):
            made[-1][2].append(frame)
    return [Prompt(message_id, text, tuple(printed)) for message_id, text, printed in made]


def printed_in(name: str) -> list[dict[str, Any]]:
    """Every frame that the CLI printed in one recording."""
    rows = [json.loads(line) for line in (CAPTURES / f"{name}.jsonl").read_text().splitlines()]
    return [row["msg"] for row in rows if row["dir"] == "out"]
