"""A stand-in for Claude Code that costs next to nothing: what is measured beside it is the product's own work.

It speaks as much of the CLI's protocol as the product asks of it, and keeps a transcript of the CLI's form, written before its `result`.
Each turn makes one model call with the newest message alone, so that its cost does not grow with the conversation. To a message that
begins with `ticks: RATE MAX` it prints RATE pieces of text a second, each the time at which it was printed (CLOCK_MONOTONIC, ns), until
MAX are printed or a file `stop` lies beside its executable.

Copied out as one file and run by its path: it imports nothing but a few small parts of the standard library.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time

TYPE_CHECKING = False  # `typing` itself would be half of this process's memory
if TYPE_CHECKING:
    from typing import Any

VERSION = "0.0.0"  # the pinned one is put here when the file is copied
_MESSAGE = {"id": "msg_bench", "type": "message", "role": "assistant", "model": "bench", "stop_reason": "end_turn"}


def new_uuid() -> str:
    """A random uuid, without the module that makes them."""
    text = os.urandom(16).hex()
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-a{text[17:20]}-{text[20:]}"


class Session:
    """One process: a session id, its transcript, its leaf."""

    def __init__(self, session_id: str, is_resume: bool) -> None:
        self.id = session_id
        cwd = os.path.realpath(os.getcwd())
        slug = "".join(c if c.isascii() and c.isalnum() else "-" * (2 if ord(c) > 0xFFFF else 1) for c in cwd)
        folder = f"{os.environ['HOME']}/.claude/projects/{slug}"
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self.path = f"{folder}/{session_id}.jsonl"
        self.cwd = cwd
        self.leaf: str | None = self._last_uuid() if is_resume else None
        self.stop_file = f"{os.path.dirname(os.path.abspath(sys.argv[0]))}/stop"

    def _last_uuid(self) -> str:
        with open(self.path, "rb") as file:
            file.seek(max(os.path.getsize(self.path) - 65536, 0))
            uuids = [json.loads(line).get("uuid") for line in file.read().split(b"\n")[1:] if line]
        return str([uuid for uuid in uuids if uuid][-1])

    def show(self, event: dict[str, Any]) -> None:
        """Prints one event."""
        event.setdefault("session_id", self.id)
        event.setdefault("uuid", new_uuid())
        data = json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        while data:
            data = data[os.write(1, data) :]

    def record(self, record: dict[str, Any], uuid: str) -> bytes:
        """A line of the transcript, on the chain."""
        line = {"parentUuid": self.leaf, "isSidechain": False, **record, "uuid": uuid, "sessionId": self.id}
        line |= {"cwd": self.cwd, "version": VERSION, "timestamp": "2026-01-01T00:00:00.000Z"}
        self.leaf = uuid
        return json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"

    def turn(self, uuid: str, content: list[dict[str, Any]]) -> None:
        """One message to its end."""
        text = "".join(block.get("text", "") for block in content)
        self.show({"type": "command_lifecycle", "command_uuid": uuid, "state": "queued"})
        self.show({"type": "command_lifecycle", "command_uuid": uuid, "state": "started"})
        init = {"type": "system", "subtype": "init", "cwd": self.cwd, "model": "bench", "tools": []}
        self.show(init | {"permissionMode": "bypassPermissions", "claude_code_version": VERSION, "mcp_servers": []})
        written = self.record({"type": "user", "message": {"role": "user", "content": content}}, uuid)
        reply = self.ask_model(text)
        if text.startswith("ticks: "):
            rate, most = text.split()[1:3]
            self.tick(int(rate), int(most))
        else:
            self.show_piece(reply)
        answer = {**_MESSAGE, "content": [{"type": "text", "text": reply}]}
        answer_uuid = new_uuid()
        written += self.record({"type": "assistant", "message": answer}, answer_uuid)
        self.show({"type": "assistant", "message": answer, "parent_tool_use_id": None, "uuid": answer_uuid})
        with open(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb", buffering=0) as file:
            file.write(written)
        end = {"type": "result", "subtype": "success", "is_error": False, "num_turns": 1, "result": reply}
        self.show(end | {"terminal_reason": "completed", "usage": {}, "user_message_uuid": uuid, "duration_ms": 1})
        self.show({"type": "command_lifecycle", "command_uuid": uuid, "state": "completed"})

    def tick(self, rate: int, most: int) -> None:
        """Pieces of text at an even pace."""
        due = time.monotonic()
        for _ in range(most):
            due += 1 / rate
            time.sleep(max(due - time.monotonic(), 0))
            self.show_piece(f"{time.monotonic_ns()} ")
            if os.path.exists(self.stop_file):
                return

    def show_piece(self, text: str) -> None:
        """A piece of text as it streams."""
        delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
        self.show({"type": "stream_event", "event": delta, "parent_tool_use_id": None})

    def ask_model(self, text: str) -> str:
        """One whole answer from ANTHROPIC_BASE_URL."""
        host, _, port = os.environ["ANTHROPIC_BASE_URL"].removeprefix("http://").rstrip("/").partition(":")
        messages = [{"role": "user", "content": [{"type": "text", "text": text}]}]
        asked = json.dumps({"model": "bench", "max_tokens": 100, "messages": messages}).encode()
        head = (
            f"POST /v1/messages?beta=true HTTP/1.1\r\nhost: {host}:{port}\r\nconnection: close\r\n"
            f"content-type: application/json\r\nx-api-key: {os.environ['ANTHROPIC_API_KEY']}\r\n"
            f"anthropic-version: 2023-06-01\r\nx-claude-code-session-id: {self.id}\r\ncontent-length: {len(asked)}\r\n\r\n"
        )
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(head.encode() + asked)
            answer = b""
            while piece := connection.recv(65536):
                answer += piece
        body = answer.partition(b"\r\n\r\n")[2]
        return "".join(block.get("text", "") for block in json.loads(body)["content"])


def main() -> None:
    """Reads lines until stdin ends."""
    words = sys.argv[1:]
    if words == ["--version"]:
        print(f"{VERSION} (Claude Code)")
        return
    is_resume = "--resume" in words
    session = Session(words[words.index("--resume" if is_resume else "--session-id") + 1], is_resume)
    for line in sys.stdin.buffer:
        frame = json.loads(line)
        if frame["type"] == "user":
            session.turn(frame["uuid"], frame["message"]["content"])
        elif frame["type"] == "control_request":
            answer = {"subtype": "success", "request_id": frame["request_id"], "response": {"commands": []}}
            session.show({"type": "control_response", "response": answer})


if __name__ == "__main__":
    main()
