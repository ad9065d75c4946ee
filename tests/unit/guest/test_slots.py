"""The slot's machine: every state and event, legal or refused, and what no order of events can break."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_manager.guest.slots import (
    Exited,
    IllegalSlotEventError,
    LeftoversFound,
    ReclaimAsked,
    ReclaimFinished,
    Slot,
    SlotEvent,
    SlotState,
    SpawnAsked,
    Started,
    StartFailed,
)

S = SlotState
EVENTS: dict[str, SlotEvent] = {
    "spawn newer": SpawnAsked(2),
    "spawn same": SpawnAsked(1),
    "started": Started(),
    "start failed": StartFailed(),
    "exited": Exited(),
    "reclaim": ReclaimAsked(),
    "complete": ReclaimFinished(True),
    "incomplete": ReclaimFinished(False),
    "leftovers": LeftoversFound(),
}
UP = (SpawnAsked(1), Started())
# Each reachable situation: how to get there, and where each event leads. What is not named is refused.
SITUATIONS: dict[str, tuple[tuple[SlotEvent, ...], dict[str, SlotState]]] = {
    "idle, never used": (
        (),
        {"spawn newer": S.STARTING, "spawn same": S.STARTING, "reclaim": S.RECLAIMING, "leftovers": S.LEFTOVERS},
    ),
    "idle again": (
        (SpawnAsked(1), StartFailed()),
        {"spawn newer": S.STARTING, "reclaim": S.RECLAIMING, "leftovers": S.LEFTOVERS},
    ),
    "starting": ((SpawnAsked(1),), {"started": S.RUNNING, "start failed": S.IDLE}),
    "running": (UP, {"exited": S.ENDED, "reclaim": S.RECLAIMING}),
    "ended": ((*UP, Exited()), {"reclaim": S.RECLAIMING}),
    "reclaiming beside a living main": (
        (*UP, ReclaimAsked()),
        {"exited": S.RECLAIMING, "complete": S.RUNNING, "incomplete": S.RUNNING},
    ),
    "reclaiming, main gone": (
        (*UP, ReclaimAsked(), Exited()),
        {"complete": S.IDLE, "incomplete": S.LEFTOVERS},
    ),
    "leftovers": ((LeftoversFound(),), {"reclaim": S.RECLAIMING}),
}


def arrived(path: tuple[SlotEvent, ...]) -> Slot:
    slot = Slot()
    for event in path:
        slot.step(event)
    return slot


@pytest.mark.parametrize("name", EVENTS)
@pytest.mark.parametrize("situation", SITUATIONS)
def test_every_state_and_event(situation: str, name: str) -> None:
    path, leads_to = SITUATIONS[situation]
    slot = arrived(path)
    before = dict(vars(slot))
    if name in leads_to:
        slot.step(EVENTS[name])
        assert slot.state is leads_to[name]
    else:
        with pytest.raises(IllegalSlotEventError):
            slot.step(EVENTS[name])
        assert vars(slot) == before, "a refused event changes nothing"


def test_all_states_are_in_the_table() -> None:
    assert {arrived(path).state for path, _ in SITUATIONS.values()} == set(SlotState)


@given(st.lists(st.one_of(st.sampled_from(list(EVENTS.values())), st.integers(1, 6).map(SpawnAsked)), max_size=40))
def test_no_order_of_events_starts_a_program_beside_another(events: list[SlotEvent]) -> None:
    slot = Slot()
    generations: list[int] = []
    main_lives = may_hold_leftovers = False
    for event in events:
        try:
            slot.step(event)
        except IllegalSlotEventError:
            continue
        match event:
            case SpawnAsked(generation):
                assert not main_lives
                assert not may_hold_leftovers
                generations.append(generation)
            case Started():
                main_lives = may_hold_leftovers = True
            case Exited():
                main_lives = False
            case LeftoversFound():
                may_hold_leftovers = True
            case ReclaimFinished(is_complete) if is_complete and not main_lives:
                may_hold_leftovers = False
            case _:
                pass
        assert slot.is_main_alive is main_lives
    assert generations == sorted(set(generations)), "each generation is newer than the one before"
