"""Entry point: `serve` (default) runs the supervisor, `measure` prints what this sandbox consists of and ends."""

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path

from .layout import Layout, container_layout, local_layout
from .measure import measure
from .reaper import Reaper
from .supervisor import Supervisor


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="guest", description=__doc__)
    parser.add_argument("action", nargs="?", choices=("serve", "measure"), default="serve")
    parser.add_argument("--layout", choices=("container", "local"), help="default: local where --agents is given")
    parser.add_argument("--agents", type=Path, help="local: the folder with one folder an agent")
    parser.add_argument("--root", type=Path, help="local: the retained folder")
    parser.add_argument("--socket-dir", type=Path, help="local: where the control socket is published")
    parser.add_argument("--stop-patience", type=float, default=8.0, metavar="SECONDS")
    asked = parser.parse_args(argv)
    kind = asked.layout or ("container" if asked.agents is None else "local")
    if kind == "local" and asked.agents is None:
        parser.error("--layout local needs --agents")
    if asked.action == "measure":
        return _print_measurement(kind, asked.agents)
    if kind == "local" and asked.root is None:
        parser.error("--layout local needs --root")
    layout = container_layout() if kind == "container" else _local(asked.root, asked.socket_dir, asked.agents)
    return asyncio.run(_serve(layout, asked.stop_patience))


def _local(root: Path, socket_dir: Path | None, agents: Path) -> Layout:
    real = root.resolve()
    return local_layout(real, socket_dir or real / "sf" / "host", agents.resolve())


def _print_measurement(kind: str, agents: Path) -> int:
    with tempfile.TemporaryDirectory(prefix="standfast-measure-") as scratch:
        if kind == "local":
            # Nothing is kept here: a measurement needs a layout with at least one slot.
            for name in ("members/1/home", "run/slots/1"):
                Path(scratch, name).mkdir(parents=True)
        layout = container_layout() if kind == "container" else _local(Path(scratch), None, agents)
        print(json.dumps(asyncio.run(_measure(layout))), flush=True)
    return 0


async def _serve(layout: Layout, stop_patience_s: float) -> int:
    return await Supervisor(layout, stop_patience_s).run()


async def _measure(layout: Layout) -> dict[str, object]:
    reaper = Reaper()
    reaper.install(asyncio.get_running_loop())
    return await measure(layout, reaper)


if __name__ == "__main__":
    sys.exit(main())
