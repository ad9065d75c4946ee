"""What a tool call may do, by mode and rules, and the asking for it. As the pinned program was seen to do it."""

from __future__ import annotations

import threading
from typing import Any

from .arguments import Arguments
from .printer import Printer, new_uuid

QUESTION_TOOL = "AskUserQuestion"
ALLOW, ASK, DENY = "allow", "ask", "deny"


def rule_on(arguments: Arguments, tool: str, tool_input: dict[str, Any]) -> str:
    """allow, ask or deny; a denying rule is stronger than an asking one, that one than an allowing one, and that than the mode."""
    if _matches(arguments.disallowed, tool, tool_input):
        return DENY
    asks = tool == QUESTION_TOOL or tool in arguments.asking
    if not asks and (arguments.permission_mode == "bypassPermissions" or _matches(arguments.allowed, tool, tool_input)):
        return ALLOW
    return DENY if arguments.permission_mode == "dontAsk" or not arguments.asks else ASK


def _matches(rules: tuple[str, ...], tool: str, tool_input: dict[str, Any]) -> bool:
    command = str(tool_input.get("command", ""))
    for rule in rules:
        name, _, pattern = rule.rstrip(")").partition("(")
        prefix = pattern.removesuffix("*").rstrip()
        if name == tool and (
            not pattern or command == pattern or (pattern.endswith("*") and command.startswith(prefix))
        ):
            return True
    return False


class Asking:
    """Requests to whoever drives the program, and their answers."""

    def __init__(self, printer: Printer) -> None:
        self._out = printer
        self._answers: dict[str, dict[str, Any]] = {}
        self._changed = threading.Condition()

    def take_answer(self, response: dict[str, Any]) -> None:
        """An answer came. One to a request that nobody made is passed over."""
        with self._changed:
            self._answers[str(response.get("request_id"))] = response
            self._changed.notify_all()

    def ask(self, call: dict[str, Any], interrupted: threading.Event) -> dict[str, Any] | None:
        """The answer; None when the turn is interrupted first, and then the request is taken back."""
        request_id = new_uuid()
        request: dict[str, Any] = {
            "subtype": "can_use_tool",
            "tool_name": call["name"],
            "display_name": call["name"],
            "input": call["input"],
            "tool_use_id": call["id"],
        }
        if call["name"] == QUESTION_TOOL:
            request["requires_user_interaction"] = True
        else:
            request["permission_suggestions"] = []
        self._out.event({"type": "control_request", "request_id": request_id, "request": request}, names_session=False)
        with self._changed:
            while request_id not in self._answers and not interrupted.is_set():
                self._changed.wait(0.02)
            answer = self._answers.pop(request_id, None)
        if answer is None:
            self._out.event({"type": "control_cancel_request", "request_id": request_id}, names_session=False)
            return None
        return answer


def told(tool_input: dict[str, Any]) -> str:
    """What the model reads of the answers to its questions."""
    pairs = ", ".join(f'"{question}"="{answer}"' for question, answer in tool_input.get("answers", {}).items())
    return f"The user answered: {pairs}. Read the answers carefully."
