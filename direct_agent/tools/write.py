"""The three change tools: write a file, edit one, edit several at once. They plan; the executor records and writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from direct_agent.tools.disk import Disk
from direct_agent.tools.errors import ArgumentError, PathError
from direct_agent.tools.port import Arguments, Change, ToolSpec

EDITS_MAX = 100

_EDIT: dict[str, Any] = {
    "path": {"type": "string"},
    "old_text": {"type": "string", "description": "Exact text, as it is in the file, with enough of it to be unique."},
    "new_text": {"type": "string"},
    "replace_all": {"type": "boolean", "description": "Replace every occurrence. Otherwise there must be exactly one."},
}
_EDIT_REQUIRED = ["path", "old_text", "new_text"]


def _schema(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


class Write:
    """Implements ChangeTool."""

    spec = ToolSpec(
        name="write",
        description="Writes a whole text file of the workspace; makes the folders on its way. Replaces what was there.",
        parameters=_schema({"path": {"type": "string"}, "content": {"type": "string"}}, ["path", "content"]),
        is_read_only=False,
    )

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def subjects(self, arguments: Arguments) -> tuple[str, ...]:
        return (arguments["path"],)

    def plan(self, arguments: Arguments) -> tuple[Change, ...]:
        return (self._disk.change(arguments["path"], arguments["content"]),)

    def report(self, changes: tuple[Change, ...]) -> str:
        return _report(changes)


class Edit:
    """Implements ChangeTool."""

    spec = ToolSpec(
        name="edit",
        description="Replaces text in one file of the workspace.",
        parameters=_schema(_EDIT, _EDIT_REQUIRED),
        is_read_only=False,
    )

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def subjects(self, arguments: Arguments) -> tuple[str, ...]:
        return (arguments["path"],)

    def plan(self, arguments: Arguments) -> tuple[Change, ...]:
        return _plan(self._disk, [arguments])

    def report(self, changes: tuple[Change, ...]) -> str:
        return _report(changes)


class MultiEdit:
    """Implements ChangeTool. Nothing is written unless every edit can be made."""

    spec = ToolSpec(
        name="multi_edit",
        description="Replaces text in one or several files of the workspace, in the order given: all of it or nothing.",
        parameters=_schema(
            {
                "edits": {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": EDITS_MAX,
                    "items": _schema(_EDIT, _EDIT_REQUIRED),
                }
            },
            ["edits"],
        ),
        is_read_only=False,
    )

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def subjects(self, arguments: Arguments) -> tuple[str, ...]:
        return tuple(dict.fromkeys(edit["path"] for edit in arguments["edits"]))

    def plan(self, arguments: Arguments) -> tuple[Change, ...]:
        return _plan(self._disk, arguments["edits"])

    def report(self, changes: tuple[Change, ...]) -> str:
        return _report(changes)


def _plan(disk: Disk, edits: Sequence[Arguments]) -> tuple[Change, ...]:
    """One change a file, by where its path really leads: two names of one file are one."""
    changes: dict[str, Change] = {}
    for edit in edits:
        snapshot = disk.snapshot(edit["path"])
        if snapshot.file is None:
            raise PathError(f"expected a file at {edit['path']!r}, found nothing there; use write for a new file")
        so_far = changes.get(snapshot.resolved_path) or disk.change(edit["path"], snapshot.file.text, snapshot=snapshot)
        after = _edited(so_far.after, edit)
        disk.change(edit["path"], after, snapshot=snapshot)  # refuses a text that the encoding cannot hold
        changes[snapshot.resolved_path] = replace(so_far, after=after)
    return tuple(changes.values())


def _edited(text: str, edit: Arguments) -> str:
    path, old, new = edit["path"], edit["old_text"], edit["new_text"]
    if old == "":
        raise ArgumentError(f"{path!r}: expected some old_text, found none; use write to replace a whole file")
    if old not in text and "\r\n" in text and "\r" not in old:
        # The model saw lines, not line ends: in a file with CRLF its line feeds stand for those.
        old, new = old.replace("\n", "\r\n"), new.replace("\r\n", "\n").replace("\n", "\r\n")
    found = text.count(old)
    if found == 0:
        raise PathError(f"{path!r} does not hold the old_text; read the file and send the exact text")
    if found > 1 and not edit.get("replace_all", False):
        raise PathError(f"{path!r} holds the old_text {found} times; send more of it, or replace_all")
    return text.replace(old, new)


def _report(changes: tuple[Change, ...]) -> str:
    lines = []
    for change in changes:
        if not change.is_needed:
            lines.append(f"{change.path}: already had exactly this text; nothing was written")
        else:
            done = "changed" if change.existed else "created"
            lines.append(f"{change.path}: {done}, {len(change.after)} characters")
    return "\n".join(lines)
