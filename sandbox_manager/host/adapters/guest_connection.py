"""One connection to a supervisor: a unix socket, frames and descriptors. It knows no operation."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sandbox_manager.host.adapters.guest_errors import GuestPeerError
from sandbox_manager.host.adapters.guest_frames import FrameBrokenError, GuestFrame, Unpacker, pack

SOCKET_NAME = "control.sock"
_READ_BYTES = 256 * 1024
_DESCRIPTORS_MAX = 4
_HIGH_WATER_BYTES = 4 * 1024 * 1024
_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class ExpectedPeer:
    """Who must be behind the socket, as the host sees it: in Docker the container's State.Pid and user 0."""

    pid: int | None
    uid: int | None


class GuestConnection:
    """Reads and writes frames without blocking. `on_lost` is called once, when the connection is gone."""

    def __init__(
        self, sock: socket.socket, on_frame: Callable[[GuestFrame, list[int]], None], on_lost: Callable[[str], None]
    ) -> None:
        self._sock = sock
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._unpacker = Unpacker()
        self._descriptors: deque[int] = deque()
        self._out: deque[memoryview] = deque()
        self._out_bytes = 0
        self._is_writing = False
        self._room = asyncio.Event()
        self._room.set()
        self.is_open = True
        self._loop.add_reader(sock, self._readable)

    async def send(self, header: dict[str, object], payload: bytes = b"") -> None:
        """Queues one frame; waits while more than the bound is queued."""
        await self._room.wait()
        self.send_now(header, payload)

    def send_now(self, header: dict[str, object], payload: bytes = b"") -> None:
        """Queues one small frame at once. Does nothing on a lost connection."""
        if not self.is_open:
            return
        data = memoryview(pack(header, payload))
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes > _HIGH_WATER_BYTES:
            self._room.clear()
        if not self._is_writing:
            self._flush()

    def _flush(self) -> None:
        try:
            while self._out:
                sent = self._sock.send(self._out[0])
                self._out_bytes -= sent
                if sent == len(self._out[0]):
                    self._out.popleft()
                else:
                    self._out[0] = self._out[0][sent:]
        except (BlockingIOError, InterruptedError):
            if not self._is_writing:
                self._loop.add_writer(self._sock, self._flush)
                self._is_writing = True
        except OSError as error:
            self.lose(f"writing failed: {error.strerror}")
        else:
            if self._is_writing:
                self._loop.remove_writer(self._sock)
                self._is_writing = False
        if self._out_bytes <= _HIGH_WATER_BYTES:
            self._room.set()

    def _readable(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._sock, _READ_BYTES, _DESCRIPTORS_MAX)
            self._descriptors.extend(descriptors)
            frames = self._unpacker.feed(data)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.lose(f"reading failed: {error.strerror}")
            return
        except FrameBrokenError as error:
            self.lose(str(error))
            return
        if not data:
            self.lose("the supervisor closed the connection")
            return
        for frame in frames:
            wanted = frame.header.get("fds", 0)
            count = wanted if isinstance(wanted, int) else 0
            if count > len(self._descriptors):
                self.lose(f"a frame announces {count} descriptors and {len(self._descriptors)} came")
                return
            self._on_frame(frame, [self._descriptors.popleft() for _ in range(count)])

    def lose(self, why: str) -> None:
        """Closes; a second call does nothing."""
        if not self.is_open:
            return
        self.is_open = False
        self._loop.remove_reader(self._sock)
        if self._is_writing:
            self._loop.remove_writer(self._sock)
            self._is_writing = False
        self._sock.close()
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()
        self._out.clear()
        self._out_bytes = 0
        self._room.set()
        self._on_lost(why)


def connected_socket(socket_dir: Path, expected: ExpectedPeer) -> socket.socket:
    """A connection to the supervisor's socket.

    Raises OSError while nobody listens, GuestPeerError if another process does. The connect is to a local socket and does not block for
    longer than its backlog is full.
    """
    folder = os.open(socket_dir, os.O_PATH | os.O_DIRECTORY)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        # Through /proc/self/fd: a socket's address holds 107 bytes, a state folder's path may be longer.
        sock.connect(f"/proc/self/fd/{folder}/{SOCKET_NAME}")
        pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        for name, wanted, found in (("pid", expected.pid, pid), ("uid", expected.uid, uid)):
            if wanted is not None and wanted != found:
                raise GuestPeerError(
                    f"{socket_dir}: expected the supervisor to have {name} {wanted}, found {found}; the container has changed",
                    {"expected": wanted, "found": found, "what": name},
                )
    except BaseException:
        sock.close()
        raise
    finally:
        os.close(folder)
    return sock
