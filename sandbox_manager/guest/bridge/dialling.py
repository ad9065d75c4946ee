"""How the bridge reaches its server: through the supervisor, which keeps what passes; or directly where nobody gave it a way.

The supervisor leaves one end of a socket at a descriptor. For each connection the bridge makes a pair of sockets, keeps one end and hands
the other over with the server's port; the supervisor connects it and journals the bytes of both ways. Nothing else knows this way in.
"""

import asyncio
import json
import socket


class Dialler:
    """Opens connections to a loopback port. `wire_fd` None: directly."""

    def __init__(self, port: int, wire_fd: int | None) -> None:
        self._port = port
        self._wire = None if wire_fd is None else socket.socket(fileno=wire_fd)
        if self._wire is not None:
            self._wire.set_inheritable(False)

    async def __call__(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._wire is None:
            return await asyncio.open_connection("127.0.0.1", self._port)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            socket.send_fds(self._wire, [json.dumps({"port": self._port}).encode()], [theirs.fileno()])
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        return await asyncio.open_connection(sock=ours)


def free_port() -> int:
    """A loopback port that nobody had a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
