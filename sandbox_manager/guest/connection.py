"""One connection with the host agent: frames in, frames and descriptors out, one writer."""

import asyncio
import socket
from collections import deque
from collections.abc import Callable

from .frames import Frame, FrameDecoder, FrameError, Header, encode

_READ_BYTES = 256 << 10
_QUEUE_LOW_BYTES = 1 << 20
_QUEUE_HIGH_BYTES = 4 << 20


class HostConnection:
    """A framed, non-blocking unix socket. `on_closed` is called once; `on_room` whenever more can be queued."""

    def __init__(
        self,
        sock: socket.socket,
        on_frame: Callable[[Frame], None],
        on_room: Callable[[], None],
        on_closed: Callable[[], None],
    ) -> None:
        self._sock = sock
        self._on_frame = on_frame
        self._on_room = on_room
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder()
        self._queue: deque[tuple[memoryview, int | None]] = deque()
        self._queued_bytes = 0
        self._is_writing = False
        self._room = asyncio.Event()
        self._room.set()
        self.is_open = True
        sock.setblocking(False)
        self._loop.add_reader(sock, self._on_readable)

    @property
    def has_room(self) -> bool:
        """Whether output may be queued without growing the queue for nothing."""
        return self.is_open and self._queued_bytes < _QUEUE_LOW_BYTES

    @property
    def is_idle(self) -> bool:
        """Whether everything queued has gone out."""
        return not self._queue

    def send(self, header: Header, payload: bytes = b"", fd: int | None = None) -> None:
        """Queues one frame; `fd` travels with its first byte. Does nothing on a closed connection."""
        if not self.is_open:
            return
        data = memoryview(encode(header, payload))
        self._queue.append((data, fd))
        self._queued_bytes += len(data)
        if self._queued_bytes > _QUEUE_HIGH_BYTES:
            self._room.clear()
        if not self._is_writing:
            self._flush()

    async def wait_for_room(self) -> None:
        """Waits until long answers may be continued, or the connection is closed."""
        await self._room.wait()

    def _on_readable(self) -> None:
        try:
            data = self._sock.recv(_READ_BYTES)
            frames = self._decoder.feed(data)
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, FrameError):
            self.close()
            return
        if not data:
            self.close()
            return
        for frame in frames:
            if not self.is_open:
                return
            self._on_frame(frame)

    def _flush(self) -> None:
        try:
            while self._queue:
                data, fd = self._queue[0]
                sent = self._sock.send(data) if fd is None else socket.send_fds(self._sock, [data], [fd])
                self._queued_bytes -= sent
                if sent == len(data):
                    self._queue.popleft()
                else:
                    self._queue[0] = (data[sent:], None)
        except (BlockingIOError, InterruptedError):
            if not self._is_writing:
                self._loop.add_writer(self._sock, self._on_writable)
                self._is_writing = True
            return
        except OSError:
            self.close()
            return
        if self._is_writing:
            self._loop.remove_writer(self._sock)
            self._is_writing = False
        self._room.set()

    def _on_writable(self) -> None:
        self._flush()
        if self.has_room:
            self._room.set()
            self._on_room()

    def close(self) -> None:
        """Closes; a second call does nothing."""
        if not self.is_open:
            return
        self.is_open = False
        self._loop.remove_reader(self._sock)
        if self._is_writing:
            self._loop.remove_writer(self._sock)
        self._sock.close()
        self._queue.clear()
        self._room.set()
        self._on_closed()
