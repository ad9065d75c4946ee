"""The agent by itself in a terminal, or once for a program."""
