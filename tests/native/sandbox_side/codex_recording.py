"""Recorded streams of Codex for the sandbox side: what each activation printed, and what stood in each rollout.

The recordings' requests have whole numbers as ids; the answers in them get the ids that the gate demands of our frames.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandbox_manager.agents.codex.agent import Codex
from sandbox_manager.core.values import TapFindings

CAPTURES = Path(__file__).parents[2] / "captures" / "codex"
AGENT = Codex()


@dataclass
class Activation:
    """One message's activation: from its process's start, or from its write on a kept process, to the next message's write."""

    message_id: str
    start_offset: int
    printed: bytearray = field(default_factory=bytearray)

    def findings(self, *, cut_every: int | None = None) -> TapFindings:
        reader = AGENT.tap_reader(message_id=self.message_id, start_offset=self.start_offset)
        data, size = bytes(self.printed), cut_every or max(len(self.printed), 1)
        for start in range(0, len(data), size):
            reader.feed(data[start : start + size])
        return reader.findings()


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (CAPTURES / f"{name}.jsonl").read_bytes().split(b"\n")[:-1]]


def activations(name: str) -> list[Activation]:
    """Every message of a recording, in order; a process that got none has one activation of the message "none"."""
    found: list[Activation] = []
    ids: dict[int, str] = {}
    for row in rows(name):
        message: Any = row.get("msg")
        if row["dir"] == "in":
            method = message.get("method")
            if method == "initialize":
                ids = {message["id"]: "init-1"}
                found.append(Activation("none", 0))
            elif method in ("thread/start", "thread/resume") and "thread-1" not in ids.values():
                ids[message["id"]] = "thread-1"
            elif method == "turn/start":
                message_id = message["params"].get("clientUserMessageId", f"m-{message['id']}")
                ids[message["id"]] = f"turn-{message_id}"
                if found[-1].message_id == "none":
                    found[-1].message_id = message_id
                else:
                    found.append(Activation(message_id, found[-1].start_offset + len(found[-1].printed)))
            elif "id" in message and method is not None:
                ids[message["id"]] = f"another-{message['id']}"
        elif row["dir"] == "out":
            if "method" not in message:
                message = {**message, "id": ids.get(message["id"], message["id"])}
            found[-1].printed += as_line(message)
    return found


def rollout(name: str, thread_id: str | None = None) -> list[dict[str, Any]]:
    """The records of one thread's rollout, or of the only one."""
    return [
        uncut(row["msg"])
        for row in rows(name)
        if row["dir"] == "rollout" and (thread_id is None or row["file"].endswith(f"{thread_id}.jsonl"))
    ]


def uncut(record: dict[str, Any]) -> dict[str, Any]:
    """A record whose payload was cut out of the recording as one with an empty payload."""
    return record if isinstance(record["payload"], dict) else {**record, "payload": {}}


def as_line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def as_lines(values: list[dict[str, Any]]) -> bytes:
    return b"".join(map(as_line, values))


def names() -> list[str]:
    return sorted(path.stem for path in CAPTURES.glob("*.jsonl"))
