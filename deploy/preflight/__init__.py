"""Asks a real gateway, with a real key, whether the model behind it sees the history that is sent to it."""
