"""Stands between Claude Code (or its stub) and its driver, and changes what is printed: ids, and events that nobody sent.

What it does in the next turn is in `shim.json` beside the executable: {"place": PLACE, "session_id": OTHER}. Without the file it
changes nothing.
"""
