"""Kilo CLI 7.7.7: what is its own; the rest it shares with OpenCode (`agents/bridged`).

Its further tools begin work that no message of ours asked for, or ask a person for something: denied, they are not offered to the model at
all (observed). Its home service, telemetry, presence, indexing and daemon are off.
"""

from __future__ import annotations

from sandbox_manager.agents.bridged.agent import BridgedAgent
from sandbox_manager.agents.bridged.product import Product

KILO = Product(
    name="kilo",
    version="7.7.7",
    executable="kilo/kilo",
    prefix="KILO",
    database=(".local", "share", "kilo", "kilo.db"),
    env=(
        ("KILO_DISABLE_CODEBASE_INDEXING", "1"),
        ("KILO_DISABLE_PRESENCE", "1"),
        ("KILO_DISABLE_SESSION_INGEST", "1"),
        ("KILO_NO_DAEMON", "1"),
        ("KILO_TELEMETRY_LEVEL", "off"),
    ),
    denied=(
        "background_process",
        "board_post",
        "board_read",
        "cancel_wakeup",
        "kilo_local_recall",
        "schedule_wakeup",
        "suggest",
    ),
)


class Kilo(BridgedAgent):
    """Implements SandboxAgent."""

    def __init__(self) -> None:
        super().__init__(KILO)
