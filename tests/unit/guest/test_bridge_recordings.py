"""Every recorded turn of OpenCode and Kilo through the bridge's turn machine: what it settles on, says, and answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.native.bridge_replay import CAPTURES, Played, play, turns_of

ONE_QUESTION = ((("B",),),)


@dataclass(frozen=True)
class Row:
    """What one turn must come to. `end` is (outcome, reason, finish, status); `replies` are the answers that the bridge sends."""

    recording: str
    end: tuple[str, str | None, str | None, int | None] = ("completed", None, "stop", None)
    texts: tuple[str, ...] = ()
    index: int = 0
    replies: tuple[dict[str, Any], ...] = ()
    aborts: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.recording}-{self.index}"


ONCE = ({"reply": "once"},)
CANCELLED = ("cancelled", "ABORTED", None, None)
DENIED = {"reply": "reject", "message": "The permission mode of this conversation denies this."}


def of_both(name: str, **row: Any) -> list[Row]:
    return [Row(f"{agent}/{name}", **row) for agent in ("opencode", "kilo")]


ROWS = [
    *of_both("two-turns", texts=("Answer one",)),
    *of_both("two-turns", index=1, texts=("calling ", "TOOLDONE[hello\n]"), replies=ONCE),
    *of_both("abort", end=CANCELLED, texts=("slow text slow text slow",), aborts=1),
    *of_both("abort", index=1, texts=("usable again",)),
    Row("opencode/abort-pending-permission", end=CANCELLED, texts=("calling ",), replies=ONCE, aborts=1),
    Row("kilo/abort-pending-permission", end=CANCELLED, replies=ONCE, aborts=1),
    *of_both("error-401", end=("failed", "APIError", None, 401)),
    Row("opencode/error-midstream", end=CANCELLED, texts=("before ",), aborts=1),
    Row("kilo/error-midstream", end=("failed", "UnknownError", None, None), texts=("before ",)),
    *of_both(
        "permission-rejected", end=("failed", "ENDED_AFTER_TOOL", "tool-calls", None), texts=("calling ",), replies=ONCE
    ),
    *of_both(
        "question",
        texts=(
            "calling ",
            'TOOLDONE[User has answered your questions: "Pick?"="B". You can now continue with the user\'s answers in mind.]',
        ),
        replies=({"answers": [["B"]]},),
        options={"answers": ONE_QUESTION},
    ),
    *of_both("resume", texts=("third",)),
    *of_both("retry-then-success", texts=("recovered after 1",)),
    # This server ends such a turn by itself; the other does not, see below.
    Row("kilo/stream-cut", end=("failed", "STREAM_CUT", "other", None), texts=("partial eof",)),
]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_recorded_turn_settles_as_it_ended(row: Row) -> None:
    played = play(row.recording, row.index, **row.options)
    settled = played.settled
    assert (settled["outcome"], settled["reason"], settled["finish"], settled["status"]) == row.end
    assert tuple(played.root_texts) == row.texts
    assert tuple(post.body for post in played.posts) == row.replies
    assert played.aborts == row.aborts
    assert played.lines[-1] == settled, "something was said after the end"


@pytest.mark.parametrize("agent", ["opencode", "kilo"])
def test_a_childs_permission_is_allowed_and_its_lines_name_its_call(agent: str) -> None:
    played = play(f"{agent}/permission-child-session")
    assert played.settled["outcome"] == "completed"
    (reply,) = played.posts
    assert reply.body == {"reply": "once"}
    of_child = [line for line in played.lines if line.get("parent") is not None]
    assert {line["session"] for line in of_child} != {played.session}
    assert {line["parent"] for line in of_child} == {"call_fx2"} or all(
        line["parent"].startswith("call_") for line in of_child
    )
    assert not any("child-out" in text and "TOOLDONE" not in text for text in played.root_texts)


def test_a_stream_that_is_cut_again_and_again_is_aborted_at_its_first_cut() -> None:
    """OpenCode asks again without delay or limit: 153 requests in 15 s. The recording goes on, since nobody aborted it then."""
    played = play("opencode/stream-cut")
    assert played.aborts == 1
    assert played.of("settled") == []
    assert [line["cause"] for line in played.of("broken")] == ["ABORT_UNANSWERED"], "the recording has no end"


@pytest.mark.parametrize("agent", ["opencode", "kilo"])
def test_in_mode_deny_every_permission_is_refused_with_a_word_to_the_model(agent: str) -> None:
    played = play(f"{agent}/two-turns", 1, mode="deny")
    assert [post.body for post in played.posts] == [DENIED]
    assert [line["how"] for line in played.of("asked")] == ["denied"]


@pytest.mark.parametrize("agent", ["opencode", "kilo"])
@pytest.mark.parametrize("allows", [True, False])
def test_in_mode_ask_the_client_decides(agent: str, allows: bool) -> None:
    played = play(f"{agent}/two-turns", 1, mode="ask", allows=allows)
    (ask,) = played.of("ask")
    assert (ask["kind"], ask["tool"], ask["session"]) == ("permission", "bash", played.session)
    assert [post.body["reply"] for post in played.posts] == ["once" if allows else "reject"]


def test_all_recordings_are_played() -> None:
    """But the two of Kilo that have no prompt in them: their rules have tests of their own."""
    with_prompts = {
        f"{path.parent.name}/{path.stem}"
        for agent in ("opencode", "kilo")
        for path in (CAPTURES / agent).glob("*.jsonl")
        if turns_of(f"{path.parent.name}/{path.stem}")
    }
    of_their_own = {"opencode/stream-cut", "opencode/permission-child-session", "kilo/permission-child-session"}
    assert with_prompts == {row.recording for row in ROWS} | of_their_own


def said(played: Played, name: str) -> list[str]:
    return [line["text"] for line in played.of(name)]


@pytest.mark.parametrize("row", [row for row in ROWS if row.recording != "opencode/error-midstream"], ids=str)
def test_deltas_add_up_to_the_whole_texts(row: Row) -> None:
    """But where a try broke off in the middle and the next one began anew: the server does not keep what it had."""
    played = play(row.recording, row.index, **row.options)
    assert "".join(said(played, "delta")) == "".join(said(played, "text"))
