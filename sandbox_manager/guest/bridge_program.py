"""The bridge beside this supervisor: how it is started."""

import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "bridge"


def bridge_command() -> tuple[str, ...]:
    """The command line without its arguments. No path, variable or site package of anyone else reaches it; it writes nothing beside."""
    return sys.executable, "-I", "-S", "-B", str(FOLDER)
