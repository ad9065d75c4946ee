"""Checks that no two installed distributions own `opentelemetry/proto/`.

grpcio-admin brings one that overwrites those files with older ones; pip finds nothing wrong, and traces stop being exported.
"""

from __future__ import annotations

import sys
from importlib.metadata import distributions

FOLDER = "opentelemetry/proto/"


def owners_of(folder: str) -> list[str]:
    """Names of the installed distributions that have files below `folder`."""
    return sorted(
        distribution.metadata["Name"]
        for distribution in distributions()
        if any(str(file).startswith(folder) for file in distribution.files or [])
    )


def main() -> int:
    found = owners_of(FOLDER)
    if found != ["opentelemetry-proto"]:
        print(
            f"{FOLDER} must belong to opentelemetry-proto alone; found: {', '.join(found) or 'nobody'}. Reinstall opentelemetry-proto"
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
