"""Anthropic Messages: request bytes in, `Heard` out.

`is_root` is told by what Claude Code 2.1.220 was observed to send: a sub-agent's request has the header
`x-claude-code-agent-id`, and its first system text holds `cc_is_subagent=true`; a side request (a title, say) comes
with Claude's session header and offers no tools; everything else is the conversation itself. A plain client without
Claude's headers is always root.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from standfast_lab.claude_texts import is_reminder
from standfast_lab.provider.heard import Block, BlockKind, Heard, Kind, Message
from standfast_lab.provider.speech import BadRequestError

SESSION_HEADER = "x-claude-code-session-id"
AGENT_HEADER = "x-claude-code-agent-id"

Json = Mapping[str, object]


def decode_request(path: str, headers: Mapping[str, str], body: bytes) -> Heard:
    """Reads a request. `headers` has lower-case names. Raises BadRequestError as the real API answers 400."""
    try:
        sent = json.loads(body)
    except ValueError as error:
        raise BadRequestError(f"the body is not JSON: {error}") from error
    if not isinstance(sent, dict):
        raise BadRequestError("the body must be a JSON object")
    messages = sent.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequestError("messages: at least one message is required")
    model = sent.get("model")
    if not isinstance(model, str):
        raise BadRequestError("model: a text is required")
    decoded = _conversation(messages)
    _check_tool_results(decoded)
    tools = sent.get("tools")
    names = tuple(str(tool.get("name")) for tool in tools if isinstance(tool, dict)) if isinstance(tools, list) else ()
    return Heard(
        _kind(path, headers, sent, names), model, sent.get("stream") is True, _session_id(headers, sent), decoded, names
    )


def _conversation(messages: list[object]) -> tuple[Message, ...]:
    """The messages, with what the system says in between (beta mid-conversation-system, which Claude Code 2.1.220 uses
    with its newest models: observed) set apart as reminders of the message before it.
    """
    decoded: list[Message] = []
    for place, message in enumerate(messages):
        if isinstance(message, dict) and message.get("role") == "system" and decoded:
            said = _message(place, {**message, "role": "user"})
            reminders = tuple(replace(block, kind=BlockKind.REMINDER) for block in said.blocks)
            decoded[-1] = replace(decoded[-1], blocks=decoded[-1].blocks + reminders)
        else:
            decoded.append(_message(place, message))
    return tuple(decoded)


def _message(place: int, message: object) -> Message:
    if not isinstance(message, dict) or message.get("role") not in ("user", "assistant"):
        raise BadRequestError(f"messages.{place}: role must be user or assistant")
    content = message.get("content")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise BadRequestError(f"messages.{place}: content must be a text or a list")
    blocks = [_block(place, block) for block in content]
    role = str(message["role"])
    texts = [i for i, block in enumerate(blocks) if block.kind in (BlockKind.TEXT, BlockKind.REMINDER)]
    is_answer_to_tool = any(block.kind is BlockKind.TOOL_RESULT for block in blocks)
    # A user may type something that looks like a reminder. In a message of texts only, the last block is then the
    # user's.
    if role == "assistant" or (
        texts and not is_answer_to_tool and all(blocks[i].kind is BlockKind.REMINDER for i in texts)
    ):
        wanted = texts if role == "assistant" else texts[-1:]
        blocks = [replace(b, kind=BlockKind.TEXT) if i in wanted else b for i, b in enumerate(blocks)]
    return Message(role, tuple(blocks))


def _block(place: int, block: object) -> Block:
    if not isinstance(block, dict):
        raise BadRequestError(f"messages.{place}: a content block must be an object")
    match block.get("type"):
        case "text":
            text = block.get("text")
            if not isinstance(text, str) or not text:
                raise BadRequestError(f"messages.{place}: text content blocks must be non-empty")
            return Block(BlockKind.REMINDER if is_reminder(text) else BlockKind.TEXT, text)
        case "tool_use":
            return Block(BlockKind.TOOL_USE, str(block.get("name")), str(block.get("id")))
        case "tool_result":
            return Block(BlockKind.TOOL_RESULT, _result_text(block.get("content")), str(block.get("tool_use_id")))
        case "thinking" | "redacted_thinking":
            return Block(BlockKind.THINKING, str(block.get("thinking", "")))
        case other:
            return Block(BlockKind.OTHER, str(other))


def _result_text(content: object) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


def _check_tool_results(messages: tuple[Message, ...]) -> None:
    for place, message in enumerate(messages):
        ids = {b.tool_id for b in message.blocks if b.kind is BlockKind.TOOL_RESULT}
        before = messages[place - 1].blocks if place else ()
        if stray := ids - {b.tool_id for b in before if b.kind is BlockKind.TOOL_USE}:
            raise BadRequestError(
                f"messages.{place}: tool_result without a tool_use in the message before: {sorted(map(str, stray))}"
            )


def _kind(path: str, headers: Mapping[str, str], sent: Json, tools: tuple[str, ...]) -> Kind:
    if path.partition("?")[0].endswith("/count_tokens"):
        return Kind.COUNT_TOKENS
    system = sent.get("system")
    first = system[0].get("text") if isinstance(system, list) and system and isinstance(system[0], dict) else system
    if AGENT_HEADER in headers or (isinstance(first, str) and "cc_is_subagent=true" in first):
        return Kind.SUBAGENT
    return Kind.SIDE if SESSION_HEADER in headers and not tools else Kind.ROOT


def _session_id(headers: Mapping[str, str], sent: Json) -> str | None:
    if SESSION_HEADER in headers:
        return headers[SESSION_HEADER]
    metadata = sent.get("metadata")
    user_id = metadata.get("user_id") if isinstance(metadata, dict) else None
    try:
        found = json.loads(user_id).get("session_id") if isinstance(user_id, str) else None
    except (ValueError, AttributeError):
        return None
    return found if isinstance(found, str) else None
