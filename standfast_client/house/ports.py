"""Ports on loopback: free ones where none is named, and a clear word when a named one is taken."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from standfast_chassis.errors import AddressInUseError

LOOPBACK = "127.0.0.1"


def chosen_ports(wanted: Mapping[str, int]) -> dict[str, int]:
    """A port for each name; 0 takes a free one. Raises AddressInUseError.

    All are held until each has one, so no two are equal. They are free again when this returns: a stranger could still take one in
    the moment before its process binds it, and that process then says so.
    """
    held: list[socket.socket] = []
    found: dict[str, int] = {}
    try:
        for name, port in wanted.items():
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            held.append(sock)
            # A port that only waits out an old connection is free for a server.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind((LOOPBACK, port))
            except OSError as error:
                raise AddressInUseError(
                    f"port {port} for {name} cannot be used ({error.strerror}). Stop the process that holds it, choose another "
                    "one, or 0 for a free one.",
                    {"address": f"{LOOPBACK}:{port}", "process": name},
                ) from error
            found[name] = sock.getsockname()[1]
    finally:
        for sock in held:
            sock.close()
    return found
