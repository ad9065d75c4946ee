"""The table: who is killed, at which step, in which turn of its conversation, and what may come of it. Pure.

| killed | before FORWARDED | FORWARDED, no native end | native end seen, not settled |
|---|---|---|---|
| runner | NOT_SENT | INTERRUPTED, or settled if a native end came | settled once, from journal and tap |
| manager | nothing sent, or sent once when it is back | runs on, settles when it is back | settles when it is back, once |
| host agent | NOT_SENT | INTERRUPTED | from its journal or tap, if they have it; else INTERRUPTED |
| CLI | NOT_SENT, or a new process | INTERRUPTED | settled, process gone |
| supervisor | NOT_SENT | INTERRUPTED | from the journal |
| engine | NOT_SENT | INTERRUPTED, or refused by the verdict if the CLI said that it was ended | from the journal |
"""

from __future__ import annotations

from dataclasses import dataclass

PROCESSES = ("runner", "manager", "host-agent", "supervisor", "cli", "engine")
STEPS = ("prepare", "activate", "admitted", "forwarded", "mid-stream", "ended", "quiesce", "settle")
TURNS = (1, 3)

BEFORE_FORWARDED = frozenset({"prepare", "activate", "admitted"})
NO_NATIVE_END = frozenset({"forwarded", "mid-stream"})

# How a turn may end. SETTLED: settled and saved, whatever its outcome. REFUSED_BY_VERDICT: settled as failed, nothing saved.
NOT_SENT = "NOT_SENT"
SETTLED = "SETTLED"
INTERRUPTED = "INTERRUPTED"
REFUSED_BY_VERDICT = "REFUSED_BY_VERDICT"


@dataclass(frozen=True, slots=True)
class Cell:
    """One kill."""

    process: str
    step: str
    turn: int

    def __str__(self) -> str:
        return f"{self.process}-{self.step}-turn{self.turn}"

    @property
    def endings(self) -> frozenset[str]:
        """How the killed turn may end."""
        if self.step in BEFORE_FORWARDED:
            return _BEFORE[self.process]
        if self.step in NO_NATIVE_END:
            return _RUNNING[self.process]
        # Killed right at its end the CLI takes its reply along. A first turn is then not proved by anything.
        takes_reply = self.process == "cli" and self.step == "ended" and self.turn == 1
        return _ENDED[self.process] | ({REFUSED_BY_VERDICT} if takes_reply else set())

    def may_be_live_after(self, ending: str) -> bool:
        """Whether the next turn may use the CLI process: it, its supervisor and its host agent have lived since the turn settled."""
        return self.process in ("runner", "manager") or (self.step in BEFORE_FORWARDED and ending == SETTLED)


_BEFORE = {
    "runner": frozenset({NOT_SENT}),
    "manager": frozenset({NOT_SENT, SETTLED}),
    "host-agent": frozenset({NOT_SENT}),
    "supervisor": frozenset({NOT_SENT}),
    "cli": frozenset({NOT_SENT, SETTLED}),
    "engine": frozenset({NOT_SENT}),
}
_RUNNING = {
    "runner": frozenset({INTERRUPTED, SETTLED}),
    "manager": frozenset({SETTLED}),
    "host-agent": frozenset({INTERRUPTED}),
    "supervisor": frozenset({INTERRUPTED}),
    "cli": frozenset({INTERRUPTED}),
    # An engine that comes back stops what it finds running: the CLI is then told to end, and may say how it ended.
    "engine": frozenset({INTERRUPTED, REFUSED_BY_VERDICT}),
}
_ENDED = {
    "runner": frozenset({SETTLED}),
    "manager": frozenset({SETTLED}),
    "host-agent": frozenset({SETTLED, INTERRUPTED}),
    "supervisor": frozenset({SETTLED, REFUSED_BY_VERDICT}),
    "cli": frozenset({SETTLED}),
    "engine": frozenset({SETTLED, REFUSED_BY_VERDICT}),
}

TABLE = tuple(Cell(process, step, turn) for process in PROCESSES for step in STEPS for turn in TURNS)

# Where the cells are played. An engine can be killed only where it is nobody else's.
ON_LOCAL = tuple(cell for cell in TABLE if cell.process != "engine")
IN_DOCKER = ON_LOCAL
ON_OWN_ENGINE = tuple(cell for cell in TABLE if cell.process == "engine")


def is_in_the_default_tier(cell: Cell) -> bool:
    """Every cell of a third turn, and of a first one a step of each column; all of them run with --full."""
    return cell.turn == 3 or cell.step in ("prepare", "admitted", "mid-stream", "ended")


def is_there_to_kill(cell: Cell) -> bool:
    """In its first turn a conversation has no CLI before its activation."""
    return not (cell.process == "cli" and cell.step == "prepare" and cell.turn == 1)
