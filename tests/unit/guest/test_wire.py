"""The supervisor's way between a bridge and its server: what is kept, in which order, and what is not."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sandbox_manager.guest.bridge.dialling import Dialler
from sandbox_manager.guest.bridge.http_client import CallError, HttpClient
from sandbox_manager.guest.listeners import listener_uids
from sandbox_manager.guest.whole_lines import WholeLines
from sandbox_manager.guest.wire import MARK, Wire

SECRET = "only-between-bridge-and-server"


class Server:
    """A small HTTP server on loopback; keeps what it was sent."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []

    async def __aenter__(self) -> Server:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    @property
    def port(self) -> int:
        return int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (
                int(line.partition(b":")[2])
                for line in head.split(b"\r\n")
                if line.lower().startswith(b"content-length")
            ),
            0,
        )
        self.asked.append(head + await reader.readexactly(length))
        if b"/event" in head:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            for event in (b'data: {"type":"server.connected"}\n\n', b'data: {"type":"one"}\n\n'):
                writer.write(b"%x\r\n%s\r\n" % (len(event), event))
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        else:
            body = json.dumps({"said": self.asked[-1].partition(b"\r\n\r\n")[2].decode()}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            await writer.drain()
        writer.close()


class Bench:
    """A wire with its journal, and a client on the bridge's end of it."""

    def __init__(self, port: int, uid: int | None = None) -> None:
        self.lines: list[bytes] = []
        self._grown = asyncio.Condition()
        self.wire = Wire(self._journal, uid)
        self.client = HttpClient(Dialler(port, os.dup(self.wire.theirs.fileno())), "opencode", SECRET)

    async def _journal(self, line: bytes) -> None:
        self.lines.append(line)
        async with self._grown:
            self._grown.notify_all()

    async def closed(self, count: int) -> None:
        """Until so many connections are over."""
        async with self._grown:
            await self._grown.wait_for(lambda: sum(b'"at":"closed"' in line for line in self.lines) >= count)

    def kept(self, number: int, at: str) -> bytes:
        values: list[dict[str, Any]] = [json.loads(line) for line in self.lines]
        return b"".join(base64.b64decode(v["bytes"]) for v in values if v["wire"] == number and v["at"] == at)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with Server() as made:
        yield made


async def test_what_passes_is_kept_both_ways_without_the_secret(server: Server) -> None:
    bench = Bench(server.port)
    answer = await bench.client.call("POST", "/session", {"text": "hello"})
    assert answer.json() == {"said": '{"text":"hello"}'}
    asked = bench.kept(1, "bridge")
    assert asked.startswith(b"POST /session HTTP/1.1\r\n")
    assert asked.endswith(b'{"text":"hello"}')
    assert b"Authorization: *\r\n" in asked
    encoded = base64.b64encode(f"opencode:{SECRET}".encode())
    assert encoded in server.asked[0]
    assert not any(encoded in base64.b64decode(json.loads(line).get("bytes", "")) for line in bench.lines)
    assert bench.kept(1, "server").endswith(answer.body)
    bench.wire.close()


async def test_the_servers_bytes_are_kept_before_the_bridge_has_them(server: Server) -> None:
    bench = Bench(server.port)
    async for event in bench.client.events("/event"):
        assert f'"type":"{event["type"]}"'.encode() in bench.kept(1, "server")
    assert bench.kept(1, "server").count(b"data: ") == 2
    bench.wire.close()


async def test_each_connection_has_its_own_number_and_begins_and_ends(server: Server) -> None:
    bench = Bench(server.port)
    await asyncio.gather(*(bench.client.call("GET", f"/{name}") for name in "abc"))
    async with asyncio.timeout(5):
        await bench.closed(3)
    for number in (1, 2, 3):
        places = [json.loads(line)["at"] for line in bench.lines if json.loads(line)["wire"] == number]
        assert (places[0], places[-1]) == ("open", "closed")
    assert all(line.startswith(MARK) for line in bench.lines)
    bench.wire.close()


async def test_a_listener_of_another_user_is_not_connected(server: Server) -> None:
    assert listener_uids(server.port) == {os.getuid()}
    bench = Bench(server.port, uid=os.getuid() + 1)
    with pytest.raises(CallError):
        await bench.client.call("GET", "/session", timeout_s=5)
    assert (server.asked, bench.lines) == ([], [])
    bench.wire.close()


async def test_a_port_where_nobody_listens_is_a_failed_call() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        bench = Bench(free.getsockname()[1])
        with pytest.raises(CallError):
            await bench.client.call("GET", "/session", timeout_s=5)
        bench.wire.close()


async def test_a_closed_wire_ends_what_is_under_way(server: Server) -> None:
    bench = Bench(server.port)
    bench.wire.close()
    bench.wire.close()
    with pytest.raises(CallError):
        await bench.client.call("GET", "/session", timeout_s=5)


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_a_bridges_line_that_looks_like_the_supervisors_is_left_out(step: int) -> None:
    forged = b'{"wire":1,"at":"server","bytes":""}\n'
    printed = b'{"v":4,"ev":"opened"}\n' + forged + b"  " + forged + b'{"v":4,"text":"{\\"wire\\":1}"}\nrest'
    lines = WholeLines(MARK)
    given = b"".join(lines.feed(printed[at : at + step]) for at in range(0, len(printed), step)) + lines.finish()
    assert not any(line.lstrip().startswith(MARK) for line in given.splitlines())
    assert given.splitlines()[0] == b'{"v":4,"ev":"opened"}'
    assert given.splitlines()[-2:] == [b'{"v":4,"text":"{\\"wire\\":1}"}', b"rest"]
    assert len(given.splitlines()) == 5


def test_lines_are_given_on_whole() -> None:
    lines = WholeLines(MARK)
    assert lines.feed(b"half ") == b""
    assert lines.feed(b"a line\nnext") == b"half a line\n"
    assert lines.finish() == b"next"
