"""Kilo CLI 7.7.7 on the sandbox side."""
