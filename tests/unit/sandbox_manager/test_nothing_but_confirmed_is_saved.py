"""Every disagreement, in any mixture: only where everything is confirmed is anything saved or admitted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sandbox_manager.core.context import Presence, Ruling, decide
from sandbox_manager.core.judgement import StoreVerdict
from sandbox_manager.core.values import (
    Census,
    ContainerFacts,
    ContextState,
    Generations,
    ProcessDisposition,
    RelayFindings,
    SlotProcess,
    Verdict,
)
from sandbox_manager.core.verdict import Result, judge
from tests.unit.sandbox_manager.settled_turn import (
    CLI,
    FIRST_PART,
    LOCATOR,
    MESSAGE_ID,
    NEW_PART,
    OTHER_SESSION,
    SESSION,
    SETTLED,
    assistant,
    digest,
    findings,
    jsonl,
    printed,
    read,
    record_of,
    user,
    whole_report,
    whole_turn,
)

RECORD = record_of(SETTLED)
GOOD = findings(printed())
FACTS = whole_turn().observation.container

# The first of each is the one that agrees; every other one alone must keep the turn from being saved.
OBSERVED: dict[str, list[Any]] = {
    "activation_id": ["act-1", "act-0"],
    "turn_id": ["turn-1", "turn-0"],
    "group_id": ["g-1", "g-0"],
    "member_id": ["m-1", "m-0"],
    "generations": [Generations(1, 2, 3), Generations(0, 2, 3), Generations(1, 1, 3), Generations(1, 2, 2)],
    "container": [
        FACTS,
        replace(FACTS, container_id="c0"),
        replace(FACTS, image_id="image-0"),
        replace(FACTS, nonce="nonce-0"),
    ],
    "locator": [
        LOCATOR,
        replace(LOCATOR, native_session_id=OTHER_SESSION),
        replace(LOCATOR, cwd="/x"),
        replace(LOCATOR, store="y"),
        replace(LOCATOR, agent="codex"),
    ],
    "message_id": [MESSAGE_ID, "m-0"],
    "message_digest": [whole_turn().observation.message_digest, digest("x"), None],
    "message_length": [whole_turn().observation.message_length, 1, None],
    "forwarded": [True, False],
    "tap_gap": [False, True],
    "tap": [
        GOOD,
        findings(printed(OTHER_SESSION)),
        findings(printed() + printed(OTHER_SESSION)),
        findings(printed(OTHER_SESSION, is_error=True)),
        findings(b""),
        replace(GOOD, reset_to=OTHER_SESSION),
        replace(GOOD, identity_before_output=False),
        replace(GOOD, session_ids=()),
        replace(GOOD, end=None),
        replace(GOOD, handshake="NO_SUCH_SESSION"),
        replace(GOOD, agent_version="2.1.231"),
    ],
    "store": [
        read(SETTLED + NEW_PART, RECORD),
        None,
        read(b"", RECORD, error="ABSENT"),
        read(b"", RECORD, error="NO_SPACE"),
        read(b"", RECORD, error="SYMLINK"),
        read(b"", RECORD, error="UNREADABLE"),
        read(SETTLED + NEW_PART),
        read(FIRST_PART, RECORD),
        read(SETTLED.replace(b"hi", b"ho") + NEW_PART, RECORD),
        read(SETTLED + NEW_PART[:-1], RECORD),
        read(SETTLED + NEW_PART.replace(b"plum", b"pear"), RECORD),
        read(SETTLED + NEW_PART + jsonl(user("x", "a1", "more")), RECORD),
        read(SETTLED + NEW_PART + jsonl(assistant("x", "a1", "forged")), RECORD),
        read(SETTLED + NEW_PART.replace(b'"a0"', b'"u0"'), RECORD),
        read(SETTLED + NEW_PART.replace(SESSION.encode(), OTHER_SESSION.encode()), RECORD),
    ],
    "relay": [
        RelayFindings(1, (digest("noted"),), unread=False, statuses=(200,)),
        None,
        RelayFindings(1, (), unread=False, statuses=(200,)),
        RelayFindings(1, (digest("another text"),), unread=False, statuses=(200,)),
    ],
}
# These may differ and say nothing about identity or store.
FREE: dict[str, list[Any]] = {
    "process_alive": [True, False],
    "census": [
        whole_turn().observation.census,
        None,
        Census(complete=False, kept=(), killed=0, remaining=(CLI,), unattributed=0),
    ],
    "disposition": list(ProcessDisposition),
    "interrupted_by": [None, "CANCEL", "ATTACH_LOST", "TIMEOUT"],
    "exit_code": [None, 0, 137],
}


def picks(choices: dict[str, list[Any]]) -> st.SearchStrategy[dict[str, int]]:
    """For each field the number of a choice; the agreeing one as often as all others together."""
    return st.fixed_dictionaries(
        {name: st.just(0) | st.integers(0, len(options) - 1) for name, options in choices.items()}
    )


@given(picks(OBSERVED), picks(FREE))
def test_only_a_turn_in_which_everything_agrees_is_saved(observed: dict[str, int], free: dict[str, int]) -> None:
    turn = whole_turn()
    changes = {name: OBSERVED[name][at] for name, at in observed.items()}
    changes |= {name: FREE[name][at] for name, at in free.items()}
    verdict = judge(turn.expected, replace(turn.observation, **changes))
    # A tap that prints no text, or another one, changes what the relay and the store must show: those never agree with these.
    everything_agrees = not any(observed.values())
    assert verdict.is_settled is everything_agrees
    assert (verdict.locator is not None) is everything_agrees
    assert (verdict.store_record is not None) is everything_agrees
    if verdict.is_settled:
        assert (verdict.identity, verdict.store) == (Verdict.CONFIRMED, StoreVerdict.CONFIRMED)
    else:
        assert verdict.disposition is ProcessDisposition.RECLAIM_FIRST
        assert verdict.reasons


@given(picks(OBSERVED))
def test_a_first_turn_is_saved_only_where_everything_agrees(observed: dict[str, int]) -> None:
    turn = whole_turn(first=True)
    changes = {name: OBSERVED[name][at] for name, at in observed.items() if at and name != "store"}
    store = turn.observation.store if observed["store"] == 0 else OBSERVED["store"][observed["store"]]
    verdict = judge(turn.expected, replace(turn.observation, **changes, store=store))
    if verdict.result is Result.SETTLED:
        assert not changes
        # A whole reading from byte 0 is the one other thing that a first turn's store may be.
        assert observed["store"] == 0
    else:
        assert (verdict.locator, verdict.store_record) == (None, None)


def test_each_disagreement_alone_saves_nothing() -> None:
    turn = whole_turn()
    for name, options in OBSERVED.items():
        for number, option in enumerate(options[1:], start=1):
            verdict = judge(turn.expected, replace(turn.observation, **{name: option}))
            assert not verdict.is_settled, (name, number)
            assert verdict.store_record is None, (name, number)


def test_what_says_nothing_about_identity_or_store_keeps_nothing_from_being_saved() -> None:
    turn = whole_turn()
    for name, options in FREE.items():
        for option in options:
            assert judge(turn.expected, replace(turn.observation, **{name: option})).is_settled, name


REPORTED: dict[str, list[Any]] = {
    "activation_id": ["act-1", "act-0"],
    "turn_id": ["turn-1", "turn-0"],
    "group_id": ["g-1", "g-0"],
    "member_id": ["m-1", "m-0"],
    "generations": [Generations(1, 2, 3), Generations(0, 2, 3), Generations(1, 1, 3), Generations(1, 2, 2)],
    "container": [
        whole_report("LIVE").report.container,
        ContainerFacts("c0", "image-1", "nonce-1", "2026-11-30T10:00:00Z"),
        ContainerFacts("c1", "image-0", "nonce-1", "2026-11-30T10:00:00Z"),
        ContainerFacts("c1", "image-1", "nonce-0", "2026-11-30T10:00:00Z"),
    ],
    "agent": ["claude-code", "codex"],
    "agent_version": ["2.1.220", "2.1.231"],
    "settings_digest": ["settings-1", "settings-0"],
    "locator": [LOCATOR, replace(LOCATOR, native_session_id=OTHER_SESSION), replace(LOCATOR, cwd="/x")],
    "observed_session_id": [None, OTHER_SESSION],
    "store": [read(SETTLED, RECORD), *OBSERVED["store"][1:]],
}
ONLY_LIVE: dict[str, list[Any]] = {
    "tap_gap": [False, True],
    "written_outside": [False, True],
    "handshake": [None, "REFUSED"],
    "process": [CLI, SlotProcess(1, 1), None],
}
AROUND = st.fixed_dictionaries(
    {
        "presence": st.sampled_from([Presence.PRESENT, Presence.PRESENT, Presence.GONE, Presence.SILENT]),
        "accepted_images": st.sampled_from([("image-1",), ("image-1",), ("image-9",)]),
    }
)


@given(picks(REPORTED), picks(ONLY_LIVE), AROUND, st.sampled_from(["LIVE", "RESTORED"]))
def test_only_a_report_in_which_everything_agrees_is_admitted(
    reported: dict[str, int], only_live: dict[str, int], around: dict[str, Any], state: str
) -> None:
    before = whole_report(state)
    changes = {name: REPORTED[name][at] for name, at in reported.items() if at}
    differs = bool(changes)
    if state == "LIVE":
        changes |= {name: ONLY_LIVE[name][at] for name, at in only_live.items() if at}
        differs = bool(changes)
    changed = before.but(changes, container=around)
    decision = decide(changed.report, changed.member, changed.container)
    agrees = not differs and around == {"presence": Presence.PRESENT, "accepted_images": ("image-1",)}
    assert (decision.ruling is Ruling.ADMIT) is agrees
    if agrees:
        assert decision.state is ContextState[state]
    else:
        assert decision.state in (None, ContextState.LOST)
        assert decision.reason
