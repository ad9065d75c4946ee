"""The read tool: a text file, whole or from a line on, with numbered lines."""

from __future__ import annotations

import asyncio

from direct_agent.tools.disk import Disk
from direct_agent.tools.errors import PathError
from direct_agent.tools.port import Arguments, Output, ToolSpec

LINES_DEFAULT = 2000
LINE_CHARACTERS_MAX = 2000
OUTPUT_CHARACTERS_MAX = 200_000


class Read:
    """Implements PlainTool."""

    spec = ToolSpec(
        name="read",
        description="Reads a text file of the workspace. Lines are numbered from 1.",
        parameters={
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "Relative to the workspace, or absolute inside it."},
                "first_line": {"type": "integer", "minimum": 1},
                "lines": {"type": "integer", "minimum": 1, "maximum": LINES_DEFAULT},
            },
            "required": ["path"],
            "additionalProperties": False,
        },
        is_read_only=True,
    )

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def subjects(self, arguments: Arguments) -> tuple[str, ...]:
        return (arguments["path"],)

    async def run(self, arguments: Arguments) -> Output:
        return await asyncio.to_thread(self._read, arguments)

    def _read(self, arguments: Arguments) -> Output:
        path = arguments["path"]
        snapshot = self._disk.snapshot(path)
        if snapshot.file is None:
            raise PathError(f"expected a file at {path!r}, found nothing there")
        lines = snapshot.file.text.splitlines()
        if not lines:
            return Output("(the file is empty)")
        first = arguments.get("first_line", 1)
        if first > len(lines):
            raise PathError(f"{path!r} has {len(lines)} lines; first_line {first} is after its end")
        return Output(_numbered(lines, first, arguments.get("lines", LINES_DEFAULT)))


def _numbered(lines: list[str], first: int, count: int) -> str:
    shown: list[str] = []
    size = 0
    for number, line in enumerate(lines[first - 1 : first - 1 + count], start=first):
        cut = line if len(line) <= LINE_CHARACTERS_MAX else f"{line[:LINE_CHARACTERS_MAX]}… (line cut)"
        size += len(cut) + 8
        if size > OUTPUT_CHARACTERS_MAX and shown:
            break
        shown.append(f"{number:>6}\t{cut}")
    after = first - 1 + len(shown)
    if after < len(lines):
        shown.append(f"… lines {after + 1} to {len(lines)} are not shown; read on with first_line={after + 1}")
    return "\n".join(shown)
