"""OpenAI Responses: request bytes in, `Heard` out.

The session is the header `thread-id` or `session-id` (Codex 0.171.0, observed), else `prompt_cache_key`. Codex marks a sub-agent's
request with `x-openai-subagent` or names its parent thread. The lab keeps nothing between requests: `previous_response_id` is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from standfast_lab.added_texts import is_codex_wrapper
from standfast_lab.provider.chat_request import json_object, required_model, session_id
from standfast_lab.provider.heard import Block, BlockKind, Heard, Kind, Message
from standfast_lab.provider.speech import BadRequestError

_THREAD_HEADER = "thread-id"
_CHILD_HEADERS = ("x-openai-subagent", "x-codex-parent-thread-id")
_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_CALLS = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}
_OUTPUTS = {output: call for call, output in _CALLS.items()}


def decode_request(target: str, headers: Mapping[str, str], body: bytes) -> Heard:
    """Reads a request. `headers` has lower-case names. Raises BadRequestError as the real API answers 400."""
    sent = json_object(body)
    if sent.get("previous_response_id") is not None:
        raise BadRequestError("previous response not found: the lab keeps none; send the whole input")
    given = sent.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list) or not items:
        raise BadRequestError("missing required parameter: 'input'")
    model = required_model(sent)
    names, namespaces = _tools(sent.get("tools"))
    session = headers.get(_THREAD_HEADER) or session_id(headers, sent)
    return Heard(
        _kind(headers, session, names),
        model,
        sent.get("stream") is True,
        session,
        _conversation(items),
        names,
        namespaces=namespaces,
    )


def _kind(headers: Mapping[str, str], session: str | None, tools: tuple[str, ...]) -> Kind:
    if any(name in headers for name in _CHILD_HEADERS):
        return Kind.SUBAGENT
    return Kind.SIDE if session is not None and not tools else Kind.ROOT


def _tools(tools: object) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Names on offer, and (name, namespace) of those that lie in one (Codex's sub-agent tools, observed)."""
    names: list[str] = []
    namespaces: list[tuple[str, str]] = []
    for tool in tools if isinstance(tools, list) else []:
        if not isinstance(tool, dict):
            continue
        below = tool.get("tools")
        if tool.get("type") == "namespace" and isinstance(below, list):
            inner = [str(one.get("name")) for one in below if isinstance(one, dict)]
            names += inner
            namespaces += [(name, str(tool.get("name"))) for name in inner]
        else:
            names.append(str(tool.get("name") or tool.get("type")))
    return tuple(names), tuple(namespaces)


def _conversation(items: list[object]) -> tuple[Message, ...]:
    """One message an item. What system and developer say is a reminder of the item before it, or left out before all."""
    decoded: list[Message] = []
    calls: dict[str, str] = {}
    answered: set[str] = set()
    for place, item in enumerate(items):
        if not isinstance(item, dict):
            raise BadRequestError(f"input[{place}]: an object is required")
        kind = str(item.get("type") or "message")
        call_id = str(item.get("call_id"))
        if kind == "message":
            role = item.get("role")
            blocks = _blocks(place, item.get("content"))
            if role in ("system", "developer"):
                if decoded:
                    said = tuple(replace(block, kind=BlockKind.REMINDER) for block in blocks)
                    decoded[-1] = replace(decoded[-1], blocks=decoded[-1].blocks + said)
            elif role in ("user", "assistant"):
                decoded.append(Message(str(role), tuple(blocks)))
            else:
                raise BadRequestError(f"input[{place}]: role must be user, assistant, system or developer")
        elif kind in _CALLS:
            calls[call_id] = kind
            decoded.append(Message("assistant", (Block(BlockKind.TOOL_USE, str(item.get("name")), call_id),)))
        elif kind in _OUTPUTS:
            if calls.get(call_id) != _OUTPUTS[kind]:
                raise BadRequestError(f"no tool call found for {kind} with call_id {call_id}")
            answered.add(call_id)
            text = _output_text(item.get("output"))
            decoded.append(Message("user", (Block(BlockKind.TOOL_RESULT, text, call_id),)))
        elif kind == "reasoning":
            decoded.append(Message("assistant", (Block(BlockKind.THINKING, "reasoning"),)))
        else:
            decoded.append(Message("assistant", (Block(BlockKind.OTHER, kind),)))
    if unanswered := sorted(set(calls) - answered):
        raise BadRequestError(f"no tool output found for function call {', '.join(unanswered)}")
    return tuple(_with_reminders(decoded))


def _blocks(place: int, content: object) -> list[Block]:
    if isinstance(content, str):
        return [Block(BlockKind.TEXT, content)] if content else []
    if not isinstance(content, list):
        raise BadRequestError(f"input[{place}]: content must be a text or a list of parts")
    found = []
    for part in content:
        if not isinstance(part, dict):
            raise BadRequestError(f"input[{place}]: a content part must be an object")
        field = _TEXTS.get(str(part.get("type")))
        text = part.get(field) if field is not None else None
        if field is None:
            found.append(Block(BlockKind.OTHER, str(part.get("type"))))
        elif not isinstance(text, str):
            raise BadRequestError(f"input[{place}]: a part of the type {part.get('type')} needs its text")
        elif text:
            found.append(Block(BlockKind.TEXT, text))
    return found


def _output_text(output: object) -> str:
    if isinstance(output, list):
        return "\n".join(str(part.get("text", "")) for part in output if isinstance(part, dict))
    return "" if output is None else str(output)


def _with_reminders(messages: list[Message]) -> list[Message]:
    """Sets apart what Codex writes around its own words. The newest user text is the user's, whatever it looks like."""
    last = max((i for i, m in enumerate(messages) if m.role == "user" and m.texts), default=None)
    return [
        replace(
            message,
            blocks=tuple(
                replace(block, kind=BlockKind.REMINDER)
                if block.kind is BlockKind.TEXT and is_codex_wrapper(block.text)
                else block
                for block in message.blocks
            ),
        )
        if message.role == "user" and place != last
        else message
        for place, message in enumerate(messages)
    ]
