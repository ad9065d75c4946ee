"""One client connection on a model port: requests one after another, each admitted or refused, then passed.

Knows HTTP/1.1 on the client's side (h11). While a response is passed, the connection is watched: a client
that leaves takes its upstream request with it.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Protocol

import h11

from sandbox_manager.host.relay.admission import Caller, IncidentKind, Refusal, Route, admit, route_of
from sandbox_manager.host.relay.exchange import (
    BodyTooLargeError,
    ClientGoneError,
    NotReachedError,
    Passing,
    ResponseCutError,
    pass_on,
)
from sandbox_manager.host.relay.headers import credentials
from sandbox_manager.host.relay.slots import Slot, SlotTable

READ_BYTES = 64 * 1024
REQUEST_HEAD_BYTES_MAX = 64 * 1024
# What a client may send ahead while its response is still passed.
AHEAD_BYTES_MAX = 64 * 1024


class Gateway(Protocol):
    """What a connection needs of its sandbox."""

    slots: SlotTable

    def active_slots(self) -> set[str]:
        """Names of slots with an open activation."""

    def refused(self, refusal: Refusal, caller: Caller) -> None:
        """Records a refused request."""

    def begin_passing(self, route: Route, slot: Slot | None, request: h11.Request) -> Passing:
        """Counts a request that may pass and says where it goes."""

    def end_passing(self, passing: Passing, client_gone: bool) -> None:
        """The request is over, one way or another."""

    def key_seen(self, slot: Slot | None) -> None:
        """The upstream echoed the provider's key; its response was cut."""


class Limits(Protocol):
    """Bounds of one connection."""

    @property
    def idle_timeout_s(self) -> float: ...
    @property
    def stall_timeout_s(self) -> float: ...
    @property
    def close_timeout_s(self) -> float: ...
    @property
    def request_bytes_max(self) -> int: ...


class ClientConnection:
    """Serves one connection until it ends."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        gateway: Gateway,
        caller: asyncio.Future[Caller],
        limits: Limits,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._gateway = gateway
        self._caller = caller
        self._limits = limits
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=REQUEST_HEAD_BYTES_MAX)
        self._body_read = asyncio.Event()
        self._body_bytes = 0
        self._keeps_body_back = False
        self.slot: Slot | None = None
        # `drain` returns only when all was handed to the kernel: that is what "delivered" means here.
        writer.transport.set_write_buffer_limits(high=0)
        # asyncio sets it only where the listener was made with the protocol spelled out; ours comes from elsewhere.
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def serve(self) -> None:
        """Runs until the connection ends. Closes it."""
        cut = False
        try:
            while await self._one_request():
                self._h11.start_next_cycle()
        except (ClientGoneError, ConnectionError, TimeoutError):
            pass
        except h11.RemoteProtocolError as error:
            with suppress(ConnectionError, h11.LocalProtocolError):
                await self._answer(error.error_status_hint, "invalid_request_error", "The request is not valid HTTP.")
        except ResponseCutError:
            # What was received is still flushed by close(); an end of message is not sent.
            cut = True
        finally:
            await self._close(cut)

    def abort(self) -> None:
        """Breaks the connection at once (its slot was revoked)."""
        self._writer.transport.abort()

    async def _one_request(self) -> bool:
        """Serves one request. True: another may follow on this connection."""
        async with asyncio.timeout(self._limits.idle_timeout_s):
            request = await self._next_event()
        if not isinstance(request, h11.Request):
            return False
        self._body_read.clear()
        self._body_bytes = 0
        self.slot = None
        caller = await self._caller
        route = route_of(request.method, request.target)
        slot = (
            route
            if isinstance(route, Refusal)
            else admit(
                route,
                credentials(request.headers.raw_items()),
                caller,
                self._gateway.slots,
                self._gateway.active_slots(),
            )
        )
        if isinstance(route, Refusal) or isinstance(slot, Refusal):
            refusal = route if isinstance(route, Refusal) else slot
            assert isinstance(refusal, Refusal)
            self._gateway.refused(refusal, caller)
            await self._answer(refusal.status, refusal.error_type, refusal.message)
            return await self._is_reusable()
        self.slot = slot
        return await self._pass(route, slot, request, caller)

    async def _pass(self, route: Route, slot: Slot | None, request: h11.Request, caller: Caller) -> bool:
        passing = self._gateway.begin_passing(route, slot, request)
        work = asyncio.create_task(
            pass_on(passing, self._body(), self._send, lambda: self._gateway.key_seen(slot)), name="relay pass"
        )
        watch = asyncio.create_task(self._until_client_leaves(), name="relay watch")
        client_gone = False
        try:
            await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                client_gone = True
                raise ClientGoneError
            await work
        except (ClientGoneError, ConnectionError):
            client_gone = True
            raise ClientGoneError from None
        except NotReachedError as error:
            await self._answer(error.status, "api_error", str(error))
        except BodyTooLargeError:
            most = self._limits.request_bytes_max
            message = f"The request is larger than {most} bytes."
            self._gateway.refused(Refusal(413, "request_too_large", message, IncidentKind.BODY_TOO_LARGE, slot), caller)
            await self._answer(413, "request_too_large", message)
        finally:
            work.cancel()
            watch.cancel()
            await asyncio.gather(work, watch, return_exceptions=True)
            self._gateway.end_passing(passing, client_gone)
        return await self._is_reusable()

    async def _body(self) -> AsyncIterator[bytes]:
        if self._h11.they_are_waiting_for_100_continue:
            await self._send(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue"))
        async for chunk in self._rest_of_body():
            yield chunk

    async def _rest_of_body(self) -> AsyncIterator[bytes]:
        while True:
            async with asyncio.timeout(self._limits.stall_timeout_s):
                event = await self._next_event()
            if isinstance(event, h11.Data):
                self._body_bytes += len(event.data)
                if self._body_bytes > self._limits.request_bytes_max:
                    raise BodyTooLargeError
                yield bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                self._body_read.set()
                return
            else:
                raise ClientGoneError

    async def _next_event(self) -> h11.Event | type[h11.PAUSED]:
        while True:
            event = self._h11.next_event()
            if event is not h11.NEED_DATA:
                assert not isinstance(event, type) or event is h11.PAUSED
                return event
            data = await self._reader.read(READ_BYTES)
            if not data and self._h11.their_state is h11.SEND_BODY:
                raise ClientGoneError
            self._h11.receive_data(data)

    async def _until_client_leaves(self) -> None:
        """Returns when the client closed its side, or sends more ahead than is kept."""
        await self._body_read.wait()
        ahead = 0
        while data := await self._reader.read(READ_BYTES):
            ahead += len(data)
            if ahead > AHEAD_BYTES_MAX:
                return
            self._h11.receive_data(data)

    async def _send(self, event: h11.Event) -> None:
        data = self._h11.send(event)
        if data:
            self._writer.write(data)
            if self._writer.transport.get_write_buffer_size():
                async with asyncio.timeout(self._limits.stall_timeout_s):
                    await self._writer.drain()

    async def _answer(self, status: int, error_type: str, message: str) -> None:
        """Sends an answer of our own, in the protocol's error form."""
        if self._h11.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        # Told no, such a client sends no body: there is nothing to read away before the close.
        self._keeps_body_back = self._h11.they_are_waiting_for_100_continue
        body = json.dumps({"type": "error", "error": {"type": error_type, "message": message}}).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
        await self._send(h11.Response(status_code=status, headers=headers, reason=b""))
        await self._send(h11.Data(data=body))
        await self._send(h11.EndOfMessage())

    async def _is_reusable(self) -> bool:
        """Reads what is left of an answered request; closing on unread bytes could destroy the answer."""
        if self._h11.our_state is h11.ERROR or self._keeps_body_back:
            return False
        try:
            async with asyncio.timeout(self._limits.close_timeout_s):
                if self._h11.their_state is h11.SEND_BODY:
                    async for _ in self._rest_of_body():
                        pass
        except (BodyTooLargeError, TimeoutError):
            return False
        return self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE

    async def _close(self, cut: bool) -> None:
        # close() flushes what is written and sends FIN; without an end of message the client sees the cut.
        self._writer.close()
        try:
            async with asyncio.timeout(self._limits.close_timeout_s):
                await self._writer.wait_closed()
        except (TimeoutError, ConnectionError):
            self._writer.transport.abort()
