"""Values to JSON and back, strictly."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_manager.core.codec import CodecError, decode, encode, from_json, to_json
from sandbox_manager.core.values import (
    ActivationReport,
    AssistantText,
    Census,
    LaunchSpec,
    NativeEnd,
    Observation,
    StoreReading,
    StoreRecord,
    TapFindings,
)
from sandbox_manager.core.verdict import ManagerVerdict, judge
from tests.unit.sandbox_manager.settled_turn import SETTLED, read, whole_report, whole_turn

TURN = whole_turn()


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Observation, TURN.observation),
        (ActivationReport, whole_report("LIVE").report),
        (ActivationReport, whole_report("NEW").report),
        (StoreReading, read(SETTLED)),
        (StoreReading, read(b"", error="ABSENT")),
        (ManagerVerdict, judge(TURN.expected, TURN.observation)),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_value_comes_back_as_it_was(kind: type[Any], value: Any) -> None:
    assert decode(kind, encode(value)) == value
    assert from_json(kind, json.loads(json.dumps(to_json(value)))) == value


@pytest.mark.parametrize("kind", [Observation, ActivationReport, StoreRecord, TapFindings, Census, NativeEnd])
def test_any_value_comes_back_as_it_was(kind: type[Any]) -> None:
    @given(st.from_type(kind))
    def comes_back(value: Any) -> None:
        assert decode(kind, encode(value)) == value

    comes_back()


def test_one_value_has_one_digest() -> None:
    first, second = encode(TURN.observation), encode(copy.deepcopy(TURN.observation))
    assert first == second
    assert first.isascii()
    assert b" " not in first.replace(b"remember: plum", b"")


def wrong(change: Any) -> Any:
    envelope = to_json(TURN.observation)
    change(envelope)
    return envelope


def set_at(*path: Any, to: Any) -> Any:
    def change(envelope: Any) -> None:
        at = envelope
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = to

    return change


def drop(*path: Any) -> Any:
    def change(envelope: Any) -> None:
        at = envelope
        for key in path[:-1]:
            at = at[key]
        del at[path[-1]]

    return change


@pytest.mark.parametrize(
    ("change", "at"),
    [
        (set_at("version", to=2), "$.version"),
        (set_at("version", to=True), "$.version"),
        (set_at("kind", to="ActivationReport"), "$.kind"),
        (set_at("more", to=1), "$"),
        (drop("version"), "$"),
        (set_at("value", to=[]), "$.value"),
        (set_at("value", "unknown_key", to=1), "$.value"),
        (drop("value", "tap_gap"), "$.value"),
        (drop("value", "tap", "printed"), "$.value.tap"),
        (set_at("value", "tap_gap", to=0), "$.value.tap_gap"),
        (set_at("value", "tap_gap", to=None), "$.value.tap_gap"),
        (set_at("value", "tap_from", to=1.5), "$.value.tap_from"),
        (set_at("value", "tap_from", to=True), "$.value.tap_from"),
        (set_at("value", "activation_id", to=5), "$.value.activation_id"),
        (set_at("value", "disposition", to="PERHAPS"), "$.value.disposition"),
        (set_at("value", "tap", "session_ids", to="text"), "$.value.tap.session_ids"),
        (set_at("value", "tap", "session_ids", to=["a", 5]), "$.value.tap.session_ids[1]"),
        (set_at("value", "census", to={}), "$.value.census"),
    ],
)
def test_anything_else_is_refused_with_its_place(change: Any, at: str) -> None:
    with pytest.raises(CodecError) as refused:
        from_json(Observation, wrong(change))
    assert refused.value.metadata["at"] == at


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 100_000, b"null", b'{"kind":NaN}'])
def test_bytes_that_are_no_envelope_are_refused(data: bytes) -> None:
    with pytest.raises(CodecError):
        decode(Observation, data)


def test_a_repeated_key_is_refused() -> None:
    data = encode(StoreRecord(1, "d", ()))
    with pytest.raises(CodecError):
        decode(StoreRecord, data.replace(b'"length":1', b'"length":1,"length":2'))


def test_a_refusal_says_nothing_of_the_content() -> None:
    with pytest.raises(CodecError) as refused:
        from_json(Observation, wrong(set_at("value", "tap", to="a very secret text")))
    assert "secret" not in str(refused.value)


def test_what_is_no_plain_value_cannot_be_written() -> None:
    """A launch spec holds the slot's secret and file contents: it never goes into a journal by accident."""
    with pytest.raises(CodecError):
        to_json(LaunchSpec(argv=(), env=(), cwd="/", files=(("f", 0o600, b"x"),)))


def test_a_type_with_two_choices_is_refused() -> None:
    @dataclass(frozen=True)
    class Odd:
        value: int | str

    globals()["Odd"] = Odd
    with pytest.raises(CodecError):
        from_json(Odd, to_json(Odd(1)))


def test_a_pair_has_two() -> None:
    @dataclass(frozen=True)
    class Pair:
        value: tuple[int, str]

    assert from_json(Pair, to_json(Pair((1, "a")))) == Pair((1, "a"))
    with pytest.raises(CodecError):
        from_json(Pair, {"kind": "Pair", "version": 1, "value": {"value": [1]}})
    assert AssistantText("u", "d") == decode(AssistantText, encode(AssistantText("u", "d")))
