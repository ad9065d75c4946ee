"""The process: reads stdin, answers control requests at once, runs one message after the other.

Nothing is printed before the first line of input, except by a `--resume` of a session that is not there. Closing stdin lets the
running turn end, then writes what is pending and leaves: 1 if the last turn ended in an error, else 0. SIGTERM: 143, SIGINT: 0.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import VERSION, history
from .arguments import Arguments, UsageError, read_arguments
from .gates import pass_gate
from .printer import Printer, new_uuid
from .transcript import Transcript, path_of, read_records
from .turn import Session, Turn

Message = tuple[str | None, list[dict[str, Any]]]


class Process:
    """Main thread: stdin. Another thread: turns."""

    def __init__(self, session: Session, delivered: set[str]) -> None:
        self._session = session
        self._out = session.printer
        self._delivered = delivered
        self._messages: queue.Queue[Message | None] = queue.Queue()
        self._turn: Turn | None = None
        self._lock = threading.Lock()
        self._queued: list[str | None] = []
        self._cancelled: set[str] = set()
        self._ran_a_turn = False
        self._is_resumed = session.arguments.resume is not None

    def run(self) -> int:
        """Until stdin ends."""
        worker = threading.Thread(target=self._work, daemon=True)
        worker.start()
        threading.Thread(target=self._session.model.hello, daemon=True).start()
        signal.signal(signal.SIGTERM, lambda *_: self._leave_at_once(143))
        signal.signal(signal.SIGINT, lambda *_: self._leave_at_once(0))
        buffer = bytearray()
        while data := os.read(0, 65536):
            buffer += data
            while (end := buffer.find(b"\n")) >= 0:
                line = bytes(buffer[:end])
                del buffer[: end + 1]
                if line.strip() and not self._line(line):
                    return 1
        self._messages.put(None)
        worker.join()
        if self._session.has_background_task:
            self._autonomous_turn()
        self._write_the_rest()
        return 1 if self._session.last_failed else 0

    def _line(self, line: bytes) -> bool:
        try:
            value = json.loads(line)
        except ValueError as error:
            print(f"Error parsing streaming input line: {error}", file=sys.stderr)
            return False
        match value.get("type"):
            case "control_request":
                return self._control(value)
            case "control_response":
                self._session.asking.take_answer(value["response"])
            case "user":
                self._user(value)
            case _:
                pass
        return True

    def _control(self, value: dict[str, Any]) -> bool:
        request_id, subtype = value.get("request_id"), value["request"].get("subtype")
        answer: dict[str, Any] = {"subtype": "success", "request_id": request_id, "response": {}}
        if subtype == "initialize":
            pass_gate(self._session.gates, "initialize", lambda: False)
            answer["response"] = {
                "commands": [{"name": "clear", "description": "stub"}],
                "output_style": "default",
                "models": [],
                "account": {"apiKeySource": "ANTHROPIC_API_KEY"},
                "pid": os.getpid(),
            }
        elif subtype == "interrupt":
            answer["response"] = self._interrupted_queue(cancels=value["request"].get("cancel_queued") is True)
        elif subtype != "end_session":
            answer = {"subtype": "error", "request_id": request_id, "error": f"Unsupported control request: {subtype}"}
        self._out.event({"type": "control_response", "response": answer}, names_session=False)
        if subtype == "interrupt" and (turn := self._turn) is not None and not turn.is_deaf:
            self._session.interrupted.set()
            self._session.model.abort()
            self._session.tool.kill()
        if subtype == "end_session":
            self._leave_at_once(0)
        return True

    def _interrupted_queue(self, *, cancels: bool) -> dict[str, Any]:
        """What becomes of messages that were taken and not begun: without `cancel_queued` they run all the same."""
        with self._lock:
            queued = [one for one in self._queued if one is not None]
            if not cancels:
                return {"still_queued": queued}
            self._cancelled.update(queued)
            self._queued.clear()
        for one in queued:
            self._out.lifecycle(one, "cancelled")
        return {"still_queued": [], "cancelled": queued}

    def _user(self, value: dict[str, Any]) -> None:
        message_uuid = value.get("uuid")
        content = value["message"]["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if message_uuid in self._delivered:
            self._out.lifecycle(message_uuid, "completed")
            return
        if message_uuid is not None:
            self._delivered.add(message_uuid)
            self._out.lifecycle(message_uuid, "queued")
        self._session.transcript.queue_operation("enqueue")
        with self._lock:
            self._queued.append(message_uuid)
        self._messages.put((message_uuid, blocks))

    def _work(self) -> None:
        while (message := self._messages.get()) is not None:
            pass_gate(self._session.gates, "queued", lambda: message[0] in self._cancelled)
            with self._lock:
                if message[0] is not None and message[0] in self._cancelled:
                    continue
                self._queued.remove(message[0])
            self._session.interrupted.clear()
            self._session.model.ready()
            self._turn = Turn(self._session, *message)
            self._turn.run()
            self._turn = None
            self._ran_a_turn = True

    def _autonomous_turn(self) -> None:
        """With a background task pending the program runs a turn of its own before it leaves."""
        s = self._session
        self._out.init(s.cwd, s.arguments.model, s.arguments.permission_mode, VERSION)
        self._out.result(
            subtype="success",
            is_error=False,
            num_turns=1,
            terminal_reason="completed",
            result="",
            origin={"kind": "task-notification"},
        )

    def _write_the_rest(self) -> None:
        s = self._session
        if self._ran_a_turn:
            s.transcript.loose({"type": "last-prompt", "lastPrompt": s.last_prompt, "leafUuid": s.transcript.leaf})
        elif self._is_resumed:
            s.transcript.loose({"type": "mode", "mode": "normal"})
        s.transcript.flush()
        with suppress(OSError):
            _process_file().unlink()

    def _leave_at_once(self, code: int) -> None:
        if self._turn is not None:
            self._session.tool.kill()
            self._out.result(
                subtype="error_during_execution",
                is_error=True,
                num_turns=1,
                terminal_reason="aborted_streaming",
                errors=["[ede_diagnostic] result_type=user last_content_type=n/a stop_reason=null"],
            )
        self._write_the_rest()
        os._exit(code)


def main(argv: list[str], executable: str) -> int:
    """Runs the program; its exit code. `executable`: where the gates are looked for."""
    if argv == ["--version"]:
        print(f"{VERSION} (Claude Code)")
        return 0
    try:
        arguments = read_arguments(argv)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 1
    if arguments.permission_mode == "bypassPermissions" and os.geteuid() == 0 and not os.environ.get("IS_SANDBOX"):
        print("--dangerously-skip-permissions cannot be used with root/sudo privileges", file=sys.stderr)
        return 1
    return _run(arguments, os.path.join(os.path.dirname(os.path.abspath(executable)), "gates"))


def _run(arguments: Arguments, gates: str) -> int:
    home, cwd = os.environ["HOME"], os.path.realpath(os.getcwd())
    session_id = arguments.resume or arguments.session_id or new_uuid()
    path = path_of(home, cwd, session_id)
    records = read_records(path)
    leaf = history.leaf_of(records)
    if arguments.resume is not None and leaf is None:
        return _refuse_resume(session_id)
    if arguments.resume is None:
        try:
            uuid.UUID(session_id)
        except ValueError:
            print("Error: Invalid session ID. Must be a valid UUID.", file=sys.stderr)
            return 1
        if records:
            print(f"Error: Session ID {session_id} is already in use.", file=sys.stderr)
            return 1
    _write_own_files(home)
    pass_gate(gates, "start", lambda: False)
    printer = Printer()
    printer.session_id = session_id
    transcript = Transcript(path, session_id, cwd, leaf)
    session = Session(session_id, arguments, printer, transcript, history.messages_of(records), gates)
    delivered = {str(record["uuid"]) for record in records if record.get("type") == "user" and record.get("uuid")}
    return Process(session, delivered).run()


def _refuse_resume(session_id: str) -> int:
    said = f"No conversation found with session ID: {session_id}"
    event = {
        "type": "result",
        "subtype": "error_during_execution",
        "duration_ms": 0,
        "duration_api_ms": 0,
        "is_error": True,
        "num_turns": 0,
        "stop_reason": None,
        "session_id": session_id,
        "total_cost_usd": 0,
        "usage": {},
        "permission_denials": [],
        "uuid": new_uuid(),
        "errors": [said],
    }
    Printer().event(event, names_session=False)
    print(said, file=sys.stderr)
    return 1


def _process_file() -> Path:
    return Path(os.environ["HOME"]) / ".claude" / "sessions" / f"{os.getpid()}.json"


def _write_own_files(home: str) -> None:
    with suppress(OSError):
        settings = Path(home) / ".claude.json"
        if not settings.exists():
            settings.write_text("{}", encoding="ascii")
        _process_file().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _process_file().write_text(json.dumps({"pid": os.getpid()}), encoding="ascii")
