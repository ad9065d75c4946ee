"""OpenCode 1.18.33 on the sandbox side."""
