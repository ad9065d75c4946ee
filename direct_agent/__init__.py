"""The built-in agent: its own native session, its tools, and three provider protocols with recovery in full."""
