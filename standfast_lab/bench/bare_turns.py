"""The bare thing: the CLI itself, driven over its stdio, with the flags that the product starts it with."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from pathlib import Path

from standfast_lab.bare_claude import QUIET_FLAGS, BareClaude, Event, transcript_path

FLAGS = (*QUIET_FLAGS, "--include-partial-messages", "--forward-subagent-text")
_POLL_S = 0.001
_TURN_TIMEOUT_S = 60.0
_ON_DISK_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class BareTurn:
    """Milliseconds from the writing of the message. `on_disk_ms`: its history is on disk; NaN where that was not waited for."""

    first_ms: float
    last_ms: float
    ended_ms: float
    on_disk_ms: float


async def bare_turn(cli: BareClaude, message: str, home: Path | None, session_id: str) -> BareTurn:
    """Sends one message. `home`: where the transcript is waited for; None: it is not."""
    first: float | None = None
    last = last_uuid = None
    begun = time.perf_counter()
    sent = await cli.send(message)

    def look(event: Event) -> bool:
        nonlocal first, last, last_uuid
        now = (time.perf_counter() - begun) * 1000
        match event["type"]:
            case "stream_event" if event["event"].get("delta", {}).get("type") == "text_delta":
                first = first or now
            case "assistant":
                last, last_uuid = now, event["uuid"]
            case _:
                pass
        return bool(event["type"] == "result")

    await cli.until(look, timeout_s=_TURN_TIMEOUT_S)
    ended = (time.perf_counter() - begun) * 1000
    on_disk = float("nan")
    if home is not None:
        await _on_disk(home, session_id, str(last_uuid))
        on_disk = (time.perf_counter() - begun) * 1000
    await cli.until(lambda event: event.get("command_uuid") == sent.uuid and event.get("state") == "completed")
    if first is None or last is None:
        raise EOFError(f"the bare CLI answered {message!r} without text")
    return BareTurn(first, last, ended, on_disk)


async def _on_disk(home: Path, session_id: str, uuid: str) -> None:
    """Until the transcript holds the record of that uuid. What was there before is not read again."""
    wanted = json.dumps(uuid).encode()
    offset = 0
    async with asyncio.timeout(_ON_DISK_TIMEOUT_S):
        while True:
            path = transcript_path(home, session_id)
            if path is not None and (size := path.stat().st_size) > offset:
                with path.open("rb") as file:
                    file.seek(max(offset - len(wanted), 0))
                    if wanted in file.read():
                        return
                offset = size
            await asyncio.sleep(_POLL_S)
