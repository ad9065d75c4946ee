"""What the agent can do to its workspace: read, write, edit, list, search, shell. Confined, bounded, permitted one by one."""
