"""The bridge: the program on a slot's stdio that drives `opencode serve` or `kilo serve` on loopback.

Standard library only, Python 3.11, relative imports only, nothing from outside this folder. It speaks JSON lines (`protocol.py`) with
whoever started it, and HTTP with one server that it starts, watches and ends itself.
"""

NAME = "http-agent-live-bridge"
PROTOCOL = 4
HELPER = f"{NAME}={PROTOCOL}"
