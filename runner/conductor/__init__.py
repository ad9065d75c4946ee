"""Conducts turns: one task a turn, which owns the turn's machine and performs its effects."""
