"""No single fault in any conversation is called complete, and the oracle agrees with what was recorded of the real CLI."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from standfast_lab.oracle import Fault, Turn, judge_request
from standfast_lab.provider.log import Row, message_row
from standfast_lab.provider.messages_request import decode_request
from tests.unit.lab.test_oracle import row

CAPTURES = Path(__file__).parents[2] / "captures" / "claude-code"
# Few different texts, so that repeats are common.
TEXTS = st.sampled_from(["again", "ok", "a", "b"])
TURNS = st.lists(st.builds(Turn, TEXTS, st.lists(TEXTS, min_size=1, max_size=3).map(tuple)), min_size=1, max_size=6)


def said(turns: list[Turn]) -> list[tuple[str, str]]:
    return [s for turn in turns for s in (("user", turn.user), *(("assistant", reply) for reply in turn.replies))]


@given(TURNS)
def test_every_whole_history_is_complete(turns: list[Turn]) -> None:
    assert judge_request(row([*said(turns), ("user", "now")]), turns, Turn("now")).is_complete


@given(TURNS, st.data())
@settings(max_examples=300)
def test_no_single_fault_is_called_complete(turns: list[Turn], data: st.DataObject) -> None:
    texts = said(turns)
    at = data.draw(st.integers(0, len(texts) - 1))
    role, text = texts[at]
    other = "user" if role == "assistant" else "assistant"
    kind = data.draw(st.sampled_from(["drop", "double", "role", "space"]))
    spoilt = {
        "drop": [*texts[:at], *texts[at + 1 :]],
        "double": [*texts[: at + 1], *texts[at:]],
        "role": [*texts[:at], (other, text), *texts[at + 1 :]],
        "space": [*texts[:at], (role, text + " "), *texts[at + 1 :]],
    }[kind]
    verdict = judge_request(row([*spoilt, ("user", "now")]), turns, Turn("now"))
    assert not verdict.is_complete
    assert verdict.turn is not None
    faults = {difference.fault for difference in verdict.differences}
    # Where all texts are alike a changed role can also be read as one text lost and one too many.
    expected = {"drop": {Fault.MISSING}, "double": {Fault.DOUBLED}, "space": {Fault.TEXT_CHANGED}}.get(kind)
    assert expected is None or faults == expected


@given(TURNS, st.data())
@settings(max_examples=300)
def test_no_swap_that_changes_the_history_is_called_complete(turns: list[Turn], data: st.DataObject) -> None:
    texts = said(turns)
    a, b = (data.draw(st.integers(0, len(texts) - 1)) for _ in range(2))
    spoilt = list(texts)
    spoilt[a], spoilt[b] = spoilt[b], spoilt[a]
    verdict = judge_request(row([*spoilt, ("user", "now")]), turns, Turn("now"))
    assert verdict.is_complete == (spoilt == texts)


def recorded(name: str) -> list[Row]:
    """The requests of a recording, as rows of the lab's log."""
    lines = [json.loads(line) for line in (CAPTURES / name).read_text().splitlines()]
    rows = []
    for line in lines:
        if line["dir"] == "api_request":
            body = {"model": "m", "messages": line["messages_without_system_reminders"]}
            heard = decode_request("/v1/messages", {}, json.dumps(body).encode())
            messages = [message_row(message) for message in heard.messages]
            rows.append({"n": line["n"], "session_id": "s", "is_root": True, "messages": messages})
    return rows


DEFECT = [Turn("MSG zero", ("A zero",)), Turn("MSG one", ("A one",)), Turn("MSG two", ("A two",))]


def test_the_recorded_retry_defect_is_missed_only_after_the_resume() -> None:
    *_, live, resumed = recorded("retry_defect.jsonl")
    assert judge_request(live, DEFECT[:2], DEFECT[2]).is_complete
    assert str(judge_request(resumed, DEFECT, Turn("MSG three"))) == "MISSING{2}: MISSING turn 2 assistant text 0"
