"""Reads the recordings: one JSON object a line with `dir` in/out/transcript/note. Long strings in them are cut; ids are real."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CAPTURES = Path(__file__).parents[2] / "captures" / "claude-code"


@dataclass(frozen=True)
class Recording:
    """One recording, cut into what each process printed and what stood in each transcript."""

    rows: list[dict[str, Any]]

    def printed(self, proc: int = 1) -> list[dict[str, Any]]:
        return [row["msg"] for row in self.rows if row["dir"] == "out" and row["proc"] == proc]

    def messages(self, proc: int = 1) -> list[str]:
        """The ids of the messages that were written to a process, in order."""
        sent = [row["msg"] for row in self.rows if row["dir"] == "in" and row["proc"] == proc]
        return [message["uuid"] for message in sent if message["type"] == "user"]

    def activation(self, proc: int, message_id: str | None) -> tuple[int, bytes]:
        """Start offset and bytes of one activation: from its message's write (the first one: from the process start) to the next
        message's write. None: all that the process printed."""
        cuts: list[tuple[str | None, bytearray]] = [(None, bytearray())]
        for row in self.rows:
            if row.get("proc") != proc:
                continue
            if row["dir"] == "in" and row["msg"]["type"] == "user":
                cuts.append((row["msg"]["uuid"], bytearray()))
            elif row["dir"] == "out":
                cuts[-1][1].extend(as_lines([row["msg"]]))
        if message_id is None:
            return 0, b"".join(bytes(piece) for _, piece in cuts)
        at = [uuid for uuid, _ in cuts].index(message_id)
        first = 0 if at == 1 else at
        before = sum(len(piece) for _, piece in cuts[:first])
        return before, b"".join(bytes(piece) for _, piece in cuts[first : at + 1])

    def transcript(self, session_id: str | None = None) -> list[dict[str, Any]]:
        """The records of one transcript, or of the only one."""
        return [
            row["msg"]
            for row in self.rows
            if row["dir"] == "transcript" and (session_id is None or row["file"].endswith(f"{session_id}.jsonl"))
        ]


def as_lines(events: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode() + b"\n" for event in events)


def load(name: str) -> Recording:
    """One recording by its file name without the ending."""
    with (CAPTURES / f"{name}.jsonl").open() as rows:
        return Recording([json.loads(row) for row in rows])


def names() -> list[str]:
    """All of them."""
    return sorted(path.stem for path in CAPTURES.glob("*.jsonl"))
