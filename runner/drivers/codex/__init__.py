"""Codex over its app-server: frames, the reader of what it prints, the driver."""
