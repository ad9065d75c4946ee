"""The agent on real files in a temporary folder, with a scripted model and a listener that keeps what it heard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from direct_agent.loop.agent import Agent
from direct_agent.loop.ports import Rounds
from direct_agent.session.session import Session, SessionFolder
from direct_agent.tools.disk import Disk
from direct_agent.tools.permissions import PermissionMode, Permissions, Rule
from direct_agent.tools.toolbox import Toolbox, standard_toolbox
from direct_agent.tools.workspace import Workspace

SESSION_ID = "11111111-0000-4000-8000-000000000001"
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}


@dataclass
class Heard:
    """Implements Audience."""

    events: list[dict[str, Any]] = field(default_factory=list)
    on_event: Callable[[Mapping[str, Any]], None] = lambda _event: None

    def say(self, event: Mapping[str, Any]) -> None:
        self.events.append(dict(event))
        self.on_event(event)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind]


@dataclass
class House:
    """One home and workspace; `agent` opens the session in it."""

    root: Path
    reach: Callable[[str], None] = lambda _point: None
    heard: Heard = field(default_factory=Heard)
    disk_class: type[Disk] = Disk

    def __post_init__(self) -> None:
        self.home = self.root / "home"
        self.work = self.root / "work"
        self.staging = self.home / ".standfast-direct" / "staging"
        self.work.mkdir(parents=True, exist_ok=True)
        self.staging.mkdir(parents=True, exist_ok=True)
        self.folder = SessionFolder(self.home, reach=self.reach)
        self.disk = self.disk_class(Workspace(self.work), self.staging, reach=self.reach)

    def session(self) -> Session:
        if self.folder.path_of(SESSION_ID).exists():
            return self.folder.open(SESSION_ID)
        return self.folder.create(SESSION_ID, cwd=str(self.work), agent_version="test")

    def agent(
        self,
        rounds: Rounds,
        *,
        session: Session | None = None,
        mode: PermissionMode = PermissionMode.AUTO,
        allow: Sequence[Rule] = (),
        deny: Sequence[Rule] = (),
        toolbox: Toolbox | None = None,
        agreements: Callable[[], str] | None = None,
    ) -> Agent:
        return Agent(
            session or self.session(),
            rounds,
            toolbox or standard_toolbox(self.disk, ENVIRONMENT),
            self.disk,
            Permissions(mode, tuple(allow), tuple(deny)),
            self.heard,
            lambda: "be good",
            agreements=agreements,
        )


async def until(is_so: Callable[[], object]) -> None:
    """Waits for a state, for at most 10 s."""
    for _ in range(2000):
        if is_so():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not become so within 10 s")
