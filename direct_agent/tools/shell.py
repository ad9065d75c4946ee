"""The shell tool: one command in the workspace, in a process group of its own, bounded in time and output.

It runs inside the sandbox and is confined by the sandbox, not by this house's path walks. Nothing is proved about what it did.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from direct_agent.tools.errors import ToolError
from direct_agent.tools.port import Arguments, Output, ToolSpec
from direct_agent.tools.process import Ran, run_group

TIMEOUT_DEFAULT_S = 120
TIMEOUT_MAX_S = 600
HEAD_BYTES = 24 * 1024
TAIL_BYTES = 8 * 1024
_SHELLS = ("/bin/bash", "/bin/sh")


class Shell:
    """Implements PlainTool. `environment` is all that the command gets; the model's key must not be in it."""

    spec = ToolSpec(
        name="shell",
        description="Runs a command with bash in the workspace and gives its output and exit code. Input is empty. "
        "Processes that it leaves behind are ended with it.",
        parameters={
            "type": "object",
            "properties": {
                "command": {"type": "string"},
                "timeout_s": {"type": "integer", "minimum": 1, "maximum": TIMEOUT_MAX_S},
            },
            "required": ["command"],
            "additionalProperties": False,
        },
        is_read_only=False,
    )

    def __init__(self, root: Path, environment: Mapping[str, str]) -> None:
        self._root = str(root)
        self._environment = dict(environment)
        self._shell = next((shell for shell in _SHELLS if Path(shell).exists()), _SHELLS[-1])

    def subjects(self, arguments: Arguments) -> tuple[str, ...]:
        return (arguments["command"],)

    async def run(self, arguments: Arguments) -> Output:
        command = arguments["command"]
        if "\x00" in command:
            raise ToolError("expected a command without NUL, found one")
        timeout_s = arguments.get("timeout_s", TIMEOUT_DEFAULT_S)
        try:
            ran = await run_group(
                (self._shell, "-c", command),
                cwd=self._root,
                env=self._environment,
                timeout_s=timeout_s,
                head_bytes=HEAD_BYTES,
                tail_bytes=TAIL_BYTES,
            )
        except (OSError, ValueError):
            raise ToolError("the command could not be started; nothing was run") from None
        return _output(ran, timeout_s)


def _output(ran: Ran, timeout_s: int) -> Output:
    text = ran.head.decode("utf-8", "replace")
    if ran.dropped:
        text += f"\n… {ran.dropped} bytes are not shown …\n"
    text += ran.tail.decode("utf-8", "replace")
    if ran.exit_code is None:
        end = f"(ended after its limit of {timeout_s} s; what it did until then stays done)"
    elif ran.exit_code < 0:
        end = f"(ended by signal {-ran.exit_code})"
    else:
        end = f"(exit code {ran.exit_code})"
    joint = "" if not text or text.endswith("\n") else "\n"
    return Output(f"{text}{joint}{end}", is_error=ran.exit_code != 0)
