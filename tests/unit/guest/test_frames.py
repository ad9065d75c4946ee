"""Two codecs that share no code read and write the same frames."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_manager.guest import frames as inside
from sandbox_manager.host.adapters import guest_frames as outside

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "vectors" / "guest_frames.json").read_text())
Write = Callable[[dict[str, object], bytes], bytes]
Read = Callable[[list[bytes]], list[tuple[dict[str, object], bytes]]]


def read_inside(cuts: list[bytes]) -> list[tuple[dict[str, object], bytes]]:
    decoder = inside.FrameDecoder()
    return [(frame.header, frame.payload) for cut in cuts for frame in decoder.feed(cut)]


def read_outside(cuts: list[bytes]) -> list[tuple[dict[str, object], bytes]]:
    unpacker = outside.Unpacker()
    return [(frame.header, frame.payload) for cut in cuts for frame in unpacker.feed(cut)]


CODECS = [
    pytest.param(inside.encode, read_inside, inside.FrameError, id="supervisor"),
    pytest.param(outside.pack, read_outside, outside.FrameBrokenError, id="host"),
]


@pytest.mark.parametrize(("write", "read", "_"), CODECS)
@pytest.mark.parametrize("vector", VECTORS["frames"], ids=lambda vector: str(vector["name"]))
def test_a_vector_is_written_and_read(vector: dict[str, Any], write: Write, read: Read, _: type[ValueError]) -> None:
    payload, frame = bytes.fromhex(vector["payload_hex"]), bytes.fromhex(vector["frame_hex"])
    assert write(vector["header"], payload) == frame
    assert read([frame]) == [(vector["header"], payload)]


@pytest.mark.parametrize(("_", "read", "broken"), CODECS)
@pytest.mark.parametrize("vector", VECTORS["broken"], ids=lambda vector: str(vector["name"]))
def test_what_is_no_frame_is_refused(vector: dict[str, Any], _: Write, read: Read, broken: type[ValueError]) -> None:
    with pytest.raises(broken):
        read([bytes.fromhex(vector["hex"])])


@pytest.mark.parametrize(("write", "_", "broken"), CODECS)
def test_a_part_over_its_bound_is_not_written(write: Write, _: Read, broken: type[ValueError]) -> None:
    write({}, b"x" * inside.MAX_PAYLOAD_BYTES)
    with pytest.raises(broken):
        write({}, b"x" * (inside.MAX_PAYLOAD_BYTES + 1))
    with pytest.raises(broken):
        write({"text": "x" * inside.MAX_HEADER_BYTES}, b"")


@given(
    sent=st.lists(
        st.tuples(st.dictionaries(st.text(max_size=5), st.text(max_size=9)), st.binary(max_size=40)), max_size=5
    ),
    places=st.lists(st.integers(0, 400)),
)
def test_the_cuts_do_not_matter(sent: list[tuple[dict[str, object], bytes]], places: list[int]) -> None:
    stream = b"".join(inside.encode(header, payload) for header, payload in sent)
    edges = sorted({0, len(stream), *(place % (len(stream) + 1) for place in places)})
    cuts = [stream[start:end] for start, end in itertools.pairwise(edges)]
    assert read_inside(cuts) == sent
    assert read_outside(cuts) == sent
