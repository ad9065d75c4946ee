"""How turns and records are shown, to people and as JSON lines."""
