"""Runs the lab provider as a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from standfast_lab.provider.directives import DirectiveError
from standfast_lab.provider.server import LabProvider

KEYS_VARIABLE = "STANDFAST_LAB_API_KEYS"


def run(
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    log: Path | None = None,
    script: Path | None = None,
    ready_file: Path | None = None,
) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit code (0 in order, 2 for a bad script, log or port).

    The first line on stdout, and the content of `ready_file`, is `{"port": N, "base_url": "...", "pid": N}`, given
    once it listens. Accepted API keys come from the environment variable STANDFAST_LAB_API_KEYS (comma separated;
    unset: any), never from a command line.
    """
    try:
        return asyncio.run(_serve(host, port, log, _steps(script), ready_file))
    except (OSError, DirectiveError, ValueError) as error:
        print(f"lab provider: {error}", file=sys.stderr)
        return 2


def main(argv: Sequence[str] | None = None) -> int:
    """Reads a command line and runs."""
    parser = argparse.ArgumentParser(
        prog="standfast_lab.provider", description="Deterministic model provider on loopback."
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--log", type=Path, help="JSONL file, one row a request; appended to")
    parser.add_argument("--script", type=Path, help="JSON list of script steps")
    parser.add_argument("--ready-file", type=Path, help="written once it listens")
    asked = parser.parse_args(argv)
    return run(host=asked.host, port=asked.port, log=asked.log, script=asked.script, ready_file=asked.ready_file)


def _steps(script: Path | None) -> list[dict[str, object]]:
    steps = json.loads(script.read_text(encoding="utf-8")) if script is not None else []
    if not isinstance(steps, list):
        raise DirectiveError(f"{script}: expected a JSON list of steps")
    return steps


def _write_ready(ready_file: Path, line: str) -> None:
    # Renamed into place, so that a reader never sees half of it.
    half = ready_file.with_name(ready_file.name + ".half")
    half.write_text(line + "\n", encoding="utf-8")
    half.replace(ready_file)


async def _serve(
    host: str, port: int, log: Path | None, steps: list[dict[str, object]], ready_file: Path | None
) -> int:
    keys = os.environ.get(KEYS_VARIABLE)
    provider = LabProvider(host=host, port=port, log_path=log, api_keys=keys.split(",") if keys else None)
    provider.script(*steps)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with provider:
        ready = json.dumps({"port": provider.port, "base_url": provider.base_url, "pid": os.getpid()})
        if ready_file is not None:
            _write_ready(ready_file, ready)
        print(ready, flush=True)
        await stopped.wait()
    return 0
