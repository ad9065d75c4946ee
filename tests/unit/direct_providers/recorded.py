"""Recorded streams of the three protocols, as their servers send them: a tool round with reasoning, and a final text."""

from __future__ import annotations

from pathlib import Path

from direct_agent.core.endpoint import Wire
from direct_agent.providers.chat_stream import ChatStream
from direct_agent.providers.messages_stream import MessagesStream
from direct_agent.providers.responses_stream import ResponsesStream
from direct_agent.providers.stream_reader import StreamReader

_FOLDER = Path(__file__).parents[2] / "captures" / "direct"
STREAMS = {
    f"{wire.value} {what}": (wire, (_FOLDER / f"{wire.value}_{what}.sse").read_bytes())
    for wire in Wire
    for what in ("tool", "text")
}

_READERS: dict[Wire, type[StreamReader]] = {
    Wire.CHAT: ChatStream,
    Wire.RESPONSES: ResponsesStream,
    Wire.MESSAGES: MessagesStream,
}


def reader(wire: Wire) -> StreamReader:
    """A fresh reader, which names its endpoint `lab`."""
    return _READERS[wire]("lab")
