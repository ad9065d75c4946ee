"""A stage for scenarios: a fleet of real processes on `local` with the stub CLI, the lab provider behind it, and a client in front.

What a test asks of it is what a user could see, what the provider was sent, and what lies on disk.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from standfast.runner.v1 import runner_pb2 as pb
from standfast.types.v1 import types_pb2 as types
from standfast_client.errors import ClientError, NotFoundError
from standfast_client.sdk import Expect, StandfastClient, new_id
from standfast_lab.claude_texts import is_added
from standfast_lab.fleet.fleet import Fleet, Parts
from standfast_lab.fleet.switches import Switches
from standfast_lab.provider import LabProvider, Row
from tests.stub_cli.tool_folder import ToolFolder

TURN_TIMEOUT_S = 60.0
_POLL_S = 0.02


@dataclass
class Told:
    """How one turn ended: as a turn, and as a refusal where the call was refused."""

    turn: pb.Turn
    events: list[pb.TurnEvent] = field(default_factory=list)
    refusal: ClientError | None = None

    @property
    def state(self) -> str:
        """NEW, LIVE, RESTORED, LOST or UNSPECIFIED."""
        return types.ContextState.Name(self.turn.context_state).removeprefix("CONTEXT_STATE_")

    @property
    def outcome(self) -> str:
        """COMPLETED, FAILED and so on."""
        return types.Outcome.Name(self.turn.outcome).removeprefix("OUTCOME_")

    @property
    def process(self) -> str:
        """KEPT, RETIRED or RECLAIM_FIRST."""
        return types.ProcessDisposition.Name(self.turn.process_disposition).removeprefix("PROCESS_DISPOSITION_")

    @property
    def verdicts(self) -> tuple[str, str]:
        """The runner's and the manager's."""
        runner, manager = (
            types.Verdict.Name(v).removeprefix("VERDICT_")
            for v in (self.turn.runner_verdict, self.turn.manager_verdict)
        )
        return runner, manager

    @property
    def reason(self) -> str:
        """The cause of a refusal or failure, the most exact one that is named."""
        if self.refusal is not None:
            return self.refusal.metadata.get("cause") or self.refusal.reason
        return self.turn.failure.metadata.get("cause") or self.turn.failure.reason

    @property
    def codes(self) -> set[str]:
        """The codes of all findings."""
        return {finding.code for finding in self.turn.findings}

    @property
    def text(self) -> str:
        """The reply."""
        return self.turn.output_text

    @property
    def session(self) -> str:
        """The native session id of its locator."""
        return self.turn.locator.native_session_id

    def kinds(self) -> list[str]:
        """The kinds of its events, in order."""
        return [str(event.WhichOneof("body")) for event in self.events]


class Stage:
    """Use as an async context manager. `folder` must be short: unix sockets lie in it."""

    def __init__(
        self,
        folder: Path,
        tools: ToolFolder,
        *,
        switches: Switches | None = None,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        otlp_endpoint: str | None = None,
    ) -> None:
        self.tools = tools
        self.lab = LabProvider()
        self.folder = folder
        self._make_fleet: Callable[[], Fleet] = lambda: Fleet(
            folder,
            Parts("local", tools.manifest, tools=tools.tools),
            self.lab.base_url,
            switches=switches,
            settings=settings,
            otlp_endpoint=otlp_endpoint,
        )

    async def __aenter__(self) -> Self:
        await self.lab.__aenter__()
        self.fleet = self._make_fleet()
        try:
            await self.fleet.__aenter__()
        except BaseException:
            await self.lab.__aexit__(None, None, None)
            raise
        self.client = StandfastClient(self.fleet.runner.address)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.client.close()
        await self.fleet.stop()
        await self.lab.__aexit__(kind, error, trace)

    def reconnect(self) -> None:
        """A fresh client, after the runner was gone for a while."""
        self.client = StandfastClient(self.fleet.runner.address)

    # --- turns --------------------------------------------------------------------------------------------------------

    async def ask(
        self,
        conversation: str,
        text: str,
        *,
        expect: Expect = Expect.CONTINUE,
        turn_id: str | None = None,
        on_event: Callable[[pb.TurnEvent], None] | None = None,
        timeout_s: float = TURN_TIMEOUT_S,
        **more: Any,
    ) -> Told:
        """One turn to its end. A refusal is told, not raised; a retryable answer is raised."""
        turn_id = turn_id or new_id("t")
        stream = self.client.start_turn(conversation, text, expect=expect, turn_id=turn_id, **more)
        events: list[pb.TurnEvent] = []
        async with asyncio.timeout(timeout_s):
            try:
                async for event in stream:
                    events.append(event)
                    if on_event is not None:
                        on_event(event)
            except ClientError as refusal:
                if refusal.is_retryable:
                    raise
                return Told(await self.recorded(conversation, turn_id), events, refusal)
        return Told(stream.result, events)

    async def ask_until_answered(self, conversation: str, text: str, *, timeout_s: float = 40.0, **more: Any) -> Told:
        """The same turn again and again while somebody is still coming back."""
        turn_id = new_id("t")
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return await self.ask(conversation, text, turn_id=turn_id, **more)
            except ClientError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.1)

    async def recorded(self, conversation: str, turn_id: str) -> pb.Turn:
        """The turn as it stands; an empty one where the runner has none of that id."""
        try:
            return await self.client.get_turn(conversation, turn_id)
        except NotFoundError:  # a refusal that is not recorded
            return pb.Turn()

    async def begin(self, conversation: str, text: str = "remember: the colour is green") -> Told:
        """A first turn."""
        return await self.ask(conversation, text, expect=Expect.NEW)

    async def begin_again(self, conversation: str) -> Told:
        """The first turn once more, after one that was not settled."""
        return await self.ask(conversation, "remember: the colour is green")

    # --- what was sent ------------------------------------------------------------------------------------------------

    def requests(self, session: str | None = None) -> list[Row]:
        """Root requests of one native session, or of all."""
        return self.lab.log.roots(session)

    def prompts(self) -> list[str]:
        """The user text each root request ended with, the CLI's own additions apart; tool rounds and retries repeat theirs."""
        return [
            [t for m in row["messages"] if m["role"] == "user" for t in m["texts"] if not is_added("user", t)][-1]
            for row in self.requests()
        ]

    # --- what is on disk ----------------------------------------------------------------------------------------------

    @property
    def sandboxes(self) -> Path:
        """Where the retained folders lie."""
        return self.folder / "h" / "g"

    def transcript(self, told: Told) -> Path:
        """The native transcript of a turn's locator."""
        found = list(self.sandboxes.glob(f"*/members/*/home/{told.turn.locator.store}"))
        found += list(self.sandboxes.glob(f"*/*/members/*/home/{told.turn.locator.store}"))
        assert len(found) == 1, f"expected one transcript {told.turn.locator.store}, found {found}"
        return found[0]

    def rows(self, process: str, query: str, *values: object) -> list[dict[str, Any]]:
        """Reads a process's SQLite file (`manager`, `runner` or `host`), which it may be writing to."""
        path = self.folder / process[0] / {"host": "journal.sqlite"}.get(process, f"{process}.sqlite")
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5.0)
        try:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(query, values)]
        finally:
            connection.close()

    # --- waiting ------------------------------------------------------------------------------------------------------

    async def until(self, what: str, is_so: Callable[[], bool], timeout_s: float = 20.0) -> None:
        """Polls for a named state."""
        try:
            async with asyncio.timeout(timeout_s):
                while not is_so():  # noqa: ASYNC110 (what is waited for lies outside this process)
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise AssertionError(f"not within {timeout_s} s: {what}") from None

    def processes(self, mark: str) -> list[int]:
        """Living processes with this text in their command line (arguments end in NUL)."""
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdecimal():
                try:
                    command = (folder / "cmdline").read_bytes()
                except OSError:
                    continue
                if mark.encode() in command:
                    found.append(int(folder.name))
        return found
