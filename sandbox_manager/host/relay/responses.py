"""Reads OpenAI Responses.

A text is one content part of a message item. It is told up to three times (`output_text.done`, `output_item.done`, in the response at
the end) and counts once, when its first telling was handed over; a later telling that differs counts too.
"""

from __future__ import annotations

from typing import Any

from sandbox_manager.host.relay.answer import (
    AnswerFacts,
    OnText,
    UnreadableError,
    json_object,
    openai_error,
    openai_usage,
    text_of,
    text_sha256,
)

PARTS_MAX = 10_000
_TEXTS = {"output_text": "text", "refusal": "refusal"}
_USAGE = ("input_tokens", "output_tokens", "input_tokens_details")


class ResponsesReader:
    """See `answer.Reader`."""

    def __init__(self, facts: AnswerFacts, on_text: OnText) -> None:
        self._facts = facts
        self._on_text = on_text
        self._told: dict[tuple[int, int], str] = {}

    def event(self, data: bytes) -> None:
        """Takes one event."""
        if data.strip() == b"[DONE]":  # the protocol has none; some gateways send it
            return
        event = json_object(data)
        kind = event.get("type")
        match kind:
            case "response.created" | "response.in_progress":
                self._learn(event.get("response"))
            case "response.output_text.done":
                self._tell(_index(event, "output_index"), _index(event, "content_index"), event.get("text"))
            case "response.refusal.done":
                self._tell(_index(event, "output_index"), _index(event, "content_index"), event.get("refusal"))
            case "response.output_item.done":
                self._item(_index(event, "output_index"), event.get("item"))
            case "response.completed" | "response.incomplete" | "response.failed":
                self._ended(event.get("response"))
            case "error":
                self._facts.error_type = openai_error(event.get("error") or event)
            case _:
                pass

    def whole(self, body: dict[str, Any]) -> None:
        """Takes a response object, or an error."""
        if body.get("object") != "response" and body.get("error") is not None:
            self._facts.error_type = openai_error(body["error"])
            return
        if body.get("object") != "response" or not isinstance(body.get("output"), list):
            raise UnreadableError("the answer is no response object")
        self._ended(body)

    def over(self) -> None:
        """A text without its end was not delivered."""

    def _ended(self, response: object) -> None:
        if not isinstance(response, dict):
            raise UnreadableError("an end without its response")
        self._learn(response)
        output = response.get("output")
        for index, item in enumerate(output if isinstance(output, list) else []):
            self._item(index, item)
        details = response.get("incomplete_details")
        reason = text_of(details.get("reason")) if isinstance(details, dict) else None
        status = text_of(response.get("status"))
        self._facts.stop_reason = reason or status
        if status == "failed":
            self._facts.error_type = openai_error(response.get("error"))
        else:
            self._facts.is_ended = True

    def _item(self, index: int, item: object) -> None:
        if not isinstance(item, dict) or item.get("type") != "message":
            return
        content = item.get("content")
        for place, part in enumerate(content if isinstance(content, list) else []):
            field = _TEXTS.get(str(part.get("type"))) if isinstance(part, dict) else None
            if field is not None:
                self._tell(index, place, part.get(field))

    def _tell(self, index: int, place: int, text: object) -> None:
        digest = text_sha256(text_of(text) or "")
        if self._told.get((index, place)) == digest:
            return
        if len(self._told) >= PARTS_MAX:
            raise UnreadableError("too many texts in one answer")
        self._told[index, place] = digest
        self._on_text(digest)

    def _learn(self, response: object) -> None:
        if not isinstance(response, dict):
            return
        facts = self._facts
        facts.message_id = text_of(response.get("id")) or facts.message_id
        facts.model = text_of(response.get("model")) or facts.model
        facts.learn_usage(openai_usage(response.get("usage"), _USAGE))


def _index(event: dict[str, Any], name: str) -> int:
    index = event.get(name)
    if not isinstance(index, int):
        raise UnreadableError(f"an event without its {name}")
    return index
