"""Switches that break a rule on purpose. Only a Python caller can set them: the lab's and the tests' own entry points.
No flag does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunnerPolicy:
    """What the runner checks.

    `check_identity`: its own verdict on the native session, at the request, at the resume and at the turn's end. Off,
    only the manager's side is left, and a test shows that it holds alone.
    `rewrite_user_frame`: applied to the user frame before it is sent. The lab takes off what keeps a text literal with it, so
    that a native command really runs; the host agent's gate has to let that pass, too.
    """

    check_identity: bool = True
    rewrite_user_frame: Callable[[bytes], bytes] | None = None
