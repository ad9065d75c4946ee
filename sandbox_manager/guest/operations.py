"""What the host may ask for: one method an operation, header and payload in, header and payload out."""

import asyncio
import functools
import signal
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from . import nonce
from .bridge_program import bridge_command
from .database_reader import read_database
from .errors import OperationError
from .executable_check import check_executable
from .frames import Frame, Header
from .slot_keeper import SlotKeeper
from .spawn import FileToWrite, Program, run_forked
from .store_probe import read_answer, try_writing
from .store_reader import StoreAsk, read_store

if TYPE_CHECKING:
    from .supervisor import Supervisor

Value = TypeVar("Value")
RECLAIM_TIMEOUT_S = 5.0
TAIL_BYTES_MAX = 64 << 20
_PROBE_TIMEOUT_S = 5.0
_RENDER_TIMEOUT_S = 30.0
_LOOKS_AT_PROCESSES = frozenset({"spawn", "census", "reclaim"})


class Answer:
    """An operation's answer; a payload longer than a frame is sent in parts."""

    def __init__(self, header: Header | None = None, payload: bytes = b"", fd: int | None = None) -> None:
        self.header = header or {}
        self.payload = payload
        self.fd = fd


def field(header: Header, name: str, kind: type[Value]) -> Value:
    """Returns a required field; refuses another type (a bool is no int)."""
    value: Any = header.get(name)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise OperationError(
            "BAD_REQUEST", f"expected {name!r} to be {kind.__name__}, found {type(value).__name__}", field=name
        )
    return value


def seconds(header: Header, name: str, default: float) -> float:
    """Returns an optional number of seconds."""
    value = header.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise OperationError("BAD_REQUEST", f"expected {name!r} to be a number of seconds", field=name)
    return float(value)


class Operations:
    """Runs operations against the supervisor. The quick ones run in the order they came."""

    def __init__(self, supervisor: "Supervisor") -> None:
        self._supervisor = supervisor
        self._quick: dict[str, Callable[[Frame], Answer]] = {
            "hello": self._hello,
            "adopt": self._adopt,
            "write": self._write,
            "close_stdin": self._close_stdin,
            "signal": self._signal,
            "deposit_interrupt": self._deposit_interrupt,
            "follow": self._follow,
            "ack": self._ack,
            "listen_model_port": self._listen_model_port,
            "shutdown": self._shutdown,
        }
        self._slow: dict[str, Callable[[Frame], Awaitable[Answer]]] = {
            "measure": self._measure,
            "spawn": self._spawn,
            "census": self._census,
            "reclaim": self._reclaim,
            "read_store": self._read_store,
            "probe_store": self._probe_store,
            "read_tap": self._read_tap,
        }

    def quick(self, frame: Frame) -> Answer | None:
        """Runs a quick operation at once; None if this one takes time."""
        name = field(frame.header, "op", str)
        if name in self._slow:
            return None
        if name not in self._quick:
            raise OperationError("UNKNOWN_OPERATION", f"this supervisor knows no operation {name!r}", op=name)
        return self._quick[name](frame)

    async def slow(self, frame: Frame) -> Answer:
        """Runs an operation that takes time. What looks at a slot's processes waits for probes that are under way."""
        name = field(frame.header, "op", str)
        if name in _LOOKS_AT_PROCESSES:
            await self._supervisor.probes_over()
        return await self._slow[name](frame)

    def _keeper(self, header: Header) -> SlotKeeper:
        slot = field(header, "slot", int)
        keeper = self._supervisor.keepers.get(slot)
        if keeper is None:
            raise OperationError(
                "BAD_REQUEST",
                f"there is no slot {slot}",
                field="slot",
                expected=sorted(self._supervisor.keepers),
                found=slot,
            )
        return keeper

    def _hello(self, frame: Frame) -> Answer:
        return Answer(self._supervisor.hello())

    def _adopt(self, frame: Frame) -> Answer:
        nonce.adopt(self._supervisor.layout.nonce_file, field(frame.header, "nonce", str))
        return Answer()

    async def _measure(self, frame: Frame) -> Answer:
        before = frame.header.get("printed_before", {})
        if not isinstance(before, dict) or not all(isinstance(word, str) for pair in before.items() for word in pair):
            raise OperationError(
                "BAD_REQUEST", "expected printed_before to hold texts by digest", field="printed_before"
            )
        return Answer({"measured": await self._supervisor.measure(before)})

    def _write(self, frame: Frame) -> Answer:
        process = self._keeper(frame.header).writable(field(frame.header, "process_generation", int))
        process.stdin.write(frame.payload)
        return Answer({"pending": process.stdin.pending})

    def _close_stdin(self, frame: Frame) -> Answer:
        self._keeper(frame.header).current(field(frame.header, "process_generation", int)).stdin.close_when_written()
        return Answer()

    def _signal(self, frame: Frame) -> Answer:
        process = self._keeper(frame.header).current(field(frame.header, "process_generation", int))
        number = field(frame.header, "signal", int)
        if number not in signal.valid_signals():
            raise OperationError("BAD_REQUEST", f"{number} is no signal", field="signal")
        process.send_signal(number)
        return Answer()

    def _deposit_interrupt(self, frame: Frame) -> Answer:
        process = self._keeper(frame.header).current(field(frame.header, "process_generation", int))
        process.interrupt_grace_s = seconds(frame.header, "grace_s", 0.0)
        process.interrupt = frame.payload or None
        return Answer()

    def _follow(self, frame: Frame) -> Answer:
        process = self._keeper(frame.header).current(field(frame.header, "process_generation", int))
        offsets = {name: field(frame.header, f"{name}_offset", int) for name in ("stdout", "stderr")}
        self._supervisor.follow(process, offsets)
        return Answer()

    def _ack(self, frame: Frame) -> Answer:
        header = frame.header
        self._supervisor.acknowledge(
            field(header, "slot", int),
            field(header, "process_generation", int),
            field(header, "stream", str),
            field(header, "offset", int),
        )
        return Answer()

    def _listen_model_port(self, frame: Frame) -> Answer:
        listener = self._supervisor.model_listener(field(frame.header, "port", int))
        return Answer({"port": listener.getsockname()[1]}, fd=listener.fileno())

    async def _read_tap(self, frame: Frame) -> Answer:
        process = self._keeper(frame.header).current(field(frame.header, "process_generation", int))
        stream = process.stdout if frame.header.get("stream", "stdout") == "stdout" else process.stderr
        tap, wanted = stream.tap, field(frame.header, "from_offset", int)
        offset = min(max(wanted, tap.start), tap.end)
        return Answer(
            {
                "offset": offset,
                "is_gap": wanted < tap.start,
                "start": tap.start,
                "end": tap.end,
                "is_ended": stream.is_ended,
            },
            tap.read(offset, tap.end - offset),
        )

    async def _spawn(self, frame: Frame) -> Answer:
        header, keeper = frame.header, self._keeper(frame.header)
        program = self._program(frame)
        is_bridged = header.get("is_bridged") is True
        checks = header.get("executable", {})
        await asyncio.to_thread(
            check_executable, Path(program.argv[0]), checks.get("sha256"), bool(checks.get("must_be_unreadable"))
        )
        trace = header.get("traceparent")
        if is_bridged:
            # What was named and checked is the server; what runs on the slot's stdio is this supervisor's own bridge.
            program = replace(program, argv=(*bridge_command(), *program.argv, "--wire-fd", "3"))
        process = await keeper.spawn(
            field(header, "process_generation", int),
            program,
            trace if isinstance(trace, str) else None,
            is_bridged=is_bridged,
        )
        self._supervisor.follow(process, {"stdout": 0, "stderr": 0})
        row = process.row
        return Answer({"pid": row and row.pid, "start_time": row and row.start_time})

    def _program(self, frame: Frame) -> Program:
        header = frame.header
        argv, env = field(header, "argv", list), field(header, "env", dict)
        if not argv or not all(isinstance(word, str) and "\0" not in word for word in [*argv, *env, *env.values()]):
            raise OperationError("BAD_REQUEST", "expected argv and env to hold strings without NUL", field="argv")
        files: list[FileToWrite] = []
        at = 0
        for item in header.get("files", []):
            components = tuple(field(item, "components", list))
            if not components or any(
                not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\0" in name
                for name in components
            ):
                raise OperationError("BAD_PATH", "expected plain path components", components=list(components))
            if field(item, "base", str) not in ("home", "private"):
                raise OperationError("BAD_REQUEST", "a file's base is home or private", field="base")
            length = field(item, "length", int)
            base = self._supervisor.layout.base(field(header, "slot", int), item["base"])
            files.append(FileToWrite(base, components, field(item, "mode", int), frame.payload[at : at + length]))
            at += length
        if at != len(frame.payload):
            raise OperationError(
                "BAD_REQUEST", f"the files' lengths add up to {at}, found {len(frame.payload)} bytes", field="files"
            )
        return Program(tuple(argv), env, field(header, "cwd", str), tuple(files))

    async def _census(self, frame: Frame) -> Answer:
        census = await self._keeper(frame.header).census()
        return Answer(
            {
                "processes": [row.as_json() for row in census.owned],
                "unattributed": [row.as_json() for row in census.unattributed],
            }
        )

    async def _reclaim(self, frame: Frame) -> Answer:
        keep = field(frame.header, "keep", list)
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in keep):
            raise OperationError("BAD_REQUEST", "expected keep to hold pairs of pid and start time", field="keep")
        report = await self._keeper(frame.header).reclaim(
            frozenset((int(pid), int(start)) for pid, start in keep),
            seconds(frame.header, "timeout_s", RECLAIM_TIMEOUT_S),
        )
        return Answer(report.as_json())

    async def _read_store(self, frame: Frame) -> Answer:
        self._keeper(frame.header)
        header = frame.header
        ask = StoreAsk(
            field(header, "slot", int),
            self._base(header),
            tuple(field(header, "components", list)),
            field(header, "prefix_length", int),
            min(field(header, "tail_bytes_max", int), TAIL_BYTES_MAX),
        )
        layout = self._supervisor.layout
        if header.get("session") is None:
            reading = await asyncio.to_thread(read_store, layout, ask)
        else:
            session, renderer = field(header, "session", str), field(header, "renderer", str)
            reading = await read_database(layout, self._supervisor.reaper, ask, session, renderer, _RENDER_TIMEOUT_S)
        return Answer(
            {
                "length": reading.length,
                "sha256": reading.sha256,
                "prefix_sha256": reading.prefix_sha256,
                "tail_is_cut": reading.tail_is_cut,
                "free_bytes": reading.free_bytes,
            },
            reading.tail,
        )

    async def _probe_store(self, frame: Frame) -> Answer:
        self._keeper(frame.header)
        slot = field(frame.header, "slot", int)
        layout, components = self._supervisor.layout, tuple(field(frame.header, "components", list))
        base = layout.base(slot, self._base(frame.header))
        work = functools.partial(try_writing, layout.slots[slot], base, components)
        exit_of = self._supervisor.reaper.exit_of(run_forked(work))
        read_answer((await asyncio.wait_for(exit_of, _PROBE_TIMEOUT_S)).code)
        return Answer()

    @staticmethod
    def _base(header: Header) -> str:
        base = field(header, "base", str)
        if base not in ("home", "workspace"):
            raise OperationError("BAD_REQUEST", "a store's base is home or workspace", field="base")
        return base

    def _shutdown(self, frame: Frame) -> Answer:
        self._supervisor.ask_to_stop()
        return Answer()


def open_model_listener(port: int) -> socket.socket:
    """The loopback port CLIs ask their model at; the host agent accepts on it, from outside the network namespace."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise OperationError("PORT_IN_USE", f"127.0.0.1:{port}: {error.strerror}", port=port) from error
    listener.setblocking(False)
    return listener
