"""What differs between the two servers, as the sandbox side has to know it. Values only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Product:
    """One server. `prefix` begins its variables; `database` lies below the member's home; `denied` are tools that it must not offer."""

    name: str
    version: str
    executable: str
    prefix: str
    database: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    denied: tuple[str, ...]
