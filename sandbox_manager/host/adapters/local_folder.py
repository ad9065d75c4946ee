"""A retained folder of the `local` engine and its two records. Blocking: for a worker thread.

NAME/container.json   what was created: written once
NAME/run.json         the newest run: who, since when, and how it ended
NAME/sf/              marker, nonce, the supervisor's log and its exit record; not for members
NAME/members/N/home   the slots' homes        NAME/run/slots/N  emptied at every start        NAME/workspace
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sandbox_manager.host.adapters.engine import SandboxSpec
from sandbox_manager.host.adapters.engine_errors import NameTakenError, SandboxPathError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
# Claude Code names a session's folder after the working directory; a longer path gets a hash that nobody else can tell.
_WORKSPACE_LENGTH_MAX = 199


@dataclass(frozen=True, slots=True)
class Created:
    """What `container.json` holds."""

    container_id: str
    name: str
    image_id: str
    agents: str
    socket_dir: str
    slots: int
    labels: dict[str, str]
    created_at: str


@dataclass(frozen=True, slots=True)
class Run:
    """What `run.json` holds. `finished_at` and `exit_code` are None while it runs, or where nobody saw how it ended."""

    pid: int
    start_time: int
    started_at: str
    finished_at: str | None = None
    exit_code: int | None = None


def now() -> str:
    """The time as engines write it."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class LocalFolder:
    """One retained folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, groups: Path, spec: SandboxSpec, agents: Path) -> LocalFolder:
        """Lays the folder out beside its place and renames it there: it exists whole or not at all."""
        if not _NAME.fullmatch(spec.name):
            raise SandboxPathError(f"expected a name like {_NAME.pattern}, found {spec.name!r}", {"name": spec.name})
        place = groups.resolve() / spec.name
        _check_length(place / "workspace")
        half = groups / f".new-{secrets.token_hex(8)}"
        half.mkdir(parents=True, mode=0o700)
        try:
            for number in range(1, spec.slots + 1):
                (half / "members" / str(number) / "home").mkdir(parents=True, mode=0o700)
                (half / "run" / "slots" / str(number)).mkdir(parents=True, mode=0o700)
            (half / "workspace").mkdir()
            (half / "sf").mkdir(mode=0o700)
            (half / "sf" / "marker").write_text(secrets.token_hex(16), encoding="ascii")
            created = Created(
                secrets.token_hex(32),
                spec.name,
                spec.image_id,
                str(agents),
                str(spec.socket_dir.resolve()),
                spec.slots,
                dict(spec.labels),
                now(),
            )
            _write(half / "container.json", asdict(created))
            os.rename(half, place)
        except OSError as error:
            shutil.rmtree(half, ignore_errors=True)
            if place.exists():
                raise NameTakenError("local", spec.name) from error
            raise
        return cls(place)

    @property
    def marker(self) -> str:
        """What the folder's processes carry in their environment, with the slot's number."""
        return (self.path / "sf" / "marker").read_text(encoding="ascii").strip()

    def created(self) -> Created | None:
        """None if this is no retained folder."""
        found = _read(self.path / "container.json")
        return None if found is None else Created(**found)

    def run(self) -> Run | None:
        """None before the first start."""
        found = _read(self.path / "run.json")
        return None if found is None else Run(**found)

    def write_run(self, run: Run) -> None:
        """Durably replaces the record of the newest run."""
        _write(self.path / "run.json", asdict(run))

    def finish(self, run: Run, exit_code: int | None) -> Run:
        """Records the end of a run. The supervisor's own record tells when it ended in order."""
        own = _read(self.path / "sf" / "exit.json") or {}
        code = own.get("exit_code") if exit_code is None else exit_code
        finished = replace(run, finished_at=own.get("finished_at") or now(), exit_code=code)
        self.write_run(finished)
        return finished

    def prepare_start(self) -> None:
        """Empties what a container would lose at a stop: the slots' private folders and the last exit record."""
        (self.path / "sf" / "exit.json").unlink(missing_ok=True)
        for slot in (self.path / "run" / "slots").iterdir():
            shutil.rmtree(slot)
            slot.mkdir(mode=0o700)

    def size_bytes(self) -> int:
        """What homes and workspace hold."""
        total = 0
        for part in ("members", "workspace"):
            for folder, _, files in os.walk(self.path / part):
                for name in files:
                    try:
                        total += os.lstat(os.path.join(folder, name)).st_size
                    except FileNotFoundError:
                        continue
        return total

    def remove(self) -> None:
        """Renames it away first: a half-removed folder is not mistaken for a sandbox."""
        gone = self.path.with_name(f".gone-{secrets.token_hex(8)}")
        try:
            os.rename(self.path, gone)
        except FileNotFoundError:
            return
        shutil.rmtree(gone, ignore_errors=True)


def _check_length(workspace: Path) -> None:
    length = len(str(workspace).encode("utf-16-le")) // 2
    if length > _WORKSPACE_LENGTH_MAX:
        raise SandboxPathError(
            f"expected a workspace path of at most {_WORKSPACE_LENGTH_MAX} characters, found {length}: {workspace}; choose a state folder "
            "with a shorter path",
            {"expected": _WORKSPACE_LENGTH_MAX, "found": length, "path": workspace},
        )


def _write(file: Path, content: dict[str, object]) -> None:
    half = file.with_name(file.name + ".part")
    with half.open("w", encoding="utf-8") as out:
        json.dump(content, out, indent=1)
        out.flush()
        os.fsync(out.fileno())
    os.replace(half, file)
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _read(file: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found if isinstance(found, dict) else None
