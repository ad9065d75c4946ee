"""What OpenCode and Kilo have in common on the sandbox side: both are servers behind the bridge."""
