"""The product on real parts, with the lab as its provider; and what the lab does behind the product's back."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import docker

from standfast_client.sdk import StandfastClient
from standfast_lab.fleet.fleet import Fleet, Parts
from standfast_lab.lab.agents import AgentWords
from standfast_lab.lab.checks import LabCheckError, check, until
from standfast_lab.lab.talk import Talk, Told
from standfast_lab.oracle import Turn, Verdict, judge_roots, rows_of_talk
from standfast_lab.provider import LabProvider, Row


class LabSite:
    """Use as an async context manager. One site serves many conversations, of one agent."""

    def __init__(self, folder: Path, parts: Parts, agent: AgentWords) -> None:
        self.lab = LabProvider()
        self._folder = folder
        self._parts = parts
        self._agent = agent
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self.lab)
        self.fleet = await self._stack.enter_async_context(Fleet(self._folder, self._parts, self.lab.base_url))
        self.client = await self._stack.enter_async_context(StandfastClient(self.fleet.runner.address))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)
        if error is None:
            check(self.lab.failures, (), "faults of the lab provider itself")

    # --- what the model was told --------------------------------------------------------------------------------------

    def rows_of(self, talk: Talk, first_text: str) -> list[Row]:
        """The root requests of a conversation: by its session where the CLI names it to the provider, else by its first text."""
        sessions = {told_session for told_session in talk.sessions if told_session}
        named = [row for row in self.lab.log.roots() if row["session_id"] in sessions]
        return named or [row for row in rows_of_talk(self.lab.log.rows(), first_text) if row["is_root"]]

    def history(self, talk: Talk, first_text: str) -> Verdict:
        """Whether the newest request of the conversation carried all that was said."""
        rows = self.rows_of(talk, first_text)

        def judged(said: Sequence[Turn]) -> Verdict:
            return judge_roots(rows, said, agent=self._agent.name)

        verdict = judged(talk.said)
        if verdict.is_complete or not talk.unwritten:
            return verdict
        return judged([turn for turn in talk.said if not any(turn is one for one in talk.unwritten)])

    # --- processes ----------------------------------------------------------------------------------------------------

    def cli_pid(self, told: Told) -> int:
        """The host's pid of the CLI process that serves this conversation now."""
        found = [
            pid
            for pid, words in command_lines().items()
            if self._agent.is_process(words) and self._is_in_sandbox(pid, told.container_id)
        ]
        check(len(found), 1, f"processes of the CLI in sandbox {told.container_id}")
        return found[0]

    def others_in_sandbox(self, told: Told, word: str) -> list[int]:
        """The processes in a conversation's sandbox whose command line holds this word."""
        lines = command_lines().items()
        return [pid for pid, words in lines if word in words and self._is_in_sandbox(pid, told.container_id)]

    async def kill_cli(self, told: Told) -> None:
        """SIGKILL, and waits until its parent has reaped it; who else knows by then is the product's to care for."""
        pid = self.cli_pid(told)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not Path(f"/proc/{pid}").exists(), f"process {pid} is reaped")

    def _is_in_sandbox(self, pid: int, container_id: str) -> bool:
        try:
            if self._parts.engine == "docker":
                return container_id in Path(f"/proc/{pid}/cgroup").read_text()
            return Path(os.readlink(f"/proc/{pid}/cwd")).is_relative_to(self._sandbox(container_id))
        except OSError:
            return False

    # --- native stores ------------------------------------------------------------------------------------------------

    def store_files(self, told: Told) -> list[Path]:
        """The files of the conversation's native session."""
        store = self._sandbox(told.container_id) / "members" / "1" / "home" / told.turn.locator.store
        found = [Path(f"{store}{suffix}") for suffix in self._agent.store_suffixes]
        check([path.name for path in found if not path.is_file()], [], f"files of {store} that are missing")
        return found

    def _sandbox(self, container_id: str) -> Path:
        """Where the sandbox's own files lie on this machine. On docker: the writable layer, which only root reaches."""
        if self._parts.engine == "docker":
            return _writable_layer(container_id)
        for record in (self.fleet.folder / "h" / "g").glob("*/container.json"):
            if json.loads(record.read_text())["container_id"] == container_id:
                return record.parent.resolve()
        raise LabCheckError(f"no sandbox {container_id} below {self.fleet.folder}")


def _writable_layer(container_id: str) -> Path:
    with contextlib.closing(docker.from_env(timeout=60)) as client:
        driver = client.containers.get(container_id).attrs.get("GraphDriver") or {}
    upper = (driver.get("Data") or {}).get("UpperDir")
    if upper is None or not os.access(upper, os.W_OK):
        raise LabCheckError(
            f"expected a writable layer of container {container_id} that this user may change, found "
            f"{upper or driver.get('Name')}: run the lab as root beside an engine with the overlay driver"
        )
    return Path(upper)


def command_lines() -> dict[int, list[str]]:
    """Every process of this machine and its command line; zombies have none."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[0]:
                found[int(folder.name)] = [word.decode(errors="replace") for word in words]
    return found
