"""`endpoints.json` in the state folder of `standfast up`: where its processes listen while it runs."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

FILE_NAME = "endpoints.json"


class EndpointsError(Exception):
    """The file is not there, or is none of ours."""


@dataclass(frozen=True)
class Endpoints:
    """Addresses as host:port, process ids by name, the engine in use, and the provider's base URL."""

    runner: str
    manager: str
    host_agent: str
    engine: str
    provider_url: str
    pids: dict[str, int]


def default_state() -> Path:
    """The state folder when none is named."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "standfast"


def read_endpoints(state: Path) -> Endpoints:
    """What a running `standfast up` wrote. Raises EndpointsError."""
    path = state / FILE_NAME
    try:
        return Endpoints(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise EndpointsError(f"no `standfast up` runs on the state folder {state}") from error
    except (OSError, ValueError, TypeError) as error:
        raise EndpointsError(f"{path} cannot be read as the endpoints of `standfast up`") from error


def write_endpoints(state: Path, endpoints: Endpoints) -> None:
    """Written whole: a reader never sees half of it."""
    half = state / (FILE_NAME + ".half")
    half.write_text(json.dumps(asdict(endpoints), indent=1) + "\n", encoding="utf-8")
    half.replace(state / FILE_NAME)


def remove_endpoints(state: Path) -> None:
    """Nothing listens there any more. Idempotent."""
    (state / FILE_NAME).unlink(missing_ok=True)
