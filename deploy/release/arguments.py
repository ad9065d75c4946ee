"""The flags that building an image and laying out a tool folder share."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from deploy.release.context import REPO
from deploy.release.pins import load_pins


def cache_folder() -> Path:
    """Where fetched and built things are kept: `STANDFAST_CACHE`, else `.cache` in the tree."""
    folder = Path(os.environ.get("STANDFAST_CACHE") or REPO / ".cache")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def parser(program: str, description: str, manifest_name: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog=program, description=description)
    made.add_argument(
        "--agents",
        default=",".join(load_pins()),
        help="agents to put in, separated by commas (default: all that are pinned, %(default)s)",
    )
    made.add_argument(
        "--manifest",
        type=Path,
        default=cache_folder() / manifest_name,
        metavar="PATH",
        help=f"where to write the release manifest (default: {manifest_name} in the cache folder)",
    )
    return made


def agent_names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
