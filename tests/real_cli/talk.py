"""A conversation for these tests: the lab's own."""

from standfast_lab.lab.talk import CONFIRMED, OnEvent, Talk, Told

__all__ = ["CONFIRMED", "OnEvent", "Talk", "Told"]
