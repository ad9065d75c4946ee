"""The places at which a cell's turn is held until somebody was killed: a span of a process, a gate of the stub, an answer of the lab."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from standfast_lab.fleet.pauses import pause_name
from standfast_lab.provider import LabProvider


class Hold(Protocol):
    """Closed before the turn begins, reached by it, opened after the kill. `name` says where it is."""

    name: str

    def close(self) -> None: ...

    def is_reached(self) -> bool: ...

    def open(self) -> None: ...


class SpanHold:
    """A process of ours stops as a whole where a span starts or ends (standfast_lab/fleet/pauses.py)."""

    def __init__(self, pauses: Path, kind: str, span: str, side: str) -> None:
        self.name = pause_name(kind, span, side)
        self._hold = pauses / f"{self.name}.hold"

    def close(self) -> None:
        self._hold.with_suffix(".reached").unlink(missing_ok=True)
        self._hold.touch()

    def is_reached(self) -> bool:
        return self._hold.with_suffix(".reached").exists()

    def open(self) -> None:
        self._hold.unlink(missing_ok=True)


class GateHold:
    """Every stub of one tool folder stops at a point (tests/stub_cli/stub_claude/gates.py)."""

    def __init__(self, gates: Path, point: str) -> None:
        self.name = point
        self._gates = gates
        self._hold = gates / f"{point}.hold"

    def close(self) -> None:
        for mark in self._gates.glob(f"{self.name}.reached-*"):
            mark.unlink()
        self._hold.touch()

    def is_reached(self) -> bool:
        return any(self._gates.glob(f"{self.name}.reached-*"))

    def open(self) -> None:
        self._hold.unlink(missing_ok=True)


class AnswerHold:
    """The lab hangs in its answer, as a word in the message tells it to: so the real CLI is held in the middle of its turn."""

    def __init__(self, lab: LabProvider, where: str) -> None:
        self.name = f"hang={where}"
        self.word = f"[[lab:hang={where} times=1]]"
        self._lab = lab
        self._before = 0

    def close(self) -> None:
        self._before = len(self._lab.log)

    def is_reached(self) -> bool:
        return any(row["state"] == "HOLDING" for row in self._lab.log.rows(after=self._before))

    def open(self) -> None:
        self._lab.release()
