"""The host's side of a program's output: in order, nothing twice, held back by who does not read."""

from __future__ import annotations

import pytest

from sandbox_manager.host.adapters.guest_errors import GuestLinkLostError
from sandbox_manager.host.adapters.guest_events import ACKNOWLEDGE_BYTES, GuestEvents
from sandbox_manager.host.adapters.guest_values import OutputChunk, OutputEnded, OutputGap, ProcessExited

EXIT = {"code": 0, "signal": None, "stdout_length": 3, "stderr_length": 0}


class Acknowledged:
    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def __call__(self, stream: str, offset: int) -> None:
        self.calls.append((stream, offset))


def events(acknowledged: Acknowledged | None = None) -> GuestEvents:
    return GuestEvents(1, 1, {"stdout": 0, "stderr": 0}, acknowledged or Acknowledged())


def out(offset: int, stream: str = "stdout") -> dict[str, object]:
    return {"stream": stream, "offset": offset}


async def test_what_a_reconnect_repeats_is_dropped_to_the_byte() -> None:
    found = events()
    found.take("out", out(0), b"abc")
    found.take("out", out(0), b"abc")
    found.take("out", out(1), b"bcde")
    assert [await anext(found), await anext(found)] == [
        OutputChunk("stdout", 0, b"abc"),
        OutputChunk("stdout", 3, b"de"),
    ]
    assert found.offsets == {"stdout": 5, "stderr": 0}


async def test_it_ends_after_the_exit_and_both_streams_and_not_before() -> None:
    found = events()
    found.take("exited", EXIT, b"")
    found.take("end", {"stream": "stderr", "length": 0}, b"")
    found.take("out", out(0), b"abc")
    found.take("end", {"stream": "stdout", "length": 3}, b"")
    found.take("end", {"stream": "stdout", "length": 3}, b"")
    found.take("exited", EXIT, b"")
    assert [event async for event in found] == [
        ProcessExited(0, None, 3, 0),
        OutputEnded("stderr", 0),
        OutputChunk("stdout", 0, b"abc"),
        OutputEnded("stdout", 3),
    ]


async def test_only_what_was_read_is_acknowledged() -> None:
    acknowledged = Acknowledged()
    found = events(acknowledged)
    half = ACKNOWLEDGE_BYTES // 2
    for number in range(4):
        found.take("out", out(number * half), b"x" * half)
    assert acknowledged.calls == []
    await anext(found)
    assert acknowledged.calls == []
    await anext(found)
    assert acknowledged.calls == [("stdout", ACKNOWLEDGE_BYTES)]


async def test_a_gap_is_told_where_it_is() -> None:
    found = events()
    found.take("out", out(0), b"abc")
    found.take("gap", {"stream": "stdout", "from": 3, "to": 10}, b"")
    found.take("out", out(10), b"k")
    assert [await anext(found) for _ in range(3)] == [
        OutputChunk("stdout", 0, b"abc"),
        OutputGap("stdout", 3, 10),
        OutputChunk("stdout", 10, b"k"),
    ]


async def test_a_lost_link_is_raised_after_what_had_arrived() -> None:
    found = events()
    found.take("out", out(0), b"abc")
    found.fail(GuestLinkLostError("gone"))
    assert await anext(found) == OutputChunk("stdout", 0, b"abc")
    with pytest.raises(GuestLinkLostError):
        await anext(found)


async def test_a_closed_iterator_is_over() -> None:
    found = events()
    found.take("out", out(0), b"abc")
    found.close()
    found.close()
    assert [event async for event in found] == []
