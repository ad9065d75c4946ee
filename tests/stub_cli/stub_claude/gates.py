"""Places at which a test can hold every stub that runs from one tool folder.

A test makes `gates/POINT.hold` beside the executable; a stub that comes there writes `gates/POINT.reached-PID` and waits until the
file is gone. So a test waits for a named state and not for a time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

_POLL_S = 0.005


def pass_gate(folder: str, point: str, must_leave: Callable[[], bool]) -> None:
    """Returns when the gate is open, or when `must_leave` says that something else is more urgent."""
    hold = os.path.join(folder, f"{point}.hold")
    if not os.path.exists(hold):
        return
    with open(os.path.join(folder, f"{point}.reached-{os.getpid()}"), "w", encoding="ascii"):
        pass
    while os.path.exists(hold) and not must_leave():
        time.sleep(_POLL_S)
