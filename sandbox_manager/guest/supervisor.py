"""The supervisor: slots, the host agent's connection, and an orderly end.

One host connection at a time; a newer one replaces the older. Programs go on when the connection is lost: their
output is kept in the taps, and where the host had deposited the agent's interrupt it is written after its grace.
"""

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from . import PROTOCOL_VERSION, SUPERVISOR_VERSION
from .attribution import Attribution, MarkerAttribution, UserAttribution
from .cli_process import CliProcess
from .connection import HostConnection
from .control_socket import is_host_agent, publish
from .errors import OperationError
from .frames import MAX_PAYLOAD_BYTES, Frame, Header
from .layout import Layout
from .measure import measure, own_digest
from .nonce import read_nonce
from .operations import Answer, Operations, open_model_listener
from .output_pump import OutputPump
from .reaper import Reaper
from .slot_keeper import SlotKeeper
from .slots import LeftoversFound, SlotState

_REQUEST_BYTES_MAX = 64 << 20
_REQUESTS_AT_ONCE_MAX = 64
_FLUSH_TIMEOUT_S = 1.0


def log(event: str, **facts: object) -> None:
    """One JSON line on stderr: the container's log. Never a message's text, an environment or a file's content."""
    print(json.dumps({"event": event, **facts}), file=sys.stderr, flush=True)


def unexpected(frame: Frame, error: Exception) -> OperationError:
    """Logs what nobody had thought of, and makes an answer of it."""
    log("request_failed", op=str(frame.header.get("op")), error=type(error).__name__, detail=str(error)[:500])
    return OperationError("INTERNAL", f"{type(error).__name__} in the supervisor; see its log")


def record_end(file: Path, boot_id: str) -> None:
    """Writes that this boot ended in order; only a retained folder needs it."""
    ended = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    half = file.with_name(file.name + ".part")
    half.write_text(json.dumps({"boot_id": boot_id, "exit_code": 0, "finished_at": ended}), encoding="utf-8")
    os.replace(half, file)


class Supervisor:
    """Everything process 1 does. `stop_patience_s`: how long programs may take to leave by themselves."""

    def __init__(self, layout: Layout, stop_patience_s: float = 8.0, reclaim_timeout_s: float = 3.0) -> None:
        self.layout = layout
        self.reaper = Reaper()
        self.boot_id = secrets.token_hex(16)
        self.digest = own_digest()
        self.keepers: dict[int, SlotKeeper] = {}
        self._stop_patience_s = stop_patience_s
        self._reclaim_timeout_s = reclaim_timeout_s
        self._operations = Operations(self)
        self._connection: HostConnection | None = None
        self._pump: OutputPump | None = None
        self._model_listener: socket.socket | None = None
        self._parts: dict[int, bytearray] = {}
        self._stop = asyncio.Event()
        self._probings = 0
        self._probes_over = asyncio.Event()
        self._probes_over.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loss_timers: list[asyncio.TimerHandle] = []

    async def run(self) -> int:
        """Serves until SIGTERM or `shutdown`; returns the exit code."""
        loop = asyncio.get_running_loop()
        self.reaper.install(loop)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.ask_to_stop)
        with ThreadPoolExecutor(max_workers=len(self.layout.slots) + 1, thread_name_prefix="scan") as scans:
            attribution = self._attribution()
            self.keepers = {
                slot: SlotKeeper(slot, self.layout, attribution, self.reaper, scans, self._fill)
                for slot in self.layout.slots
            }
            await self._find_leftovers()
            with contextlib.closing(publish(self.layout.socket_dir)) as listener:
                loop.add_reader(listener, self._accept, listener)
                log("ready", boot_id=self.boot_id, version=SUPERVISOR_VERSION, layout=self.layout.kind)
                await self._stop.wait()
                await self._end_all()
                loop.remove_reader(listener)
            if self._connection is not None:
                self._connection.close()
        if not self.layout.is_isolated:
            # A plain process has no engine that remembers how it ended.
            record_end(self.layout.own / "exit.json", self.boot_id)
        log("stopped", boot_id=self.boot_id)
        return 0

    def _attribution(self) -> Attribution:
        if self.layout.is_isolated:
            uids = {place.slot: place.uid for place in self.layout.slots.values() if place.uid is not None}
            return UserAttribution(uids, lambda: self.reaper.helpers)
        # Kept in the folder: what an earlier supervisor left running is found by the same marker.
        marker = (self.layout.own / "marker").read_text(encoding="ascii").strip()
        return MarkerAttribution(marker, lambda: self.reaper.helpers)

    async def _find_leftovers(self) -> None:
        for keeper in self.keepers.values():
            if (await keeper.census()).owned:
                keeper.machine.step(LeftoversFound())

    def hello(self) -> Header:
        """What the host has to know on every connection."""
        slots = [
            {
                "slot": place.slot,
                "uid": place.uid,
                "home": str(place.home),
                "private": str(place.private),
                "state": self.keepers[place.slot].machine.state.value,
                "process_generation": self.keepers[place.slot].machine.process_generation,
            }
            for place in self.layout.slots.values()
        ]
        processes = [keeper.process.as_json() for keeper in self.keepers.values() if keeper.process is not None]
        port = None if self._model_listener is None else self._model_listener.getsockname()[1]
        return {
            "protocol": PROTOCOL_VERSION,
            "boot_id": self.boot_id,
            "nonce": read_nonce(self.layout.nonce_file),
            "supervisor_version": SUPERVISOR_VERSION,
            "supervisor_digest": self.digest,
            "pid": os.getpid(),
            "layout": self.layout.kind,
            "is_isolated": self.layout.is_isolated,
            "workspace": str(self.layout.workspace),
            "agents": str(self.layout.agents),
            "slots": slots,
            "processes": processes,
            "model_port": port,
        }

    async def measure(self, printed_before: dict[str, str]) -> dict[str, object]:
        """Measures this sandbox as it is now."""
        return await measure(self.layout, self.reaper, printed_before, self._probing())

    @contextlib.contextmanager
    def _probing(self) -> Iterator[None]:
        self._probings += 1
        self._probes_over.clear()
        try:
            yield
        finally:
            self._probings -= 1
            if self._probings == 0:
                self._probes_over.set()

    async def probes_over(self) -> None:
        """Waits while a measurement's probes run: their processes are a slot's, and no census may find or reclaim may end them."""
        await self._probes_over.wait()

    def model_listener(self, port: int) -> socket.socket:
        """Returns the one listener; it stays the same for every host agent of this boot."""
        if self._model_listener is None:
            self._model_listener = open_model_listener(port)
        found = self._model_listener.getsockname()[1]
        if port not in (0, found):
            raise OperationError(
                "PORT_IN_USE", f"the model port is {found} since boot, expected {port}", expected=port, found=found
            )
        return self._model_listener

    def follow(self, process: CliProcess, offsets: dict[str, int]) -> None:
        """Tells the connected host about this process from now on."""
        if self._pump is not None:
            self._pump.follow(process, offsets)

    def acknowledge(self, slot: int, generation: int, stream: str, offset: int) -> None:
        """The host has used a stream up to the offset."""
        if self._pump is not None:
            self._pump.acknowledge(slot, generation, stream, offset)

    def ask_to_stop(self) -> None:
        """Begins the orderly end; a second call does nothing."""
        self._stop.set()

    def _fill(self) -> None:
        if self._pump is not None:
            self._pump.fill()

    def _accept(self, listener: socket.socket) -> None:
        try:
            peer, _ = listener.accept()
        except OSError:
            return
        if not is_host_agent(peer, self.layout):
            log("peer_refused")
            peer.close()
            return
        for timer in self._loss_timers:
            timer.cancel()
        self._loss_timers.clear()
        older, self._connection = self._connection, None
        if older is not None:
            # Said, so that the older does not come back and replace the newer in turn.
            older.send({"event": "replaced"})
            older.close()
        self._parts.clear()
        connection = HostConnection(
            peer, lambda frame: self._on_frame(connection, frame), self._fill, lambda: self._on_closed(connection)
        )
        self._connection = connection
        self._pump = OutputPump(connection)
        connection.send({"event": "hello", **self.hello()})

    def _on_closed(self, connection: HostConnection) -> None:
        if self._pump is not None:
            self._pump.stop()
            self._pump = None
        if self._connection is not connection:
            return
        self._connection = None
        loop = asyncio.get_running_loop()
        for keeper in self.keepers.values():
            process = keeper.process
            if process is not None and process.interrupt is not None:
                self._loss_timers.append(loop.call_later(process.interrupt_grace_s, process.interrupt_on_loss))

    def _on_frame(self, connection: HostConnection, frame: Frame) -> None:
        number = frame.header.get("id")
        try:
            whole = self._assemble(frame)
            if whole is None:
                return
            answer = self._operations.quick(whole)
            if answer is None:
                self._run_slow(connection, whole)
                return
        except OperationError as error:
            self._refuse(connection, number, error)
            return
        except Exception as error:  # noqa: BLE001 (outermost of a request: the host gets an answer, process 1 lives on)
            self._refuse(connection, number, unexpected(frame, error))
            return
        if number is not None:
            self._answer(connection, whole.header, answer)

    def _assemble(self, frame: Frame) -> Frame | None:
        """Joins the parts of a long request; None while parts are missing."""
        number = frame.header.get("id")
        if not isinstance(number, int):
            return frame
        parts = self._parts.get(number)
        if parts is None and not frame.header.get("more"):
            return frame
        if parts is None:
            parts = self._parts.setdefault(number, bytearray())
        parts += frame.payload
        if sum(len(waiting) for waiting in self._parts.values()) > _REQUEST_BYTES_MAX:
            self._parts.clear()
            raise OperationError("REQUEST_TOO_LARGE", f"a request has at most {_REQUEST_BYTES_MAX} bytes")
        if frame.header.get("more"):
            return None
        return Frame(frame.header, bytes(self._parts.pop(number)))

    def _run_slow(self, connection: HostConnection, frame: Frame) -> None:
        if len(self._tasks) >= _REQUESTS_AT_ONCE_MAX:
            raise OperationError("BUSY", f"{len(self._tasks)} requests are running already")
        task = asyncio.get_running_loop().create_task(self._slow(connection, frame))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _slow(self, connection: HostConnection, frame: Frame) -> None:
        number = frame.header.get("id")
        try:
            answer = await self._operations.slow(frame)
        except OperationError as error:
            self._refuse(connection, number, error)
            return
        except Exception as error:  # noqa: BLE001 (outermost of a request's task: the host gets an answer, process 1 lives on)
            self._refuse(connection, number, unexpected(frame, error))
            return
        payload, parts = answer.payload, 0
        while len(payload) - parts > MAX_PAYLOAD_BYTES:
            await connection.wait_for_room()
            connection.send({"re": number, "ok": True, "more": True}, payload[parts : parts + MAX_PAYLOAD_BYTES])
            parts += MAX_PAYLOAD_BYTES
        self._answer(connection, frame.header, Answer(answer.header, payload[parts:], answer.fd))

    @staticmethod
    def _answer(connection: HostConnection, request: Header, answer: Answer) -> None:
        header: Header = {"re": request["id"], "ok": True, **answer.header}
        if answer.fd is not None:
            header["fds"] = 1
        if "traceparent" in request:
            header["traceparent"] = request["traceparent"]
        connection.send(header, answer.payload, answer.fd)

    @staticmethod
    def _refuse(connection: HostConnection, number: object, error: OperationError) -> None:
        if number is not None:
            connection.send(
                {"re": number, "ok": False, "reason": error.reason, "message": error.message, "facts": error.facts}
            )

    async def _end_all(self) -> None:
        """Closes inputs, waits for the programs, sends SIGTERM to the late ones, then ends what is left."""
        processes = [
            keeper.process
            for keeper in self.keepers.values()
            if keeper.process is not None and keeper.process.exit is None
        ]
        for process in processes:
            process.stdin.close_when_written()
        await self._wait_for_exits(processes, self._stop_patience_s * 0.6)
        for process in processes:
            if process.exit is None:
                process.send_signal(signal.SIGTERM)
        await self._wait_for_exits(processes, self._stop_patience_s * 0.4)
        for slot, keeper in self.keepers.items():
            if keeper.machine.state in (SlotState.STARTING, SlotState.RECLAIMING):
                continue
            report = await keeper.reclaim(frozenset(), self._reclaim_timeout_s)
            if not report.is_complete:
                log("slot_not_clean", slot=slot, remaining=len(report.remaining))
        await self._wait_for_exits(processes, self._reclaim_timeout_s)
        await self._flush_output()

    @staticmethod
    async def _wait_for_exits(processes: list[CliProcess], timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                for process in processes:
                    await process.ended.wait()

    async def _flush_output(self) -> None:
        """Gives a connected host the chance to take what is left in the taps."""
        deadline = time.monotonic() + _FLUSH_TIMEOUT_S
        while (pump := self._pump) is not None and (connection := self._connection) is not None:
            pump.fill()
            if (pump.is_all_sent and connection.is_idle) or time.monotonic() > deadline:
                return
            await asyncio.sleep(0.005)
