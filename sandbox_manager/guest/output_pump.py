"""Carries taps to the host, stream by stream, each within its own window.

A stream is sent from the offset the host asked for, at most `WINDOW_BYTES` ahead of what the host acknowledged: a
host that is slow with one slot holds back that slot's CLI and no other.
"""

from dataclasses import dataclass, field

from .cli_process import CliProcess, OutputStream
from .connection import HostConnection

WINDOW_BYTES = 1 << 20
_FRAME_BYTES = 64 << 10


@dataclass
class _StreamPosition:
    stream: OutputStream
    sent: int
    acknowledged: int
    is_end_told: bool = False


@dataclass
class _Follow:
    process: CliProcess
    positions: dict[str, _StreamPosition] = field(default_factory=dict)
    is_exit_told: bool = False


class OutputPump:
    """What one connection is being told about processes."""

    def __init__(self, connection: HostConnection) -> None:
        self._connection = connection
        self._follows: dict[tuple[int, int], _Follow] = {}

    def follow(self, process: CliProcess, offsets: dict[str, int]) -> None:
        """Starts, or starts again, from the given offsets; the host holds everything before them."""
        follow = _Follow(process)
        for stream in process.streams:
            offset = min(offsets[stream.name], stream.tap.end)
            stream.tap.floor = offset
            stream.tap.acknowledge(offset)
            follow.positions[stream.name] = _StreamPosition(stream, offset, offset)
        self._follows[process.slot, process.generation] = follow
        self.fill()

    def acknowledge(self, slot: int, generation: int, stream_name: str, offset: int) -> None:
        """The host has used everything before `offset`."""
        follow = self._follows.get((slot, generation))
        position = None if follow is None else follow.positions.get(stream_name)
        if position is None:
            return
        position.acknowledged = max(position.acknowledged, min(offset, position.sent))
        position.stream.tap.acknowledge(position.acknowledged)
        position.stream.resume()
        self.fill()

    def stop(self) -> None:
        """The connection is gone: nobody holds the taps back any more."""
        for follow in self._follows.values():
            for position in follow.positions.values():
                position.stream.tap.floor = None
                position.stream.resume()
        self._follows.clear()

    def fill(self) -> None:
        """Queues what may be sent now, the streams taking turns."""
        # A closed process has no taps any more: its slot is used by the next one.
        self._follows = {key: follow for key, follow in self._follows.items() if not follow.process.is_closed}
        has_sent = True
        while has_sent and self._connection.has_room:
            has_sent = False
            for follow in self._follows.values():
                for position in follow.positions.values():
                    has_sent |= self._send_some(follow, position)
                self._tell_exit(follow)

    @property
    def is_all_sent(self) -> bool:
        """Whether everything in the followed taps has been queued."""
        positions = [position for follow in self._follows.values() for position in follow.positions.values()]
        return all(position.sent >= position.stream.tap.end for position in positions)

    def _send_some(self, follow: _Follow, position: _StreamPosition) -> bool:
        tap, key = position.stream.tap, self._key(follow)
        if position.sent < tap.start:
            self._connection.send(
                {"event": "gap", **key, "stream": position.stream.name, "from": position.sent, "to": tap.start}
            )
            position.sent = tap.start
        length = min(_FRAME_BYTES, tap.end - position.sent, position.acknowledged + WINDOW_BYTES - position.sent)
        if length > 0 and self._connection.has_room:
            data = tap.read(position.sent, length)
            self._connection.send(
                {"event": "out", **key, "stream": position.stream.name, "offset": position.sent}, data
            )
            position.sent += len(data)
            return True
        if position.stream.is_ended and position.sent == tap.end and not position.is_end_told:
            position.is_end_told = True
            self._connection.send({"event": "end", **key, "stream": position.stream.name, "length": tap.end})
        return False

    def _tell_exit(self, follow: _Follow) -> None:
        """Once the exit is known and everything printed before it was sent; the streams may still be open."""
        status = follow.process.exit
        if status is None or follow.is_exit_told:
            return
        lengths = {name: position.stream.exit_length or 0 for name, position in follow.positions.items()}
        if any(position.sent < lengths[name] for name, position in follow.positions.items()):
            return
        follow.is_exit_told = True
        self._connection.send(
            {
                "event": "exited",
                **self._key(follow),
                **status.as_json(),
                "stdout_length": lengths["stdout"],
                "stderr_length": lengths["stderr"],
                "traceparent": follow.process.traceparent,
            }
        )

    @staticmethod
    def _key(follow: _Follow) -> dict[str, int]:
        return {"slot": follow.process.slot, "process_generation": follow.process.generation}
