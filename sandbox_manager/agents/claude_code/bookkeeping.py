"""Which kinds of transcript records Claude Code may write at any time, also outside a turn. The list is short on purpose.

A kind that is not listed here must be explained by an admitted turn; one that is no known kind at all is FOREIGN.
Seen in transcripts of 2.1.220 in headless mode.
"""

from __future__ import annotations

SYNTHETIC_MODEL = "<synthetic>"
"""The model name of texts that the CLI itself made up: error texts, "No response requested.". Never sent to the provider."""

WITHOUT_UUID = frozenset({"queue-operation", "last-prompt", "mode"})
WITH_UUID = frozenset({"attachment", "system"})

COMPACT_BOUNDARY = "compact_boundary"
"""The one `system` subtype that is more than bookkeeping: the native history starts anew below it."""

INTERRUPT_MARKERS = frozenset({"[Request interrupted by user]", "[Request interrupted by user for tool use]"})
"""User records that the CLI writes itself when a turn is interrupted. They belong to the turn and are no prompt."""
