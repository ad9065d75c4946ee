"""What the bench shows: progress while it measures, each figure when it is known, and a summary with the goals."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence

from standfast_lab.bench.figures import Figure


class Screen:
    """Progress goes to standard error, figures to standard output: as a table, or as one JSON object each."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._is_terminal = sys.stderr.isatty()
        self._began = time.monotonic()
        self._told_at = 0.0

    def note(self, text: str) -> None:
        """A line of its own."""
        self._wipe()
        print(f"[{time.monotonic() - self._began:6.1f} s] {text}", file=sys.stderr, flush=True)

    def progress(self, name: str, done: int, whole: int) -> None:
        """How far a measurement is. On a terminal one line that changes; elsewhere a line every few seconds."""
        now = time.monotonic()
        if self._is_terminal:
            if now - self._told_at >= 0.1 or done == whole:
                self._told_at = now
                print(f"\r\033[K{name}: {done} of {whole}", end="", file=sys.stderr, flush=True)
                if done == whole:
                    self._wipe()
        elif now - self._told_at >= 10.0:
            self._told_at = now
            self.note(f"{name}: {done} of {whole}")

    def figure(self, figure: Figure) -> None:
        """One figure, as soon as it is known."""
        self._wipe()
        if self._as_json:
            print(json.dumps(figure.as_json()), flush=True)
            return
        print(f"{_line(figure)}\n      {_details(figure)}", flush=True)

    def summary(self, figures: Sequence[Figure], failed: Sequence[str]) -> None:
        """All goals at a glance."""
        if self._as_json:
            return
        judged = [figure for figure in figures if figure.is_met is not None]
        met = sum(figure.is_met is True for figure in judged)
        print("\nSummary (goals, not tests; the details above name the conditions)")
        for figure in figures:
            print(_line(figure))
        for name in failed:
            print(f"  ----  {name}: could not be measured")
        print(f"{met} of {len(judged)} goals met")

    def _wipe(self) -> None:
        if self._is_terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _line(figure: Figure) -> str:
    mark = {True: " met ", False: "MISSED", None: " info"}[figure.is_met]
    goal = "" if figure.goal is None else f"   goal {figure.bound} {figure.goal:g} {figure.unit}"
    return f"{mark:>6}  {figure.name:<11} {figure.what:<80} {figure.value:9.3f} {figure.unit}{goal}"


def _details(figure: Figure) -> str:
    return ", ".join(f"{name} {value}" for name, value in figure.detail.items())
