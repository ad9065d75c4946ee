"""The lab: the real pinned CLIs against the lab provider, agent by scenario, through the whole product.

`scenarios/` says what happens and what must hold, for every agent alike; `agents.py` has a row of words an agent; `site.py` is the
product on real parts and what is done behind its back; `matrix.py` runs cells.
"""
