"""OpenCode 1.18.33: what is its own; the rest it shares with Kilo (`agents/bridged`)."""

from __future__ import annotations

from sandbox_manager.agents.bridged.agent import BridgedAgent
from sandbox_manager.agents.bridged.product import Product

OPENCODE = Product(
    name="opencode",
    version="1.18.33",
    executable="opencode/opencode",
    prefix="OPENCODE",
    database=(".local", "share", "opencode", "opencode.db"),
    env=(),
    denied=(),
)


class OpenCode(BridgedAgent):
    """Implements SandboxAgent."""

    def __init__(self) -> None:
        super().__init__(OPENCODE)
