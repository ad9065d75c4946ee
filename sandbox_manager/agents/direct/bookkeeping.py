"""Which records of the built-in agent's session are what. The list is short on purpose: what is not in it is FOREIGN.

Only the header may stand outside a turn. A compaction is a new base; everything else belongs to a turn that was admitted.
"""

from __future__ import annotations

VERSION = 1
HEADER = "session"
MESSAGE = "message"
COMPACTION = "compaction"
OF_A_TURN = frozenset({"started", "intent", "repair", "end"})
