"""Recorded streams of Claude Code, cut into activations: what was written and what was printed, in order."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CAPTURES = Path(__file__).parents[2] / "captures" / "claude-code"
CASES = Path(__file__).parents[2] / "cases"


@dataclass
class Activation:
    """One user message of a recording. `before` was printed since the activation before it, `after` since the write."""

    process: int
    message_id: str
    text: str
    frame: dict[str, Any]
    process_is_new: bool
    before: list[dict[str, Any]] = field(default_factory=list)
    after: list[dict[str, Any]] = field(default_factory=list)
    handshake_written: bool = False


def activations(name: str) -> list[Activation]:
    """The recording's activations. What is printed after the end of one and before the next message is in its `after`."""
    found: list[Activation] = []
    before: list[dict[str, Any]] = []
    handshake = False
    seen_processes: set[int] = set()
    for line in (CAPTURES / f"{name}.jsonl").read_bytes().splitlines():
        row = json.loads(line)
        if row["dir"] not in ("in", "out"):
            continue
        message = row["msg"]
        if row["dir"] == "in" and message["type"] == "user":
            process = row["proc"]
            text = message["message"]["content"][0]["text"]
            is_new = process not in seen_processes
            found.append(Activation(process, message["uuid"], text, message, is_new, before, [], handshake))
            seen_processes.add(process)
            before, handshake = [], False
        elif row["dir"] == "in":
            handshake = handshake or message.get("request", {}).get("subtype") == "initialize"
        elif found and found[-1].process == row["proc"]:
            found[-1].after.append(message)
        else:
            before.append(message)
    return found


def lines(frames: list[dict[str, Any]]) -> bytes:
    """Frames as the CLI printed them, one JSON value a line."""
    return b"".join(json.dumps(frame, ensure_ascii=False).encode() + b"\n" for frame in frames)


def case(case_id: str) -> dict[str, Any]:
    """One entry of cases.json."""
    entries: list[dict[str, Any]] = json.loads((CASES / "cases.json").read_text())
    return next(entry for entry in entries if entry["id"] == case_id)


def case_input(case_id: str) -> bytes:
    return (CASES / str(case(case_id)["input"])).read_bytes()
