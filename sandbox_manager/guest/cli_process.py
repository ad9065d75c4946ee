"""One running program of a slot: its three streams, its taps, its exit.

The streams are socketpairs: /proc/N/fd of a socket cannot be opened by anyone. Nothing here interprets a byte, and
nothing here blocks: what a full stdin does not take waits in a bounded queue.
"""

import asyncio
import os
import signal
import socket
from collections import deque
from collections.abc import Callable
from pathlib import Path

from .errors import OperationError
from .processes import Process
from .reaper import ExitStatus
from .tap import DEFAULT_CAPACITY_BYTES, Tap
from .whole_lines import WholeLines
from .wire import MARK, Wire

STDIN_QUEUE_BYTES_MAX = 32 << 20
STDERR_CAPACITY_BYTES = 1 << 20
_READ_BYTES = 256 << 10
_SOCKET_BUFFER_BYTES = 1 << 20
# More than a socket can hold at exit: a surviving child that keeps printing must not hold the exit back.
_FINAL_READ_BYTES_MAX = 4 << 20


class OutputStream:
    """One output stream: from its socket into its tap. `exit_length` is set when the process was reaped."""

    def __init__(self, name: str, tap: Tap, on_bytes: Callable[[], None]) -> None:
        self.name = name
        self.tap = tap
        self.is_ended = False
        self.exit_length: int | None = None
        self._on_bytes = on_bytes
        self._loop = asyncio.get_running_loop()
        self._ours, self.theirs = _one_way_pair(is_ours_reading=True)
        self._is_reading = False
        self._lines: WholeLines | None = None
        self._has_room = asyncio.Event()
        self.resume()

    def mix_lines(self) -> None:
        """From now on others' lines go in between: what the program prints is taken in whole lines, without any that looks like theirs."""
        self._lines = WholeLines(MARK)

    async def append_line(self, line: bytes) -> None:
        """A line of somebody else, as soon as there is room for it."""
        while not self.is_ended and self.tap.room < len(line):
            self._has_room.clear()
            await self._has_room.wait()
        if not self.is_ended:
            self.tap.append(line)
            self._on_bytes()

    def resume(self) -> None:
        """Reads on, if there is room for what comes."""
        self._has_room.set()
        if not self._is_reading and not self.is_ended and self.tap.room > 0:
            self._loop.add_reader(self._ours, self._on_readable)
            self._is_reading = True

    def _pause(self) -> None:
        if self._is_reading:
            self._loop.remove_reader(self._ours)
            self._is_reading = False

    def _on_readable(self) -> None:
        self._take()
        self._on_bytes()

    def _take(self) -> int:
        """Moves what is there into the tap once; returns the number of bytes, 0 if there was nothing or no room."""
        room = self.tap.room
        if room <= 0:
            self._pause()
            return 0
        try:
            data = self._ours.recv(min(_READ_BYTES, room))
        except (BlockingIOError, InterruptedError):
            return 0
        except ConnectionError:
            data = b""
        if not data:
            self.close()
            return 0
        self.tap.append(data if self._lines is None else self._lines.feed(data))
        return len(data)

    def drain_at_exit(self) -> None:
        """Takes what the process had printed before it was reaped; the stream itself may stay open."""
        taken = 0
        while not self.is_ended and taken < _FINAL_READ_BYTES_MAX:
            count = self._take()
            if count == 0:
                break
            taken += count
        self.exit_length = self.tap.end

    def close(self) -> None:
        """Ends the stream; the tap stays readable."""
        if not self.is_ended:
            self._pause()
            self.is_ended = True
            self._has_room.set()
            if self._lines is not None:
                self.tap.append(self._lines.finish())
            self._ours.close()


class InputStream:
    """stdin: a bounded queue in front of a socket."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ours, self.theirs = _one_way_pair(is_ours_reading=False)
        self._queue: deque[memoryview] = deque()
        self._is_writing = False
        self._is_closing = False
        self.is_open = True
        self.pending = 0

    def write(self, data: bytes, is_urgent: bool = False) -> None:
        """Queues the bytes as a whole or refuses them as a whole. `is_urgent` ignores the bound."""
        if not self.is_open or self._is_closing:
            raise OperationError("STDIN_CLOSED", "the process takes no more input")
        if not is_urgent and self.pending + len(data) > STDIN_QUEUE_BYTES_MAX:
            message = f"{self.pending} bytes wait already, {len(data)} more are over the bound"
            raise OperationError("STDIN_FULL", message, pending=self.pending, bound=STDIN_QUEUE_BYTES_MAX)
        if data:
            self._queue.append(memoryview(data))
            self.pending += len(data)
        self._flush()

    def close_when_written(self) -> None:
        """Closes once the queue is empty; a second call does nothing."""
        self._is_closing = True
        self._flush()

    def _flush(self) -> None:
        try:
            while self._queue and self.is_open:
                sent = self._ours.send(self._queue[0])
                self.pending -= sent
                if sent == len(self._queue[0]):
                    self._queue.popleft()
                else:
                    self._queue[0] = self._queue[0][sent:]
        except (BlockingIOError, InterruptedError):
            self._wait_for_room()
            return
        except OSError:
            self.close()
            return
        self._stop_waiting()
        if self._is_closing:
            self.close()

    def _wait_for_room(self) -> None:
        if not self._is_writing:
            self._loop.add_writer(self._ours, self._flush)
            self._is_writing = True

    def _stop_waiting(self) -> None:
        if self._is_writing:
            self._loop.remove_writer(self._ours)
            self._is_writing = False

    def close(self) -> None:
        """Closes now; what still waited is dropped."""
        if self.is_open:
            self._stop_waiting()
            self.is_open = False
            self._queue.clear()
            self.pending = 0
            self._ours.close()


def _one_way_pair(is_ours_reading: bool) -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
    ours.shutdown(socket.SHUT_WR if is_ours_reading else socket.SHUT_RD)
    ours.setblocking(False)
    return ours, theirs


class CliProcess:
    """A program the supervisor runs in a slot, from before its start until its slot is used again."""

    def __init__(
        self,
        slot: int,
        generation: int,
        traceparent: str | None,
        tap_folder: Path,
        on_change: Callable[[], None],
        capacity: int = DEFAULT_CAPACITY_BYTES,
        is_bridged: bool = False,
        uid: int | None = None,
    ) -> None:
        self.slot = slot
        self.generation = generation
        self.traceparent = traceparent
        self.row: Process | None = None
        self.exit: ExitStatus | None = None
        self.ended = asyncio.Event()
        self.is_closed = False
        self.interrupt: bytes | None = None
        self.interrupt_grace_s = 0.0
        self.was_interrupted_on_loss = False
        self.stdin = InputStream()
        self.stdout = OutputStream("stdout", Tap(tap_folder, capacity), on_change)
        self.stderr = OutputStream("stderr", Tap(tap_folder, min(capacity, STDERR_CAPACITY_BYTES)), on_change)
        self._on_change = on_change
        self._pidfd = -1
        self._wire: Wire | None = None
        if is_bridged:
            self.stdout.mix_lines()
            self._wire = Wire(self.stdout.append_line, uid)

    @property
    def streams(self) -> tuple[OutputStream, OutputStream]:
        """Both output streams."""
        return self.stdout, self.stderr

    @property
    def stdio(self) -> tuple[int, ...]:
        """The descriptors the program gets as 0, 1, 2, and a bridge the way to its server as 3."""
        return tuple(end.fileno() for end in self._their_ends)

    @property
    def _their_ends(self) -> tuple[socket.socket, ...]:
        standard = (self.stdin.theirs, self.stdout.theirs, self.stderr.theirs)
        return standard if self._wire is None else (*standard, self._wire.theirs)

    def forked(self, pid: int) -> None:
        """The child exists: it holds its ends now, and its number cannot be mistaken for another's."""
        self._pidfd = os.pidfd_open(pid)
        for end in self._their_ends:
            end.close()

    def exited(self, status: ExitStatus) -> None:
        """The process was reaped. Its streams may stay open: a child of it can hold them."""
        self.exit = status
        self.ended.set()
        self.interrupt = None
        self.stdin.close()
        if self._wire is not None:
            self._wire.close()
        for stream in self.streams:
            stream.drain_at_exit()
        self._on_change()

    def send_signal(self, number: int) -> None:
        """Signals the process itself, not its children."""
        if self._pidfd < 0 or self.exit is not None:
            raise OperationError("PROCESS_EXITED", "the process is gone")
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            raise OperationError("PROCESS_EXITED", "the process is gone") from None

    def interrupt_on_loss(self) -> None:
        """Writes the deposited bytes once: the host agent that could have interrupted is gone."""
        if self.interrupt is None or self.exit is not None:
            return
        data, self.interrupt = self.interrupt, None
        try:
            self.stdin.write(data, is_urgent=True)
            self.was_interrupted_on_loss = True
        except OperationError:
            return

    def close(self) -> None:
        """Gives all descriptors back; a second call does nothing."""
        self.is_closed = True
        self.stdin.close()
        for end in self._their_ends:
            end.close()
        if self._wire is not None:
            self._wire.close()
        for stream in self.streams:
            stream.close()
            stream.tap.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def as_json(self) -> dict[str, object]:
        """The shape used in the hello frame."""

        def tap(stream: OutputStream) -> dict[str, object]:
            return {
                "start": stream.tap.start,
                "end": stream.tap.end,
                "acknowledged": stream.tap.acknowledged,
                "has_lost_unread": stream.tap.has_lost_unread,
                "exit_length": stream.exit_length,
                "is_ended": stream.is_ended,
            }

        return {
            "slot": self.slot,
            "process_generation": self.generation,
            "pid": None if self.row is None else self.row.pid,
            "start_time": None if self.row is None else self.row.start_time,
            "exit": None if self.exit is None else self.exit.as_json(),
            "is_stdin_open": self.stdin.is_open,
            "was_interrupted_on_loss": self.was_interrupted_on_loss,
            "has_interrupt_deposited": self.interrupt is not None,
            "stdout": tap(self.stdout),
            "stderr": tap(self.stderr),
            "traceparent": self.traceparent,
        }
