"""Filled in the same commit that adds its parts."""
