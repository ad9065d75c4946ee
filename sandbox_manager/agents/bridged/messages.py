"""Reads the server's messages: which texts are the model's, whole or cut, and how a turn ended. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from sandbox_manager.core.values import AssistantText

ABORTED = "MessageAbortedError"


def text_digest(text: str) -> str:
    """sha256 of a text's UTF-8 bytes. Half surrogate pairs, which JSON can carry, keep their own bytes."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class Answers:
    """The assistant's messages under ours, as the server keeps them at the end."""

    messages: tuple[dict[str, Any], ...]

    @property
    def last(self) -> dict[str, Any] | None:
        """What the last one says of itself; None where there is none."""
        return self.messages[-1]["info"] if self.messages else None

    @property
    def lasting(self) -> tuple[str, ...]:
        """The ids of those that the store must come to hold: ended without an error, or with a text."""
        return tuple(one["info"]["id"] for one in self.messages if _is_lasting(one))

    @property
    def texts(self) -> tuple[AssistantText, ...]:
        """Their texts in order."""
        return tuple(text for one in self.messages for text in _texts(one))


def answers_under(messages: Any, message: str) -> Answers:
    """Those whose parent is our message. What has not the form of a message is none."""
    found = []
    for one in messages if isinstance(messages, list) else []:
        info = one.get("info") if isinstance(one, dict) else None
        if not isinstance(info, dict) or not isinstance(info.get("id"), str) or not isinstance(one.get("parts"), list):
            continue
        if info.get("role") == "assistant" and info.get("parentID") == message:
            found.append(one)
    return Answers(tuple(found))


def _is_lasting(message: dict[str, Any]) -> bool:
    info = message["info"]
    has_text = any(part.get("text") for part in _parts(message) if part.get("type") == "text")
    return has_text or (info.get("error") is None and info.get("finish") is not None)


def _texts(message: dict[str, Any]) -> list[AssistantText]:
    """Texts of the model. One whose step has no end was cut: the provider's answer was never whole."""
    info = message["info"]
    is_cut = info.get("finish") in (None, "unknown", "other")
    texts: list[AssistantText] = []
    of_step: list[str] = []

    def end_step(*, aborted: bool) -> None:
        texts.extend(AssistantText(info["id"], text_digest(text), aborted) for text in of_step)
        of_step.clear()

    for part in _parts(message):
        match part.get("type"):
            case "step-start":
                end_step(aborted=True)
            case "step-finish":
                end_step(aborted=is_cut)
            case "text" if part.get("synthetic") is not True and part.get("ignored") is not True:
                if isinstance(text := part.get("text"), str) and text:
                    of_step.append(text)
            case _:
                pass
    end_step(aborted=True)
    return texts


def _parts(message: dict[str, Any]) -> list[dict[str, Any]]:
    return [part for part in message["parts"] if isinstance(part, dict)]
