"""The request log: one row a request, in the order of arrival. The history oracle and the relay's tests read it.

A row is a JSON object (also one line of the JSONL file, written when its answer is over, so the file is ordered by
end; sort by `n`):

    n              number from 1, by arrival
    time           seconds since the epoch, at arrival
    state          ENDED, or while the answer is under way OPEN or HOLDING (a `hang` is reached); in the file always ENDED
    method, path   as sent, query included
    session_id     as the client named it, see the protocol's `*_request`; null if it did not
    kind           root | subagent | side | count_tokens | hello | invalid | unknown
    is_root        kind == root
    stream, model  as asked
    tools          names on offer
    messages       [{role, texts, tools, reminders, blocks}]: texts without reminders; a reminder is
                   {sha256, chars, head}; tools holds every other block by its name; blocks is the order, as
                   [kind, index in its list]
    header_names   names only, in order
    key_sha256     of the API key; the key itself is nowhere
    request_bytes, request_sha256      of the body
    answer         what kind of answer: grammar, say, tool, status, cut, ...
    status         null if no head was sent
    response_bytes, response_sha256    of the body as the client decodes it (no chunk framing)
    is_cut         the lab broke the TCP stream
    is_peer_gone   the client left before the end
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO

from standfast_lab.provider.heard import Block, BlockKind, Heard, Message
from standfast_lab.provider.http import Incoming, Progress, Sent

Row = dict[str, Any]
_ROWS_MAX = 100_000
_HEAD_CHARS = 60
_MESSAGES_KEPT = 20_000


class RequestLog:
    """Rows in memory, and in a JSONL file if a path is given."""

    def __init__(self, path: Path | None = None) -> None:
        self._rows: list[Row] = []
        self._changed = asyncio.Event()
        self._file: TextIO | None = path.open("a", encoding="utf-8") if path else None

    def open_row(
        self, incoming: Incoming, heard: Heard | None, kind: str, answer: str, *, now: float, key: str | None
    ) -> Row:
        """Adds a row for a request that has just arrived."""
        if len(self._rows) >= _ROWS_MAX:
            raise MemoryError(f"lab log: more than {_ROWS_MAX} requests; clear it with POST /lab/reset")
        row: Row = {
            "n": len(self._rows) + 1,
            "time": now,
            "state": "OPEN",
            "method": incoming.method,
            "path": incoming.target,
            "session_id": heard.session_id if heard else None,
            "kind": kind,
            "is_root": kind == "root",
            "stream": heard.stream if heard else False,
            "model": heard.model if heard else None,
            "tools": list(heard.tools) if heard else [],
            "messages": [message_row(message) for message in heard.messages] if heard else [],
            "header_names": list(incoming.header_names),
            "key_sha256": hashlib.sha256(key.encode()).hexdigest() if key is not None else None,
            "request_bytes": len(incoming.body),
            "request_sha256": hashlib.sha256(incoming.body).hexdigest(),
            "answer": answer,
            "status": None,
            "response_bytes": 0,
            "response_sha256": None,
            "is_cut": False,
            "is_peer_gone": False,
        }
        self._rows.append(row)
        self._wake()
        return row

    def update_row(self, row: Row, sent: Sent) -> None:
        """Brings a row up to date; at its end it is written to the file."""
        row.update(
            state=sent.progress.value,
            status=sent.status,
            response_bytes=sent.body_bytes,
            response_sha256=sent.digest.hexdigest(),
            is_cut=sent.is_cut,
            is_peer_gone=sent.is_peer_gone,
        )
        if self._file is not None and sent.progress is Progress.ENDED:
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()
        self._wake()

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self, *, session_id: str | None = None, after: int = 0) -> list[Row]:
        """Returns the rows, of one session if one is named."""
        return [row for row in self._rows if row["n"] > after and session_id in (None, row["session_id"])]

    def roots(self, session_id: str | None = None) -> list[Row]:
        """Returns the root requests, of one session if one is named."""
        return [row for row in self.rows(session_id=session_id) if row["is_root"]]

    async def wait_for(self, predicate: Callable[[list[Row]], bool], *, timeout_s: float = 10.0) -> list[Row]:
        """Waits until the predicate holds for all rows and returns them.

        Raises TimeoutError with the number of rows seen.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while not predicate(self._rows):
                    await self._changed.wait()
        except TimeoutError as error:
            raise TimeoutError(
                f"lab log: no state as wanted within {timeout_s} s; {len(self._rows)} rows seen"
            ) from error
        return list(self._rows)

    def clear(self) -> None:
        """Forgets all rows; the file keeps its lines."""
        self._rows.clear()

    def close(self) -> None:
        """Closes the file. Idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


@lru_cache(maxsize=_MESSAGES_KEPT)
def message_row(message: Message) -> Row:
    """Returns the row form of one message. Equal messages share one object, so nobody may change it.

    Every request repeats the whole history: without sharing, a conversation of a thousand turns would hold a million.
    """
    lists: dict[str, list[Any]] = {"texts": [], "tools": [], "reminders": []}
    order: list[list[Any]] = []
    for block in message.blocks:
        name = {BlockKind.TEXT: "texts", BlockKind.REMINDER: "reminders"}.get(block.kind, "tools")
        lists[name].append(_block_row(block))
        order.append([block.kind.value, len(lists[name]) - 1])
    return {"role": message.role, **lists, "blocks": order}


def read_log(lines: Iterable[str]) -> list[Row]:
    """Reads JSONL lines and returns the rows in the order of arrival."""
    return sorted((json.loads(line) for line in lines if line.strip()), key=lambda row: int(row["n"]))


def _block_row(block: Block) -> object:
    if block.kind is BlockKind.TEXT:
        return block.text
    if block.kind is BlockKind.REMINDER:
        raw = block.text.encode("utf-8", "surrogatepass")
        return {"sha256": hashlib.sha256(raw).hexdigest(), "chars": len(block.text), "head": block.text[:_HEAD_CHARS]}
    if block.kind is BlockKind.TOOL_RESULT:
        return f"tool_result {block.tool_id}"
    return block.text if block.kind is BlockKind.TOOL_USE else block.kind.value
