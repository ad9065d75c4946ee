"""One turn: from the message's `started` to the `result` and what follows it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from . import VERSION, history
from .arguments import Arguments
from .gates import pass_gate
from .model import BrokenStreamError, ConnectionLostError, ModelClient, StatusError
from .permissions import ALLOW, DENY, QUESTION_TOOL, Asking, rule_on, told
from .printer import Printer, new_uuid
from .tools import RunningTool
from .transcript import Transcript
from .words import Word, read_words, size_of

_RETRIED = frozenset({401, 408, 409, 429, 500, 502, 503, 504, 529})
_RETRY_DELAY_S = 0.03
_RETRY_DELAY_MAX_S = 1.0
_STEPS_MAX = 50
_CONTINUE_AFTER_LIMIT = "Output token limit hit. Resume directly — no apology, no recap. Pick up mid-thought."
_CONTINUE_AFTER_NOTHING = "[Your previous response had no visible output. Please continue with the task.]"
_REJECTED = "The user doesn't want to proceed with this tool use. The tool use was rejected."

Block = dict[str, Any]


class InterruptedTurnError(Exception):
    """The turn is to end now. `in_tool`: a tool was running."""

    def __init__(self, *, in_tool: bool = False) -> None:
        super().__init__()
        self.in_tool = in_tool


class Session:
    """What outlives a turn: the history, the file, the things a turn uses."""

    def __init__(
        self,
        session_id: str,
        arguments: Arguments,
        printer: Printer,
        transcript: Transcript,
        messages: list[history.Message],
        gates: str,
    ) -> None:
        self.id = session_id
        self.arguments = arguments
        self.printer = printer
        self.transcript = transcript
        self.history = messages
        self.cwd = os.getcwd()
        self.gates = gates
        self.model = ModelClient(os.environ.get("ANTHROPIC_BASE_URL", ""), os.environ.get("ANTHROPIC_API_KEY", ""))
        self.tool = RunningTool(self.cwd)
        self.asking = Asking(printer)
        self.interrupted = threading.Event()
        self.late_records: list[dict[str, Any]] = []
        self.has_background_task = False
        self.last_failed = False
        self.last_prompt = ""
        self.is_first_turn = not messages


class Turn:
    """One message. `run` never raises for what a turn can meet."""

    def __init__(self, session: Session, message_uuid: str | None, content: list[Block]) -> None:
        self._s = session
        self._out = session.printer
        self._uuid = message_uuid
        self._content = content
        self._text = "".join(block.get("text", "") for block in content)
        self._words = read_words(self._text)
        self._is_deaf = any(word.name == "deaf" for word in self._words)
        self._partial: tuple[dict[str, Any], list[Block]] | None = None
        self._tool_call: Block | None = None
        self._user_record: str | None = None
        self._steps = 0
        self._last_text = ""
        self._stop_reason: str | None = None

    @property
    def is_deaf(self) -> bool:
        """Whether an interrupt shall do nothing."""
        return self._is_deaf

    def run(self) -> None:
        """The whole turn."""
        s = self._s
        self._lifecycle("started")
        s.transcript.queue_operation("dequeue")
        s.last_prompt = self._text
        try:
            self._point("started")
            if self._is_command():
                self._command()
                return
            self._begin()
            self._point("init")
            self._answer()
            self._point("reply")
            self._end(failed=False, reason="completed", result=self._last_text)
        except InterruptedTurnError as interrupted:
            self._cancel(interrupted.in_tool)
        except (StatusError, ConnectionLostError) as failure:
            self._fail(failure)

    # --- beginning ----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        s = self._s
        if not self._has("no-init"):
            self._out.init(s.cwd, s.arguments.model, s.arguments.permission_mode, VERSION)
        if (late := self._word("late-transcript")) is not None:
            s.transcript.extra_delay_s = float(late.value)
        s.transcript.is_muted = s.transcript.is_muted or self._has("no-transcript")
        parent = None
        for record in s.late_records:  # the defect: they take the place of the reply that came after the retry
            parent = s.transcript.chained(record, uuid=record.pop("uuid"), parent=record.pop("parentUuid"))
        s.late_records.clear()
        self._user_record = s.transcript.chained(
            {
                "promptId": new_uuid(),
                "type": "user",
                "message": {"role": "user", "content": [b for b in self._content if b.get("text") != ""]},
                "permissionMode": s.arguments.permission_mode,
                "promptSource": "sdk",
            },
            uuid=self._uuid,
            parent=parent,
        )
        s.history.append({"role": "user", "content": list(self._content)})
        if s.is_first_turn:
            for kind in ("agent_listing_delta", "skill_listing"):
                s.transcript.chained({"type": "attachment", "attachment": {"type": kind}})
            s.is_first_turn = False

    def _is_command(self) -> bool:
        last = self._content[-1].get("text", "") if self._content else ""
        return last.startswith("/") and not last[1:].split(" ")[0].count("/")

    def _command(self) -> None:
        """Slash text: `/clear` begins another session in this process, all else is not known here."""
        s = self._s
        name = self._content[-1]["text"][1:].split(" ")[0]
        if name == "clear":
            fresh = new_uuid()
            self._out.event({"type": "conversation_reset", "new_conversation_id": new_uuid()})
            s.id = self._out.session_id = fresh
            s.transcript.flush()
            s.transcript = Transcript(s.transcript.path.with_name(f"{fresh}.jsonl"), fresh, s.cwd, None)
            s.history.clear()
            s.is_first_turn = True
            said = ""
        else:
            said = f"Unknown command: /{name}"
        self._out.init(s.cwd, s.arguments.model, s.arguments.permission_mode, VERSION)
        s.transcript.chained(
            {"type": "user", "message": {"role": "user", "content": self._content}, "promptSource": "sdk"},
            uuid=self._uuid,
        )
        self._synthetic(said if said else "(no content)")
        self._out.result(subtype="success", is_error=False, num_turns=0, result=said)
        self._closed("completed")

    # --- the model ----------------------------------------------------------------------------------------------------

    def _answer(self) -> None:
        """Calls the model until it has nothing more to do."""
        asked_again = False
        while True:
            self._steps += 1
            message = self._call()
            blocks = message["content"]
            self._stop_reason = message.get("stop_reason")
            calls = [block for block in blocks if block.get("type") == "tool_use"]
            if blocks:
                self._s.history.append({"role": "assistant", "content": blocks})
            if calls:
                self._s.history.append({"role": "user", "content": [self._use_tool(call) for call in calls]})
            elif self._stop_reason == "refusal":
                raise StatusError(200, "the model refused", None)
            elif self._stop_reason == "max_tokens" and self._steps < _STEPS_MAX:
                self._meta(_CONTINUE_AFTER_LIMIT)
            elif not blocks and not asked_again:
                asked_again = True
                self._meta(_CONTINUE_AFTER_NOTHING)
            else:
                return
            if self._steps >= _STEPS_MAX:
                return

    def _meta(self, text: str) -> None:
        block = {"type": "text", "text": text}
        self._s.transcript.chained({"type": "user", "isMeta": True, "message": {"role": "user", "content": [block]}})
        self._s.history.append({"role": "user", "content": [block]})

    def _call(self) -> dict[str, Any]:
        """One answer, with the program's own retries."""
        attempt = 0
        retries_max = int(os.environ.get("CLAUDE_CODE_MAX_RETRIES", "10"))
        while True:
            self._check()
            try:
                return self._streamed()
            except BrokenStreamError:
                self._check()
                return self._whole()
            except (StatusError, ConnectionLostError) as failure:
                self._check()
                status = failure.status if isinstance(failure, StatusError) else None
                attempt += 1
                if (status is not None and status not in _RETRIED) or attempt > retries_max:
                    raise
                self._retry(attempt, retries_max, status, failure)

    def _retry(self, attempt: int, retries_max: int, status: int | None, failure: Exception) -> None:
        asked = failure.retry_after_s if isinstance(failure, StatusError) else None
        delay_s = asked if asked is not None else min(_RETRY_DELAY_S * 2 ** (attempt - 1), _RETRY_DELAY_MAX_S)
        uuid, delay_ms = new_uuid(), int(delay_s * 1000)
        self._out.event(
            {
                "type": "system",
                "subtype": "api_retry",
                "attempt": attempt,
                "max_retries": retries_max,
                "retry_delay_ms": delay_ms,
                "error_status": status,
                "error": "server_error",
                "uuid": uuid,
            }
        )
        late = self._s.late_records
        late.append(
            {
                "uuid": uuid,
                "parentUuid": late[-1]["uuid"] if late else self._user_record,
                "type": "system",
                "subtype": "api_error",
                "level": "error",
                "error": {"message": str(failure), "status": status},
                "retryInMs": delay_ms,
                "retryAttempt": attempt,
                "maxRetries": retries_max,
                "source": "request_retry",
            }
        )
        if not self._is_deaf:
            self._s.interrupted.wait(delay_s)
        else:
            time.sleep(delay_s)
        self._check()

    def _request(self) -> tuple[dict[str, Any], dict[str, str]]:
        s = self._s
        body = {
            "model": s.arguments.model,
            "max_tokens": 32000,
            "system": [{"type": "text", "text": "You are the stub of a coding agent."}],
            "tools": [{"name": name, "input_schema": {"type": "object"}} for name in ("Task", "Bash")],
            "messages": history.request_messages(s.history),
            "metadata": {"user_id": json.dumps({"session_id": s.id})},
        }
        return body, {"X-Claude-Code-Session-Id": s.id}

    def _streamed(self) -> dict[str, Any]:
        body, headers = self._request()
        self._point("requested")
        message: dict[str, Any] = {"content": []}
        done: list[Block] = []
        is_open = False
        try:
            for event in self._events(body, headers):
                match event.get("type"):
                    case "message_start":
                        message = {**event["message"], "content": []}
                        is_open = True
                    case "content_block_start":
                        done.append({**event["content_block"], "_json": ""})
                        self._partial = (message, done)
                    case "content_block_delta":
                        _add_delta(done[-1], event["delta"])
                    case "content_block_stop":
                        _close_block(done[-1])
                        self._assistant(message, done[-1])
                        self._partial = None
                    case "message_delta":
                        message["stop_reason"] = event["delta"].get("stop_reason")
                    case "message_stop":
                        is_open = False
                    case _:
                        pass
                self._partial_event(event)
                if event.get("type") == "content_block_delta":
                    self._point("mid-stream")
        except ConnectionLostError:
            self._check()
            if is_open:
                if self._partial is not None:
                    self._partial_event({"type": "content_block_stop", "index": len(done) - 1})
                self._partial_event({"type": "message_stop"})  # printed, although nobody sent it
            self._partial = None
            raise
        finally:
            if not self._s.interrupted.is_set():
                self._partial = None
        return {**message, "content": done}

    def _events(self, body: dict[str, Any], headers: dict[str, str]) -> Iterator[dict[str, Any]]:
        for event in self._s.model.stream(body, headers):
            self._check()
            yield event
        self._check()

    def _partial_event(self, event: dict[str, Any]) -> None:
        if self._s.arguments.partial_messages:
            self._out.event({"type": "stream_event", "event": event, "parent_tool_use_id": None})

    def _whole(self) -> dict[str, Any]:
        body, headers = self._request()
        message = self._s.model.whole(body, headers)
        for block in message["content"]:
            self._assistant(message, block)
        return message

    def _assistant(self, message: dict[str, Any], block: Block, *, aborted: bool = False) -> None:
        """One block of an answer: an event, and a record with the same uuid."""
        shown = {**{k: v for k, v in message.items() if k != "content"}, "role": "assistant", "content": [block]}
        if block.get("type") == "text":
            self._last_text = block["text"]
        uuid = self._s.transcript.chained({"message": shown, "requestId": "req_stub", "type": "assistant"})
        event = {"type": "assistant", "message": shown, "parent_tool_use_id": None, "uuid": uuid}
        self._out.event({**event, "aborted": True} if aborted else event)

    # --- tools --------------------------------------------------------------------------------------------------------

    def _use_tool(self, call: Block) -> Block:
        self._tool_call = call
        refused = self._ask_for(call)
        if refused is not None:
            said, failed = refused, True
        elif call["name"] == "Bash":
            said, failed = self._s.tool.bash(str(call["input"].get("command", "")))
        elif call["name"] == QUESTION_TOOL:
            said, failed = told(call["input"]), False
        elif call["name"] in ("Task", "Agent"):
            said, failed = self._subagent(call), False
        else:
            said, failed = f"{call['name']} is not enabled in this context", True
        if self._s.interrupted.is_set() and not self._is_deaf:
            raise InterruptedTurnError(in_tool=True)
        self._tool_call = None
        result = {"tool_use_id": call["id"], "type": "tool_result", "content": said, "is_error": failed}
        self._user_event([result])
        return result

    def _ask_for(self, call: Block) -> str | None:
        """None when the call may be made, with the input that the answer gave; else what the model is told."""
        tool = call["name"]
        ruling = rule_on(self._s.arguments, tool, call["input"])
        if tool not in ("Bash", QUESTION_TOOL) or ruling == ALLOW:
            return None
        if ruling == DENY:
            said = f"Permission to use {tool} has been denied."
            self._out.event(
                {
                    "type": "system",
                    "subtype": "permission_denied",
                    "tool_name": tool,
                    "tool_use_id": call["id"],
                    "message": said,
                }
            )
            return said
        answer = self._s.asking.ask(call, self._s.interrupted)
        if answer is None:
            raise InterruptedTurnError(in_tool=True)
        if answer.get("subtype") != "success":
            return f"Tool permission request failed: Error: {answer.get('error')}"
        inner = answer["response"]
        if inner["behavior"] == "deny":
            return str(inner["message"])
        call["input"] = inner["updatedInput"]
        return None

    def _subagent(self, call: Block) -> str:
        """A sub-agent of one request. Its events carry the root's id, and the call's id as their parent."""
        prompt = str(call["input"].get("prompt", ""))
        block = {"type": "text", "text": prompt}
        parent = {"parent_tool_use_id": call["id"]}
        self._out.event({"type": "user", "message": {"role": "user", "content": [block]}, **parent})
        body, headers = self._request()
        body["messages"] = [{"role": "user", "content": [block]}]
        body["system"] = [{"type": "text", "text": "cc_is_subagent=true"}]
        answer = self._s.model.whole(body, {**headers, "x-claude-code-agent-id": "stub-agent"})
        if self._s.arguments.subagent_text:
            self._out.event({"type": "assistant", "message": answer, **parent})
        return "".join(b.get("text", "") for b in answer["content"])

    def _user_event(self, blocks: list[Block]) -> None:
        message = {"role": "user", "content": blocks}
        uuid = self._s.transcript.chained({"type": "user", "message": message})
        self._out.event({"type": "user", "message": message, "parent_tool_use_id": None, "uuid": uuid})

    # --- the end ------------------------------------------------------------------------------------------------------

    def _end(self, *, failed: bool, reason: str, result: str, status: int | None = None) -> None:
        s = self._s
        if self._has("background"):
            s.has_background_task = True
            task = {"task_id": "stub-task", "description": "stub", "status": "running"}
            self._out.event({"type": "system", "subtype": "background_tasks_changed", "tasks": [task]})
        s.last_failed = failed
        self._out.result(
            subtype="success",
            is_error=failed,
            num_turns=self._steps,
            terminal_reason=reason,
            api_error_status=status,
            result=result,
            stop_reason=self._stop_reason,
            **({} if failed or self._uuid is None else {"user_message_uuid": self._uuid}),
        )
        self._closed("cancelled" if failed else "completed")

    def _fail(self, failure: StatusError | ConnectionLostError) -> None:
        status = failure.status if isinstance(failure, StatusError) else None
        said = f"API Error: {'' if status is None else f'{status} '}{failure}"
        self._synthetic(said)
        self._point("reply")
        self._end(failed=True, reason="api_error", result=said, status=status if status != 200 else None)

    def _synthetic(self, text: str) -> None:
        """An assistant message that the program made up."""
        message = {
            "id": new_uuid(),
            "model": history.SYNTHETIC,
            "role": "assistant",
            "stop_reason": "stop_sequence",
            "type": "message",
            "content": [{"type": "text", "text": text}],
        }
        uuid = self._s.transcript.chained({"type": "assistant", "message": message, "isApiErrorMessage": True})
        self._out.event({"type": "assistant", "message": message, "parent_tool_use_id": None, "uuid": uuid})

    def _cancel(self, in_tool: bool) -> None:
        s = self._s
        if self._partial is not None:
            message, blocks = self._partial
            _close_block(blocks[-1])
            if blocks[-1].get("text"):
                self._assistant(message, blocks[-1], aborted=True)
                s.history.append({"role": "assistant", "content": [blocks[-1]]})
        if in_tool and self._tool_call is not None:
            rejected = {
                "type": "tool_result",
                "content": _REJECTED,
                "is_error": True,
                "tool_use_id": self._tool_call["id"],
            }
            self._user_event([rejected])
            s.history.append({"role": "user", "content": [rejected]})
        if self._user_record is not None:
            marker = {"type": "text", "text": history.INTERRUPTED_TOOL if in_tool else history.INTERRUPTED}
            self._user_event([marker])
            s.history.append({"role": "user", "content": [marker]})
        s.last_failed = True
        self._out.result(
            subtype="error_during_execution",
            is_error=True,
            num_turns=self._steps,
            terminal_reason="aborted_tools" if in_tool else "aborted_streaming",
            errors=["[ede_diagnostic] result_type=user last_content_type=n/a stop_reason=null"],
        )
        self._closed("cancelled")

    def _closed(self, state: str) -> None:
        self._s.transcript.turn_ended()
        self._point("result", may_stop=False)
        if not self._has("no-completed"):
            self._lifecycle(state)
        self._point("completed", may_stop=False)

    # --- words and gates ----------------------------------------------------------------------------------------------

    def _lifecycle(self, state: str) -> None:
        if self._uuid is not None and not self._has("no-lifecycle"):
            self._out.lifecycle(self._uuid, state)

    def _has(self, name: str) -> bool:
        return self._word(name) is not None

    def _word(self, name: str) -> Word | None:
        return next((word for word in self._words if word.name == name), None)

    def _check(self) -> None:
        if self._s.interrupted.is_set() and not self._is_deaf:
            raise InterruptedTurnError()

    def _must_leave(self) -> bool:
        return self._s.interrupted.is_set() and not self._is_deaf

    def _point(self, point: str, *, may_stop: bool = True) -> None:
        """Does what words and gates ask for here. Each word works once a turn."""
        due = [word for word in self._words if word.point == point]
        self._words = [word for word in self._words if word.point != point or word.name not in _ACTIONS]
        for word in due:
            if word.name in _ACTIONS:
                _ACTIONS[word.name](self._s, self._out, word.value)
        pass_gate(self._s.gates, point, self._must_leave if may_stop else lambda: False)
        if may_stop:
            self._check()


def _add_delta(block: Block, delta: dict[str, Any]) -> None:
    match delta.get("type"):
        case "text_delta":
            block["text"] = block.get("text", "") + delta["text"]
        case "input_json_delta":
            block["_json"] += delta["partial_json"]
        case "thinking_delta":
            block["thinking"] = block.get("thinking", "") + delta["thinking"]
        case "signature_delta":
            block["signature"] = delta["signature"]
        case _:
            pass


def _close_block(block: Block) -> None:
    text = block.pop("_json", "")
    if block.get("type") == "tool_use" and text:
        block["input"] = json.loads(text)


def _sleep(session: Session, _out: Printer, value: str) -> None:
    session.interrupted.wait(float(value))


def _exit(_session: Session, _out: Printer, value: str) -> None:
    os._exit(int(value))


def _kill(_session: Session, _out: Printer, _value: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _noise(_session: Session, out: Printer, value: str) -> None:
    out.raw((value or "Warning: this line is no JSON").encode() + b"\n")


def _long_line(_session: Session, out: Printer, value: str) -> None:
    out.event({"type": "system", "subtype": "stub_long_line", "padding": "x" * size_of(value)})


def _spawn(_session: Session, _out: Printer, value: str) -> None:
    subprocess.Popen(
        ["/bin/bash", "-c", value],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


_ACTIONS: dict[str, Callable[[Session, Printer, str], None]] = {
    "sleep": _sleep,
    "exit": _exit,
    "kill": _kill,
    "noise": _noise,
    "long-line": _long_line,
    "spawn": _spawn,
}
