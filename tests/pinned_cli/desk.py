"""One conversation with the pinned CLI and the lab: where it lives, and what the oracle should find."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from pathlib import Path

from standfast_lab.bare_claude import (
    QUIET_FLAGS,
    BareClaude,
    BareTurn,
    Event,
    bare_environment,
    transcript_path,
    transcript_records,
)
from standfast_lab.oracle import Outcome, Turn, Verdict, judge_session
from standfast_lab.provider import LabProvider, Row


class Desk:
    """A home, a workspace, a session id, and the turns so far."""

    def __init__(self, executable: Path, lab: LabProvider, folder: Path) -> None:
        self.executable, self.lab = executable, lab
        self.home, self.workspace = folder / "home", folder / "workspace"
        self.home.mkdir()
        self.workspace.mkdir()
        self.session_id = str(uuid.uuid4())
        self.turns: list[Turn] = []

    def start(
        self,
        *,
        is_resume: bool = False,
        flags: tuple[str, ...] = QUIET_FLAGS,
        without: Collection[str] = (),
        **environment: str,
    ) -> BareClaude:
        """Returns a process of this session, not yet started; `without` names quiet variables to leave out."""
        whole = bare_environment(self.home, self.lab.base_url) | environment
        return BareClaude(
            self.executable,
            workspace=self.workspace,
            environment={name: value for name, value in whole.items() if name not in without},
            session_id=self.session_id,
            is_resume=is_resume,
            flags=flags,
        )

    async def ask(self, claude: BareClaude, text: str) -> BareTurn:
        """Takes one turn to its end and remembers what it must leave in the history."""
        turn = await claude.ask(text)
        self.keep(text, turn)
        return turn

    def keep(self, text: str, turn: BareTurn) -> None:
        """Remembers a turn."""
        result = turn.result
        if result is None or str(result.get("terminal_reason", "")).startswith("aborted"):
            outcome = Outcome.NOT_ENDED
        else:
            outcome = Outcome.FAILED if result["is_error"] else Outcome.COMPLETED
        self.turns.append(Turn(text, turn.texts, outcome))

    async def resumed(self, text: str = "count") -> BareTurn:
        """Resumes in a new process, takes one turn and leaves in order."""
        async with self.start(is_resume=True) as claude:
            turn = await self.ask(claude, text)
            await claude.close()
        return turn

    def verdict(self) -> Verdict:
        """Judges the last root request by the turns so far."""
        return judge_session(self.lab.log.rows(), self.session_id, self.turns)

    def roots(self) -> list[Row]:
        """The root requests of this session."""
        return self.lab.log.roots(self.session_id)

    def transcript(self) -> Path:
        """The transcript, which must be there."""
        path = transcript_path(self.home, self.session_id)
        assert path is not None, f"no transcript of {self.session_id} below {self.home}"
        return path

    def records(self) -> list[Event]:
        """The whole records of the transcript, in order."""
        return transcript_records(self.home, self.session_id)


def tool_results(turn: BareTurn) -> list[str]:
    """The root's tool results, as text."""
    contents = [e["message"]["content"] for e in turn.of("user") if not e.get("parent_tool_use_id")]
    blocks = [block for content in contents if isinstance(content, list) for block in content]
    return [str(block["content"]) for block in blocks if block["type"] == "tool_result"]


def tools_of(turn: BareTurn) -> set[str]:
    """The tools that `system/init` names."""
    return set(turn.of("system", "init")[0]["tools"])
