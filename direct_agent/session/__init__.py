"""The agent's own native session: an append-only file of versioned records, each durable before anything relies on it."""
