"""Tells the supervisor's lines in a bridged tap from the bridge's own, and puts the exchanges together. Pure.

The supervisor leaves nothing of the bridge's in the tap that begins like one of its own lines, so the begin of a line says whose it is.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any

from sandbox_manager.agents.bridged.exchange import Exchange, Request, Response

MARK = b'{"wire":'
_EXCHANGES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Answered:
    """The server answered a request, wholly."""

    request: Request
    response: Response


@dataclass(frozen=True, slots=True)
class Asked:
    """The bridge asked something, wholly; the server may have it now."""

    request: Request


@dataclass(frozen=True, slots=True)
class Event:
    """The server said something on the subscription."""

    kind: str
    properties: dict[str, Any]


Said = Answered | Asked | Event


class WireLines:
    """One tap's exchanges."""

    def __init__(self) -> None:
        self._open: dict[int, Exchange] = {}

    def read(self, line: bytes) -> list[Said] | None:
        """What one line of the supervisor's adds; None when it is not of its form."""
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            return None
        number = value.get("wire") if isinstance(value, dict) else None
        if not isinstance(number, int):
            return None
        match value.get("at"):
            case "open" if len(self._open) < _EXCHANGES_MAX:
                self._open[number] = Exchange()
                return []
            case "closed":
                exchange = self._open.pop(number, None)
                return [] if exchange is None else self._step(exchange, lambda: exchange.closed())
            case "bridge" | "server":
                # An exchange whose begin lies before this activation proves nothing in it.
                return self._bytes(self._open.get(number), value)
            case _:
                return None

    def _bytes(self, exchange: Exchange | None, value: dict[str, Any]) -> list[Said] | None:
        try:
            data = base64.b64decode(value.get("bytes", ""), validate=True)
        except (binascii.Error, TypeError, ValueError):
            return None
        if exchange is None:
            return []
        if value["at"] == "bridge":
            return self._step(exchange, lambda: exchange.from_bridge(data))
        said: list[Said] = []
        for event in exchange.from_server(data) if exchange.response is None else []:
            kind, properties = event.get("type"), event.get("properties")
            if isinstance(kind, str) and isinstance(properties, dict):
                said.append(Event(kind, properties))
        if exchange.response is not None and exchange.request is not None:
            said.append(Answered(exchange.request, exchange.response))
        return said

    @staticmethod
    def _step(exchange: Exchange, step: Any) -> list[Said]:
        had_request, had_response = exchange.request, exchange.response
        step()
        said: list[Said] = []
        if exchange.request is not None and had_request is None:
            said.append(Asked(exchange.request))
        if exchange.response is not None and had_response is None and exchange.request is not None:
            said.append(Answered(exchange.request, exchange.response))
        return said
