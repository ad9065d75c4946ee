"""Importing this puts every scenario on the list, in the order of the matrix."""

from standfast_lab.lab.scenarios import (
    cancelling,
    failing,
    keeping,
    killing,
    replies,
    stores,
    streams,
    texts,
)

__all__ = ["cancelling", "failing", "keeping", "killing", "replies", "stores", "streams", "texts"]
