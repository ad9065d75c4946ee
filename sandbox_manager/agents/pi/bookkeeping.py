"""Which kinds of session entries Pi may write at any time, also outside a turn. The list is short on purpose.

Not in it, though the CLI writes them: system messages, which are part of what the model reads, and `context_edit`, which takes a message
out of what the model reads. Both belong to an admitted turn. Extensions' entries (`custom`, `custom_message`) and `branch_summary` are
written by what is switched off here, so they are foreign.
"""

from __future__ import annotations

ANYTIME = frozenset({"model_change", "thinking_level_change", "session_info", "label", "usage"})
HEADER = "session"
MESSAGE = "message"
COMPACTION = "compaction"
CONTEXT_EDIT = "context_edit"
TURN_ROLES = frozenset({"system", "toolResult"})
