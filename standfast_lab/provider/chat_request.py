"""OpenAI Chat Completions: request bytes in, `Heard` out.

A client that names its conversation (header `x-session-affinity` or `session-id`, or `prompt_cache_key`) has a session; a plain one has
none. A request of a coding agent that offers no tools (a title, say) is a side request; one with `x-parent-session-id` a sub-agent's.
Sub-agents of CLIs that do not say so look like a conversation of their own, which they are: their first user text differs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from standfast_lab.added_texts import is_kilo_details
from standfast_lab.provider.heard import Block, BlockKind, Heard, Kind, Message
from standfast_lab.provider.speech import BadRequestError

_SESSION_HEADERS = ("x-session-affinity", "session-id", "session_id")
_PARENT_HEADER = "x-parent-session-id"
_SYSTEM = ("system", "developer")

Json = Mapping[str, object]


def decode_request(target: str, headers: Mapping[str, str], body: bytes) -> Heard:
    """Reads a request. `headers` has lower-case names. Raises BadRequestError as the real API answers 400."""
    sent = json_object(body)
    messages = sent.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequestError("[] is too short - 'messages'")
    model = required_model(sent)
    decoded = _conversation(messages)
    tools = sent.get("tools")
    functions = [tool.get("function") for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    names = tuple(str(one.get("name")) for one in functions if isinstance(one, dict))
    options = sent.get("stream_options")
    session = session_id(headers, sent)
    return Heard(
        _kind(headers, session, names),
        model,
        sent.get("stream") is True,
        session,
        decoded,
        names,
        wants_usage=isinstance(options, dict) and options.get("include_usage") is True,
    )


def json_object(body: bytes) -> dict[str, object]:
    """The body as an object."""
    try:
        sent = json.loads(body)
    except ValueError as error:
        raise BadRequestError(f"the body is not JSON: {error}") from error
    if not isinstance(sent, dict):
        raise BadRequestError("the body must be a JSON object")
    return sent


def required_model(sent: Json) -> str:
    """The model's name."""
    model = sent.get("model")
    if not isinstance(model, str):
        raise BadRequestError("you must provide a model parameter")
    return model


def session_id(headers: Mapping[str, str], sent: Json) -> str | None:
    """The conversation that the client named, if it did."""
    for name in _SESSION_HEADERS:
        if headers.get(name):
            return headers[name]
    key = sent.get("prompt_cache_key")
    return key if isinstance(key, str) else None


def _kind(headers: Mapping[str, str], session: str | None, tools: tuple[str, ...]) -> Kind:
    if _PARENT_HEADER in headers:
        return Kind.SUBAGENT
    return Kind.SIDE if session is not None and not tools else Kind.ROOT


def _conversation(messages: list[object]) -> tuple[Message, ...]:
    """The messages without the system's. What the system says in between is a reminder of the message before it."""
    decoded: list[Message] = []
    open_calls: set[str] = set()
    for place, message in enumerate(messages):
        if not isinstance(message, dict):
            raise BadRequestError(f"messages[{place}]: an object is required")
        role = message.get("role")
        if role in _SYSTEM:
            if decoded:
                said = tuple(replace(b, kind=BlockKind.REMINDER) for b in _blocks(place, message.get("content")))
                decoded[-1] = replace(decoded[-1], blocks=decoded[-1].blocks + said)
            continue
        if role == "tool":
            call = str(message.get("tool_call_id"))
            if call not in open_calls:
                raise BadRequestError(
                    f"messages[{place}]: messages with role 'tool' must be a response to a preceding message with 'tool_calls'"
                )
            open_calls.discard(call)
            text = "\n".join(b.text for b in _blocks(place, message.get("content")))
            decoded.append(Message("user", (Block(BlockKind.TOOL_RESULT, text, call),)))
            continue
        if role not in ("user", "assistant"):
            raise BadRequestError(f"messages[{place}]: role must be system, developer, user, assistant or tool")
        _check_answered(open_calls)
        blocks = _blocks(place, message.get("content"))
        if role == "user":
            blocks = _with_reminders(blocks)
        else:
            calls = _calls(place, message.get("tool_calls"))
            open_calls = {call.tool_id or "" for call in calls}
            reasoning = message.get("reasoning_content")
            thought = [Block(BlockKind.THINKING, reasoning)] if isinstance(reasoning, str) and reasoning else []
            blocks = [*thought, *blocks, *calls]
        decoded.append(Message(str(role), tuple(blocks)))
    _check_answered(open_calls)
    return tuple(decoded)


def _check_answered(open_calls: set[str]) -> None:
    if open_calls:
        raise BadRequestError(
            "an assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'; "
            f"without one: {', '.join(sorted(open_calls))}"
        )


def _blocks(place: int, content: object) -> list[Block]:
    """An empty text is no text: a reply that was killed before its first character is sent as one (OpenCode, observed)."""
    if content is None:
        return []
    if isinstance(content, str):
        return [Block(BlockKind.TEXT, content)] if content else []
    if not isinstance(content, list):
        raise BadRequestError(f"messages[{place}]: content must be a text or a list of parts")
    found = []
    for part in content:
        if not isinstance(part, dict):
            raise BadRequestError(f"messages[{place}]: a content part must be an object")
        text = part.get("text" if part.get("type") == "text" else "refusal")
        if part.get("type") not in ("text", "refusal"):
            found.append(Block(BlockKind.OTHER, str(part.get("type"))))
        elif not isinstance(text, str):
            raise BadRequestError(f"messages[{place}]: a part of the type {part.get('type')} needs its text")
        elif text:
            found.append(Block(BlockKind.TEXT, text))
    return found


def _with_reminders(blocks: list[Block]) -> list[Block]:
    """Kilo's part `environment_details`, which never stands alone; what the user typed is the first part."""
    return [
        replace(block, kind=BlockKind.REMINDER) if place and is_kilo_details(block.text) else block
        for place, block in enumerate(blocks)
    ]


def _calls(place: int, calls: object) -> list[Block]:
    if not isinstance(calls, list):
        return []
    found = []
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(call.get("id"), str):
            raise BadRequestError(f"messages[{place}]: a tool call needs an id and a function")
        found.append(Block(BlockKind.TOOL_USE, str(function.get("name")), call["id"]))
    return found
