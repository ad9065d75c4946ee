"""One process of a fleet: `python -m standfast_lab.fleet.process KIND`, with its settings and switches in one variable.

    STANDFAST_LAB_PROCESS='{"flags": {...}, "switches": {...}}'

The variable holds no secret. It is taken out of the environment before the process's own settings look at it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from standfast_lab.fleet.pauses import install as install_pauses
from standfast_lab.fleet.switches import Switches

VARIABLE = "STANDFAST_LAB_PROCESS"


def main(kind: str) -> int:
    """Runs one process; its exit code."""
    given = json.loads(os.environ.pop(VARIABLE))
    flags: dict[str, Any] = given["flags"]
    switches = Switches.read(given["switches"])
    if switches.pauses is not None:
        install_pauses(Path(switches.pauses), kind)
    # Imported one by one: a process must not need its neighbours' packages.
    match kind:
        case "manager":
            return _manager(flags, switches)
        case "host-agent":
            return _host_agent(flags, switches)
        case "runner":
            return _runner(flags, switches)
        case _:
            print(f"expected manager, host-agent or runner, found {kind}", file=sys.stderr)
            return 2


def _manager(flags: dict[str, Any], switches: Switches) -> int:
    from sandbox_manager.policy import ManagerPolicy
    from sandbox_manager.server import Settings, run

    return run(Settings.load(flags=flags), ManagerPolicy(check_identity=switches.manager_checks_identity))


def _host_agent(flags: dict[str, Any], switches: Switches) -> int:
    from sandbox_manager.host.conductor.activation_limits import HostPolicy
    from sandbox_manager.host.core.disposition import DispositionPolicy
    from sandbox_manager.host.core.gate import GatePolicy
    from sandbox_manager.host.server import Settings, run

    policy = HostPolicy(
        gate=GatePolicy(let_slash_through=switches.let_slash_through),
        disposition=DispositionPolicy(retire_rules_on=switches.retire_rules_on),
    )
    return run(Settings.load(flags=flags), policy)


def _runner(flags: dict[str, Any], switches: Switches) -> int:
    from runner.policy import RunnerPolicy
    from runner.server import Settings, run

    return run(
        Settings.load(flags=flags),
        RunnerPolicy(
            check_identity=switches.runner_checks_identity,
            rewrite_user_frame=without_empty_block if switches.let_slash_through else None,
        ),
    )


def without_empty_block(frame: bytes) -> bytes:
    """A Claude Code user frame without the empty second block that makes a text with a slash an ordinary message."""
    sent = json.loads(frame)
    sent["message"]["content"] = [block for block in sent["message"]["content"] if block.get("text") != ""]
    return json.dumps(sent, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
