"""Switches that break a rule on purpose. Only a Python caller can set them: the lab's and the tests' own entry points. No flag does."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ManagerPolicy:
    """What the manager checks.

    `check_identity`: its own verdict on the native session, at the request, at the resume and at the turn's end. Off, only the
    runner's side is left, and a test shows that it holds alone.
    """

    check_identity: bool = True
