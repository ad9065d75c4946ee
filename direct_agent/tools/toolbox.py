"""All tools of one process, by name."""

from __future__ import annotations

from collections.abc import Mapping

from direct_agent.tools.disk import Disk
from direct_agent.tools.listing import List
from direct_agent.tools.port import ChangeTool, PlainTool, ToolSpec
from direct_agent.tools.read import Read
from direct_agent.tools.search import Search
from direct_agent.tools.shell import Shell
from direct_agent.tools.write import Edit, MultiEdit, Write

TOOL_NAMES = ("read", "write", "edit", "multi_edit", "list", "search", "shell")


class Toolbox:
    """`plain` and `changes` hold each tool once, under its name."""

    def __init__(self, plain: Mapping[str, PlainTool], changes: Mapping[str, ChangeTool]) -> None:
        self.plain = dict(plain)
        self.changes = dict(changes)

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """In one order for good: the list is part of every request."""
        by_name = {**self.plain, **self.changes}
        known = [name for name in TOOL_NAMES if name in by_name]
        others = sorted(name for name in by_name if name not in TOOL_NAMES)
        return tuple(by_name[name].spec for name in (*known, *others))


def standard_toolbox(disk: Disk, environment: Mapping[str, str]) -> Toolbox:
    """The seven tools. `environment`: what a shell command gets."""
    workspace = disk.workspace
    plain: dict[str, PlainTool] = {
        "read": Read(disk),
        "list": List(workspace),
        "search": Search(workspace),
        "shell": Shell(workspace.root, environment),
    }
    changes: dict[str, ChangeTool] = {"write": Write(disk), "edit": Edit(disk), "multi_edit": MultiEdit(disk)}
    return Toolbox(plain, changes)
