"""The built-in agent, as the sandbox side knows it: launch, gate grammar, tap reader, store reader, bookkeeping."""
