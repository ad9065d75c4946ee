"""The pins of the agents' CLIs: `deploy/pins.json`, one entry an agent, the only place that names a version."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from deploy.release.errors import BuildError

PINS_FILE = Path(__file__).parent.parent / "pins.json"


@dataclass(frozen=True, slots=True)
class RuntimePin:
    """The interpreter that a CLI needs: one file of an npm package at an exact version."""

    package: str
    version: str
    integrity: str
    member: str

    @property
    def spec(self) -> str:
        return f"{self.package}@{self.version}"


@dataclass(frozen=True, slots=True)
class AgentPin:
    """One agent's CLI: an npm package at an exact version, and the one file of it that we run.

    `integrity` is the package's in npm's form, `sha512-<base64>`, over the tarball. `member` is the file in the tarball,
    `member_sha256` the hex digest of its bytes, `executable` its name once installed.

    A CLI that is a program for a `runtime` is a folder: `executable` is the runtime's file in it, `program` the file that it is given,
    `members` the files and folders of the package that are kept (below `app/`, without their first component), and `member_sha256`
    the digest of the whole folder as the supervisor measures it; `member` is empty.
    """

    agent: str
    version: str
    package: str
    integrity: str
    member: str
    member_sha256: str
    executable: str
    program: str = ""
    members: tuple[str, ...] = ()
    runtime: RuntimePin | None = None

    @property
    def spec(self) -> str:
        return f"{self.package}@{self.version}"


def load_pins(path: Path = PINS_FILE) -> dict[str, AgentPin]:
    """All pins by agent name. A missing or unknown key in the file raises `BuildError`."""
    pins = {}
    for agent, fields in json.loads(path.read_text()).items():
        try:
            runtime = fields.pop("runtime", None)
            members = tuple(fields.pop("members", ()))
            pins[agent] = AgentPin(
                agent=agent, runtime=RuntimePin(**runtime) if runtime else None, members=members, **fields
            )
        except TypeError as error:
            raise BuildError(f"{path}: the entry {agent!r} must have exactly the keys of AgentPin: {error}") from error
    return pins


def chosen_pins(names: Iterable[str], path: Path = PINS_FILE) -> list[AgentPin]:
    """The pins of the named agents, in the order of the names, each once. An unknown name raises `BuildError`."""
    pins = load_pins(path)
    unknown = [name for name in names if name not in pins]
    if unknown:
        raise BuildError(f"unknown agent {', '.join(unknown)}; {path.name} knows: {', '.join(sorted(pins))}")
    return [pins[name] for name in dict.fromkeys(names)]
