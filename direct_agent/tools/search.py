"""The search tool: a regular expression over the text files of a folder. The matching runs in a process of its own."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from direct_agent.tools.errors import ArgumentError, ToolError
from direct_agent.tools.port import Arguments, Output, ToolSpec
from direct_agent.tools.process import run_group
from direct_agent.tools.workspace import Workspace

TIMEOUT_S = 20
MATCHES_MAX = 200
_OUTPUT_BYTES = 96 * 1024
_PROGRAM = Path(__file__).with_name("search_program.py")
_NOT_A_PATTERN = 2


class Search:
    """Implements PlainTool."""

    spec = ToolSpec(
        name="search",
        description="Searches the text files below a folder of the workspace for a regular expression (Python's), "
        "without .git, node_modules, .venv and __pycache__.",
        parameters={
            "type": "object",
            "properties": {
                "pattern": {"type": "string"},
                "path": {"type": "string", "description": "The folder; the workspace when not given."},
                "names": {"type": "string", "description": "Only files named like this, e.g. *.py"},
                "literal": {"type": "boolean", "description": "The pattern is plain text."},
                "ignore_case": {"type": "boolean"},
            },
            "required": ["pattern"],
            "additionalProperties": False,
        },
        is_read_only=True,
    )

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def subjects(self, arguments: Arguments) -> tuple[str, ...]:
        return (arguments.get("path", "."),)

    async def run(self, arguments: Arguments) -> Output:
        with self._workspace.open_folder(arguments.get("path", ".")) as fd:
            inherited = os.dup(fd)
            try:
                ran = await run_group(
                    (sys.executable, "-I", str(_PROGRAM)),
                    cwd="/",
                    env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
                    timeout_s=TIMEOUT_S,
                    head_bytes=_OUTPUT_BYTES,
                    tail_bytes=0,
                    stdin=_request(arguments, inherited),
                    pass_fds=(inherited,),
                )
            except OSError:
                raise ToolError("the search could not be started") from None
            finally:
                os.close(inherited)
        text = ran.head.decode("utf-8", "replace").rstrip("\n")
        if ran.exit_code is None:
            raise ToolError(f"the search took longer than {TIMEOUT_S} s; give a simpler pattern or a smaller folder")
        if ran.exit_code == _NOT_A_PATTERN:
            raise ArgumentError(text)
        if ran.dropped:
            text += "\n… more than fits; give a narrower pattern"
        return Output(text or "(no match)")


def _request(arguments: Arguments, fd: int) -> bytes:
    wanted = {
        "fd": fd,
        "pattern": arguments["pattern"],
        "is_literal": arguments.get("literal", False),
        "ignore_case": arguments.get("ignore_case", False),
        "names": arguments.get("names"),
        "matches_max": MATCHES_MAX,
    }
    return json.dumps(wanted).encode("ascii")
