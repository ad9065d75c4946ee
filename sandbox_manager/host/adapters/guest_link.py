"""The host agent's side of a supervisor: its operations as methods, its programs' output as events.

A lost connection is taken up again by itself, to the same boot of the same supervisor only: each program's events go on at the next byte.
An operation under way when the connection is lost fails with GuestLinkLostError; nothing is sent twice.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from sandbox_manager.host.adapters.guest_connection import ExpectedPeer, GuestConnection, connected_socket
from sandbox_manager.host.adapters.guest_errors import (
    GuestLinkError,
    GuestLinkLostError,
    GuestOperationError,
    GuestProtocolError,
    GuestRestartedError,
    GuestTimeoutError,
    GuestUnreachableError,
)
from sandbox_manager.host.adapters.guest_events import GuestEvents
from sandbox_manager.host.adapters.guest_frames import PAYLOAD_BYTES_MAX, GuestFrame, Json
from sandbox_manager.host.adapters.guest_values import (
    GuestCensus,
    GuestHello,
    GuestProgram,
    GuestStoreReading,
    ReclaimReport,
    TapReading,
    number_in,
    object_in,
    text_in,
)

GUEST_PROTOCOL = 1
TAIL_BYTES_MAX = 64 * 1024 * 1024
_POLL_S = 0.003
_MEASURE_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class LinkTimeouts:
    """Seconds. `reconnect_s`: how long a lost connection is tried again before the link fails."""

    connect_s: float = 15.0
    reconnect_s: float = 5.0
    operation_s: float = 10.0


DEFAULT_TIMEOUTS = LinkTimeouts()
ANY_PEER = ExpectedPeer(None, None)


@dataclass(frozen=True, slots=True)
class SpawnedProcess:
    """A program that runs. `(pid, start_time)` is its name in censuses and in a reclaim's `keep`."""

    pid: int
    start_time: int
    events: GuestEvents

    @property
    def key(self) -> tuple[int, int]:
        """What a reclaim is told to keep."""
        return self.pid, self.start_time


@dataclass(slots=True)
class _Pending:
    answer: asyncio.Future[tuple[Json, bytes, list[int]]]
    parts: list[bytes]


class GuestLink:
    """A link to one supervisor. Use `connect`, then as an async context manager or with `close()`."""

    def __init__(self, socket_dir: Path, peer: ExpectedPeer, timeouts: LinkTimeouts) -> None:
        self._socket_dir = socket_dir
        self._peer = peer
        self._timeouts = timeouts
        self._connection: GuestConnection | None = None
        self._hello: GuestHello | None = None
        self._hello_arrived: asyncio.Future[GuestHello] | None = None
        self._pending: dict[int, _Pending] = {}
        self._events: dict[tuple[int, int], GuestEvents] = {}
        self._next_id = 1
        self._failure: GuestLinkError | None = None
        self._reconnecting: asyncio.Task[None] | None = None
        self._is_ready = asyncio.Event()

    @classmethod
    async def connect(
        cls, socket_dir: Path, peer: ExpectedPeer = ANY_PEER, timeouts: LinkTimeouts = DEFAULT_TIMEOUTS
    ) -> GuestLink:
        """Polls until the supervisor says hello. Raises GuestUnreachableError after `connect_s`, GuestPeerError at once."""
        link = cls(socket_dir, peer, timeouts)
        link._hello = await link._open(timeouts.connect_s)
        link._is_ready.set()
        return link

    @property
    def hello(self) -> GuestHello:
        """What the supervisor said when this connection began; `refresh_hello` asks anew."""
        if self._hello is None:
            raise GuestUnreachableError(f"{self._socket_dir}: not connected")
        return self._hello

    @property
    def is_lost(self) -> bool:
        """Whether the link has failed for good."""
        return self._failure is not None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connection and ends all events. A second call does nothing. The sandbox goes on."""
        self._fail(GuestLinkLostError(f"{self._socket_dir}: this link was closed"))
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            await asyncio.wait([self._reconnecting])
        for events in list(self._events.values()):
            events.close()
        self._events.clear()

    # --- operations ---------------------------------------------------------------------------------------------

    async def refresh_hello(self) -> GuestHello:
        """Asks for slots and programs as they are now."""
        header, _, _ = await self._ask("hello", {})
        self._hello = GuestHello.read(header)
        return self._hello

    async def adopt(self, nonce: str) -> None:
        """Writes the creation nonce. The same again is fine; another one is refused (guest_reason NONCE_MISMATCH)."""
        await self._ask("adopt", {"nonce": nonce})

    async def measure(
        self, printed_before: Mapping[str, str] | None = None, timeout_s: float = _MEASURE_TIMEOUT_S
    ) -> Mapping[str, object]:
        """What the sandbox consists of, as measured now: `supervisor`, `agents`, `probes` and more.

        `printed_before`: by digest, the version that a CLI of these bytes printed before; it is hashed and not run again.
        """
        header, _, _ = await self._ask("measure", {"printed_before": dict(printed_before or {})}, timeout_s=timeout_s)
        return object_in(header, "measured")

    async def listen_model_port(self, port: int) -> socket.socket:
        """The listening TCP socket of the sandbox's loopback; 0 takes any port. The caller closes it."""
        header, _, descriptors = await self._ask("listen_model_port", {"port": port})
        if len(descriptors) != 1:
            for descriptor in descriptors:
                os.close(descriptor)
            raise GuestProtocolError(
                f"expected one descriptor with the model port {header.get('port')}, found {len(descriptors)}"
            )
        listener = socket.socket(fileno=descriptors[0])
        listener.setblocking(False)
        return listener

    async def spawn(
        self, slot: int, process_generation: int, program: GuestProgram, traceparent: str | None = None
    ) -> SpawnedProcess:
        """Starts a program in an idle, empty slot; its events begin with its first byte."""
        request: dict[str, object] = {
            "slot": slot,
            "process_generation": process_generation,
            "argv": list(program.argv),
            "env": dict(program.env),
            "cwd": program.cwd,
            "is_bridged": program.is_bridged,
            "executable": {"sha256": program.executable_sha256, "must_be_unreadable": program.must_be_unreadable},
            "files": [
                {"base": file.base, "components": list(file.components), "mode": file.mode, "length": len(file.content)}
                for file in program.files
            ],
        }
        events = self._register(slot, process_generation, {"stdout": 0, "stderr": 0})
        content = b"".join(file.content for file in program.files)
        try:
            header, _, _ = await self._ask(
                "spawn", request, content, traceparent=traceparent, timeout_s=self._timeouts.operation_s * 2
            )
        except BaseException:
            self.unfollow(events)
            raise
        return SpawnedProcess(number_in(header, "pid"), number_in(header, "start_time"), events)

    async def follow(
        self, slot: int, process_generation: int, *, stdout_offset: int = 0, stderr_offset: int = 0
    ) -> GuestEvents:
        """The events of a program that was started earlier, from these offsets on."""
        events = self._register(slot, process_generation, {"stdout": stdout_offset, "stderr": stderr_offset})
        try:
            await self._ask("follow", self._follow_request(events))
        except BaseException:
            self.unfollow(events)
            raise
        return events

    def unfollow(self, events: GuestEvents) -> None:
        """Ends these events; the program goes on."""
        events.close()
        if self._events.get((events.slot, events.process_generation)) is events:
            del self._events[events.slot, events.process_generation]

    async def write(self, slot: int, process_generation: int, data: bytes, traceparent: str | None = None) -> int:
        """Queues bytes for stdin, all or none; returns how many wait there now. guest_reason STDIN_FULL: none was taken."""
        request = self._address(slot, process_generation)
        header, _, _ = await self._ask("write", request, data, traceparent=traceparent)
        return number_in(header, "pending")

    async def close_stdin(self, slot: int, process_generation: int) -> None:
        """Closes stdin once all that was written has gone out."""
        await self._ask("close_stdin", self._address(slot, process_generation))

    async def signal(self, slot: int, process_generation: int, number: int) -> None:
        """Signals the program itself, not its children."""
        await self._ask("signal", {**self._address(slot, process_generation), "signal": number})

    async def deposit_interrupt(self, slot: int, process_generation: int, data: bytes, grace_s: float) -> None:
        """Bytes the supervisor writes to stdin when it has had no host for `grace_s`; empty takes the deposit back."""
        await self._ask("deposit_interrupt", {**self._address(slot, process_generation), "grace_s": grace_s}, data)

    async def census(self, slot: int) -> GuestCensus:
        """The slot's living processes."""
        header, _, _ = await self._ask("census", {"slot": slot})
        return GuestCensus.read(header)

    async def reclaim(
        self, slot: int, keep: Iterable[tuple[int, int]] = (), *, timeout_s: float = 5.0, traceparent: str | None = None
    ) -> ReclaimReport:
        """Ends the slot's processes but those to keep, `(pid, start_time)` each."""
        request: dict[str, object] = {"slot": slot, "keep": [list(key) for key in keep], "timeout_s": timeout_s}
        header, _, _ = await self._ask(
            "reclaim", request, traceparent=traceparent, timeout_s=timeout_s + self._timeouts.operation_s
        )
        return ReclaimReport.read(header)

    async def read_store(
        self,
        slot: int,
        base: str,
        components: Iterable[str],
        *,
        prefix_length: int = 0,
        tail_bytes_max: int = TAIL_BYTES_MAX,
        timeout_s: float = 60.0,
        session: str | None = None,
        renderer: str | None = None,
    ) -> GuestStoreReading:
        """Reads a store file below `home` or `workspace`; of a database, `session` as its renderer writes it.

        guest_reason ABSENT, SYMLINK, NOT_REGULAR, OWNER, NLINK, UNREADABLE or ENOSPC tells why not.
        """
        request: dict[str, object] = {
            "slot": slot,
            "base": base,
            "components": list(components),
            "prefix_length": prefix_length,
            "tail_bytes_max": tail_bytes_max,
        }
        if session is not None:
            request |= {"session": session, "renderer": renderer}
        header, payload, _ = await self._ask("read_store", request, timeout_s=timeout_s)
        return GuestStoreReading.read(header, payload)

    async def probe_store(self, slot: int, base: str, components: Iterable[str]) -> None:
        """Has the slot write a small file in that folder and remove it. guest_reason ENOSPC or UNWRITABLE: it cannot."""
        await self._ask("probe_store", {"slot": slot, "base": base, "components": list(components)})

    async def read_tap(
        self, slot: int, process_generation: int, from_offset: int, stream: str = "stdout", timeout_s: float = 30.0
    ) -> TapReading:
        """What the tap still holds from an offset on."""
        request = {**self._address(slot, process_generation), "from_offset": from_offset, "stream": stream}
        header, payload, _ = await self._ask("read_tap", request, timeout_s=timeout_s)
        return TapReading.read(header, payload)

    async def shutdown(self) -> None:
        """Asks for the orderly end: inputs closed, programs awaited, slots reclaimed. The engine's stop does the same."""
        await self._ask("shutdown", {})

    # --- requests and answers -----------------------------------------------------------------------------------

    @staticmethod
    def _address(slot: int, process_generation: int) -> dict[str, object]:
        return {"slot": slot, "process_generation": process_generation}

    async def _ask(
        self,
        operation: str,
        request: dict[str, object],
        payload: bytes = b"",
        *,
        traceparent: str | None = None,
        timeout_s: float | None = None,
    ) -> tuple[Json, bytes, list[int]]:
        limit_s = self._timeouts.operation_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await self._exchange(operation, request, payload, traceparent)
        except TimeoutError:
            raise GuestTimeoutError(
                f"{operation}: the supervisor did not answer within {limit_s} s",
                {"operation": operation, "timeout_s": limit_s},
            ) from None

    async def _exchange(
        self, operation: str, request: dict[str, object], payload: bytes, traceparent: str | None
    ) -> tuple[Json, bytes, list[int]]:
        await self._is_ready.wait()
        if self._failure is not None:
            raise self._failure
        connection = self._connection
        if connection is None:
            raise GuestLinkLostError(f"{operation}: {self._socket_dir}: not connected", {"operation": operation})
        number, self._next_id = self._next_id, self._next_id + 1
        header: dict[str, object] = {"op": operation, "id": number, **request}
        if traceparent is not None:
            header["traceparent"] = traceparent
        pending = _Pending(asyncio.get_running_loop().create_future(), [])
        self._pending[number] = pending
        try:
            at = 0
            while len(payload) - at > PAYLOAD_BYTES_MAX:
                part = payload[at : at + PAYLOAD_BYTES_MAX]
                await connection.send({"op": operation, "id": number, "more": True}, part)
                at += PAYLOAD_BYTES_MAX
            await connection.send(header, payload[at:])
            answer, body, descriptors = await pending.answer
        finally:
            del self._pending[number]
        if answer.get("ok") is True:
            return answer, body, descriptors
        raise GuestOperationError(operation, text_in(answer, "reason"), text_in(answer, "message"), _facts(answer))

    def _on_frame(self, frame: GuestFrame, descriptors: list[int]) -> None:
        name = frame.header.get("event")
        if name == "hello":
            self._take_hello(frame.header)
        elif name == "replaced":
            self._fail(GuestLinkLostError(f"{self._socket_dir}: a newer host agent has taken this sandbox over"))
        elif isinstance(name, str):
            self._take_event(name, frame)
        else:
            self._take_answer(frame, descriptors)

    def _take_hello(self, header: Json) -> None:
        waiting = self._hello_arrived
        if waiting is None or waiting.done():
            return
        protocol = header.get("protocol")
        if protocol != GUEST_PROTOCOL:
            waiting.set_exception(
                GuestProtocolError(
                    f"expected a supervisor with guest protocol {GUEST_PROTOCOL}, found {protocol}; the image is of another release",
                    {"expected": GUEST_PROTOCOL, "found": protocol},
                )
            )
            return
        try:
            waiting.set_result(GuestHello.read(header))
        except GuestProtocolError as error:
            waiting.set_exception(error)

    def _take_event(self, name: str, frame: GuestFrame) -> None:
        key = (number_in(frame.header, "slot"), number_in(frame.header, "process_generation"))
        events = self._events.get(key)
        if events is not None:
            events.take(name, frame.header, frame.payload)

    def _take_answer(self, frame: GuestFrame, descriptors: list[int]) -> None:
        number = frame.header.get("re")
        pending = self._pending.get(number) if isinstance(number, int) else None
        if pending is None or pending.answer.done():
            # The one who asked has stopped waiting.
            for descriptor in descriptors:
                os.close(descriptor)
            return
        pending.parts.append(frame.payload)
        if frame.header.get("more") is not True:
            pending.answer.set_result((frame.header, b"".join(pending.parts), descriptors))

    # --- the connection -----------------------------------------------------------------------------------------

    async def _open(self, timeout_s: float, *, is_listening: bool = False) -> GuestHello:
        """`is_listening`: the supervisor has listened before. It does so to its end, so a refused connection is its end."""
        last = "nothing was tried"
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        return await self._open_once()
                    except (OSError, GuestLinkLostError) as error:
                        if is_listening and isinstance(error, ConnectionRefusedError | FileNotFoundError):
                            raise GuestUnreachableError(
                                f"{self._socket_dir}: the supervisor has ended; see the sandbox's log",
                                {"socket_dir": self._socket_dir},
                            ) from error
                        last = str(error)
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise GuestUnreachableError(
                f"{self._socket_dir}: no supervisor said hello within {timeout_s} s ({last}); see the sandbox's log",
                {"socket_dir": self._socket_dir, "timeout_s": timeout_s},
            ) from None

    async def _open_once(self) -> GuestHello:
        sock = connected_socket(self._socket_dir, self._peer)
        arrived: asyncio.Future[GuestHello] = asyncio.get_running_loop().create_future()
        self._hello_arrived = arrived
        connection = GuestConnection(sock, self._on_frame, lambda why: self._lost(connection, why))
        self._connection = connection
        try:
            return await arrived
        except BaseException:
            self._connection = None
            connection.lose("the greeting failed")
            raise

    def _lost(self, connection: GuestConnection, why: str) -> None:
        error = GuestLinkLostError(f"{self._socket_dir}: the supervisor's connection is lost: {why}", {"why": why})
        if self._hello_arrived is not None and not self._hello_arrived.done():
            self._hello_arrived.set_exception(error)
        if connection is not self._connection:
            return
        self._connection = None
        self._fail_pending(error)
        if self._is_ready.is_set() and self._failure is None:
            self._is_ready.clear()
            self._reconnecting = asyncio.get_running_loop().create_task(self._reconnect())

    async def _reconnect(self) -> None:
        boot_id = self.hello.boot_id
        try:
            hello = await self._open(self._timeouts.reconnect_s, is_listening=True)
        except GuestLinkError as error:
            self._fail(error)
            return
        if hello.boot_id != boot_id:
            message = f"{self._socket_dir}: expected supervisor boot {boot_id}, found {hello.boot_id}"
            self._fail(GuestRestartedError(message, {"expected": boot_id, "found": hello.boot_id}))
            return
        self._hello = hello
        for events in self._events.values():
            if self._connection is not None:
                events.resumed()
                self._connection.send_now({"op": "follow", **self._follow_request(events)})
        self._is_ready.set()

    def _fail(self, error: GuestLinkError) -> None:
        if self._failure is not None:
            return
        self._failure = error
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.lose("the link has failed")
        self._fail_pending(error)
        for events in self._events.values():
            events.fail(error)
        self._is_ready.set()

    def _fail_pending(self, error: GuestLinkError) -> None:
        for pending in self._pending.values():
            if not pending.answer.done():
                pending.answer.set_exception(error)

    # --- events -------------------------------------------------------------------------------------------------

    def _register(self, slot: int, process_generation: int, offsets: dict[str, int]) -> GuestEvents:
        def acknowledge(stream: str, offset: int) -> None:
            if self._connection is not None:
                address = self._address(slot, process_generation)
                self._connection.send_now({"op": "ack", **address, "stream": stream, "offset": offset})

        older = self._events.pop((slot, process_generation), None)
        if older is not None:
            older.close()
        events = GuestEvents(slot, process_generation, offsets, acknowledge)
        self._events[slot, process_generation] = events
        return events

    def _follow_request(self, events: GuestEvents) -> dict[str, object]:
        offsets = {f"{stream}_offset": offset for stream, offset in events.offsets.items()}
        return {**self._address(events.slot, events.process_generation), **offsets}


def _facts(answer: Json) -> Json:
    facts = answer.get("facts")
    return facts if isinstance(facts, dict) else {}
