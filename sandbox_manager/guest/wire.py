"""The raw tap of a bridged CLI: what passes between the bridge and its server, kept before the bridge has it.

The bridge is not the CLI. What proves a turn is what the server itself said, so the bridge reaches its server only through here: for each
connection it hands over one end of a socket pair with the server's port, the supervisor connects it, and every byte of both ways goes into
the program's own tap first, as lines beside those that the bridge prints. One line is

    {"wire":N,"at":"open","port":P}            the bridge opened connection N
    {"wire":N,"at":"server","bytes":"BASE64"}  the server sent these
    {"wire":N,"at":"bridge","bytes":"BASE64"}  the bridge sent these; the value of its Authorization header is left out
    {"wire":N,"at":"closed"}                   no more of either

A line of the bridge's own that begins like one of these is taken out (`MARK`), so what the tap says of the server is the supervisor's word.
The server's bytes are in the tap before the bridge can read them: whatever it prints because of them comes later.
"""

import asyncio
import base64
import json
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

from .listeners import listener_uids

MARK = b'{"wire":'
CONNECTIONS_MAX = 64
_REQUEST_BYTES = 256
_READ_BYTES = 64 << 10
_HEAD_BYTES_MAX = 64 << 10
_SECRET_HEADER = b"authorization:"

Journal = Callable[[bytes], Awaitable[None]]


class Wire:
    """One program's connections to its server. `uid`: whose a listener on the port must be; None where all share one user."""

    def __init__(self, journal: Journal, uid: int | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._journal = journal
        self._uid = uid
        self._ours, self.theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._tasks: set[asyncio.Task[None]] = set()
        self._count = 0
        self._is_open = True
        self._loop.add_reader(self._ours, self._asked)

    def close(self) -> None:
        """Ends all connections; a second call does nothing."""
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._ours)
            self._ours.close()
            for task in list(self._tasks):
                task.cancel()

    def _asked(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._ours, _REQUEST_BYTES, 1)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data, descriptors = b"", []
        if not data:
            self._loop.remove_reader(self._ours)
            return
        ends = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        port = _port_in(data)
        if port is None or len(ends) != 1 or len(self._tasks) >= CONNECTIONS_MAX:
            for end in ends:
                end.close()
            return
        self._count += 1
        task = self._loop.create_task(self._connect(self._count, port, ends[0]))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, number: int, port: int, bridge: socket.socket) -> None:
        server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            for end in (bridge, server):
                end.setblocking(False)
            if self._uid is not None and await asyncio.to_thread(listener_uids, port) - {self._uid}:
                return  # another member's listener: the secret must not go there
            await self._loop.sock_connect(server, ("127.0.0.1", port))
            await self._say({"wire": number, "at": "open", "port": port})
            async with asyncio.TaskGroup() as both:
                both.create_task(self._from_bridge(number, bridge, server))
                both.create_task(self._from_server(number, server, bridge))
            await self._say({"wire": number, "at": "closed"})
        except (OSError, ExceptionGroup):
            with suppress(OSError):
                await self._say({"wire": number, "at": "closed"})
        finally:
            bridge.close()
            server.close()

    async def _from_server(self, number: int, server: socket.socket, bridge: socket.socket) -> None:
        while data := await self._loop.sock_recv(server, _READ_BYTES):
            await self._say({"wire": number, "at": "server", "bytes": base64.b64encode(data).decode("ascii")})
            await self._loop.sock_sendall(bridge, data)
        # The one exchange is over; the bridge's side of it too.
        bridge.shutdown(socket.SHUT_RDWR)

    async def _from_bridge(self, number: int, bridge: socket.socket, server: socket.socket) -> None:
        head: bytearray | None = bytearray()
        while data := await self._loop.sock_recv(bridge, _READ_BYTES):
            kept = data
            if head is not None:
                head += data
                if b"\r\n\r\n" not in head and len(head) <= _HEAD_BYTES_MAX:
                    kept = b""
                else:
                    kept, head = _without_secret(bytes(head)), None
            if kept:
                await self._say({"wire": number, "at": "bridge", "bytes": base64.b64encode(kept).decode("ascii")})
            await self._loop.sock_sendall(server, data)
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)

    async def _say(self, line: dict[str, object]) -> None:
        await self._journal(json.dumps(line, separators=(",", ":")).encode("ascii") + b"\n")


def _port_in(data: bytes) -> int | None:
    try:
        port = json.loads(data)["port"]
    except (ValueError, KeyError, TypeError):
        return None
    return port if isinstance(port, int) and not isinstance(port, bool) and 0 < port < 65536 else None


def _without_secret(data: bytes) -> bytes:
    """A request's first bytes without what could be used to make another."""
    head, end, body = data.partition(b"\r\n\r\n")
    lines = [
        line[: len(_SECRET_HEADER)] + b" *" if line.lower().startswith(_SECRET_HEADER) else line
        for line in head.split(b"\r\n")
    ]
    return b"\r\n".join(lines) + end + body
