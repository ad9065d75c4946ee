"""Messages streams as bytes, for the relay's tests."""

from __future__ import annotations

import json
from typing import Any


def event(kind: str, **fields: Any) -> bytes:
    body = json.dumps({"type": kind, **fields}, ensure_ascii=False)
    return f"event: {kind}\ndata: {body}\n\n".encode()


def start(message_id: str = "msg_1", model: str = "model-a") -> bytes:
    usage = {"input_tokens": 10, "output_tokens": 1, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 2}
    message = {"id": message_id, "type": "message", "role": "assistant", "model": model, "content": [], "usage": usage}
    return event("message_start", message=message)


def text_block(index: int, *pieces: str) -> bytes:
    return (
        event("content_block_start", index=index, content_block={"type": "text", "text": ""})
        + b"".join(
            event("content_block_delta", index=index, delta={"type": "text_delta", "text": piece}) for piece in pieces
        )
        + event("content_block_stop", index=index)
    )


def stop(reason: str = "end_turn", output_tokens: int = 7) -> bytes:
    return event("message_delta", delta={"stop_reason": reason}, usage={"output_tokens": output_tokens}) + event(
        "message_stop"
    )


def answer(*texts: str, message_id: str = "msg_1") -> bytes:
    return start(message_id) + b"".join(text_block(index, text) for index, text in enumerate(texts)) + stop()
