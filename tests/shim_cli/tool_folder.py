"""A tool folder whose CLI is the shim, around the stub or around the pinned program."""

from __future__ import annotations

import json
from pathlib import Path

from tests.stub_cli.tool_folder import STUB, ToolFolder, make_tool_folder

_SHIM = Path(__file__).parent / "shim_claude"


def make_shim_folder(folder: Path, *, around: Path | None = None) -> ToolFolder:
    """Around the stub, or around the executable `around`."""
    return make_tool_folder(folder, program=(_SHIM, STUB) if around is None else (_SHIM,), wrapped=around)


def alter(tools: ToolFolder, place: str | None, session_id: str = "0b5e55ed-dead-4000-8000-00000000beef") -> str:
    """What the shim does from the next turn on; None: nothing. Returns the id it puts in."""
    plan = tools.executable.parent / "shim.json"
    if place is None:
        plan.unlink(missing_ok=True)
    else:
        half = plan.with_suffix(".half")
        half.write_text(json.dumps({"place": place, "session_id": session_id}))
        half.rename(plan)
    return session_id
