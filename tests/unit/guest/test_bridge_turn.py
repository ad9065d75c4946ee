"""The bridge's turn machine, rule by rule, on events made by hand: subscription, idle, attribution, permissions, questions, aborts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sandbox_manager.guest.bridge.effects import (
    AbortAsked,
    AbortDone,
    AnswerCame,
    Begun,
    EndRead,
    EndReadFailed,
    IllegalEventError,
    Post,
    PostAbort,
    PostDone,
    PostPrompt,
    PromptFailed,
    PromptTaken,
    ReadEnd,
    Say,
    ServerEvent,
    SetTimer,
    Subscribe,
    Subscribed,
    SubscriptionLost,
    TimerFired,
)
from sandbox_manager.guest.bridge.flavours import KILO, OPENCODE, Flavour
from sandbox_manager.guest.bridge.message_ids import native_id
from sandbox_manager.guest.bridge.sse import SseReader
from sandbox_manager.guest.bridge.turn import Turn, TurnState

CASES = Path(__file__).parents[2] / "cases"
ROOT = "s-root"
OURS = native_id("mine", 1_796_000_000_000, None)
LATER = native_id("another", 1_796_000_000_001, None)


class Bench:
    """A turn whose effects are collected. `messages` is what the server would give at the end."""

    def __init__(self, flavour: Flavour = OPENCODE, mode: str = "auto") -> None:
        self.turn = Turn(flavour, ROOT, "own", OURS, "the text", mode=mode, retries_max=3)
        self.said: list[dict[str, Any]] = []
        self.posts: list[Post] = []
        self.timers: list[str] = []
        self.aborts = 0
        self.reads = 0
        self.prompts = 0

    def step(self, *events: Any) -> Bench:
        for event in events:
            for effect in self.turn.step(event):
                match effect:
                    case Say(line):
                        self.said.append(line)
                    case Post():
                        self.posts.append(effect)
                    case SetTimer(name, _):
                        self.timers.append(name)
                    case PostAbort():
                        self.aborts += 1
                    case ReadEnd():
                        self.reads += 1
                    case PostPrompt():
                        self.prompts += 1
                    case _:
                        pass
        return self

    def running(self) -> Bench:
        return self.step(Begun(), Subscribed(), PromptTaken(), user(OURS), status("busy"))

    def idle_and_quiet(self) -> Bench:
        return self.step(idle(), TimerFired("quiet"))

    def of(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.said if line["ev"] == name]

    @property
    def settled(self) -> dict[str, Any]:
        (line,) = self.of("settled")
        return line

    @property
    def texts(self) -> list[str]:
        return [line["text"] for line in self.of("text")]


def event(kind: str, **properties: Any) -> ServerEvent:
    return ServerEvent(kind, properties)


def idle(session: str = ROOT) -> ServerEvent:
    return event("session.idle", sessionID=session)


def status(kind: str, session: str = ROOT, **more: Any) -> ServerEvent:
    return event("session.status", sessionID=session, status={"type": kind, **more})


def user(message: str, session: str = ROOT) -> ServerEvent:
    return event("message.updated", sessionID=session, info={"id": message, "sessionID": session, "role": "user"})


def info(message: str, **more: Any) -> dict[str, Any]:
    return {"id": message, "sessionID": ROOT, "role": "assistant", "parentID": OURS, **more}


def answered(message: str = "m-a", **more: Any) -> dict[str, Any]:
    return {"info": info(message, **{"finish": "stop", **more}), "parts": []}


ASKED = {"info": {"id": OURS, "sessionID": ROOT, "role": "user"}, "parts": []}


def good(*extra: dict[str, Any]) -> EndRead:
    return EndRead(False, [ASKED, *extra, answered()])


def permission(request: str, session: str = ROOT) -> ServerEvent:
    return event("permission.asked", id=request, sessionID=session, permission="bash")


def child(session: str, parent: str | None = ROOT) -> ServerEvent:
    return event("session.created", info={"id": session, "parentID": parent})


# --- the subscription -------------------------------------------------------------------------------------------------
def test_the_prompt_goes_only_when_the_subscription_is_open_and_once() -> None:
    bench = Bench().step(Begun())
    assert bench.prompts == 0
    bench.step(Subscribed())
    assert bench.prompts == 1
    bench.step(PromptTaken(), user(OURS), status("busy"), idle(), status("busy"))
    assert bench.prompts == 1


@pytest.mark.parametrize("when", ["prompting", "running", "checking"])
def test_a_lost_subscription_aborts_the_native_turn_and_breaks_ours(when: str) -> None:
    bench = Bench().step(Begun(), Subscribed())
    if when != "prompting":
        bench.step(PromptTaken(), user(OURS), status("busy"))
    if when == "checking":
        bench.idle_and_quiet()
    bench.step(SubscriptionLost("cut"), good(), idle())
    assert bench.aborts == 1
    assert [line["cause"] for line in bench.of("broken")] == ["SUBSCRIPTION_LOST"]
    assert bench.of("settled") == []
    assert bench.turn.state is TurnState.BROKEN


def test_a_subscription_that_cannot_be_opened_sends_nothing() -> None:
    bench = Bench().step(Begun(), SubscriptionLost("refused"))
    assert (bench.prompts, bench.aborts) == (0, 0)
    assert [line["cause"] for line in bench.of("broken")] == ["SUBSCRIPTION_FAILED"]


def case_events(name: str) -> list[list[ServerEvent]]:
    """The events of a case's stream; a lost connection cuts it."""
    streams = (CASES / "inputs" / f"{name}.sse").read_bytes().split(b": --- connection lost")
    return [
        [ServerEvent(one["type"], one["properties"]) for one in SseReader().feed(stream + b"\n\n")]
        for stream in streams
    ]


def case(name: str) -> dict[str, Any]:
    entries = json.loads((CASES / "cases.json").read_text())
    return next(entry for entry in entries if entry["id"] == name)


def test_case_sse_drop_mid_turn() -> None:
    before, after = case_events("sse-drop-mid-turn")
    bench = Bench().running().step(*before, SubscriptionLost("cut"), *after)
    assert bench.aborts == 1
    assert bench.of("settled") == []
    assert bench.texts == []
    assert not any("and the rest" in line.get("text", "") for line in bench.said)


# --- whose text it is -------------------------------------------------------------------------------------------------
def ended_with(bench: Bench, events: list[ServerEvent]) -> Bench:
    parts: dict[str, list[dict[str, Any]]] = {}
    roles: dict[str, str] = {}
    for one in events:
        if one.kind == "message.updated":
            roles[one.properties["info"]["id"]] = one.properties["info"]["role"]
        elif one.kind == "message.part.updated":
            part = one.properties["part"]
            kept = [other for other in parts.get(part["messageID"], []) if other["id"] != part["id"]]
            parts[part["messageID"]] = [*kept, part]
    answers = [
        {"info": info(message, finish="stop"), "parts": parts.get(message, [])}
        for message, role in roles.items()
        if role == "assistant"
    ]
    return bench.step(*events, TimerFired("quiet"), EndRead(False, [ASKED, *answers]))


def test_case_attr_user_part_before_role() -> None:
    (events,) = case_events("attr-user-part-before-role")
    bench = ended_with(Bench().running(), events)
    assert "".join(bench.texts) == case("attr-user-part-before-role")["expected"]["output_text"]
    assert bench.settled["outcome"] == "completed"


def test_case_attr_snapshots_and_text_before_tool() -> None:
    (events,) = case_events("attr-snapshots-and-text-before-tool")
    bench = ended_with(Bench().running(), events)
    expected = case("attr-snapshots-and-text-before-tool")["expected"]["output_text_parts"]
    assert bench.texts == expected
    assert "".join(line["text"] for line in bench.of("delta")) == "".join(expected)


def part(message: str, text: str, part_id: str = "p", **more: Any) -> ServerEvent:
    found = {"id": part_id, "messageID": message, "sessionID": ROOT, "type": "text", "text": text, **more}
    return event("message.part.updated", part=found)


def test_a_leftover_of_an_earlier_turn_is_dropped() -> None:
    old = {"id": "m-old", "sessionID": ROOT, "role": "assistant", "parentID": "msg_earlier", "finish": "stop"}
    bench = Bench().running().step(part("m-old", "old news"), event("message.updated", info=old))
    bench.idle_and_quiet().step(good())
    assert bench.texts == []


def test_a_role_that_comes_only_at_the_end_is_applied_then() -> None:
    bench = Bench().running().step(part("m-a", "late but ours"))
    assert bench.texts == []
    bench.idle_and_quiet().step(good())
    assert bench.texts == ["late but ours"]


def test_a_messages_end_that_overtakes_its_last_piece_does_not_cut_the_text() -> None:
    bench = Bench().running().step(event("message.updated", info=info("m-a")), part("m-a", "the co"))
    bench.step(event("message.updated", info=info("m-a", finish="stop")))
    assert bench.texts == []
    bench.step(part("m-a", "the colour is blue", time={"start": 1, "end": 2})).idle_and_quiet().step(good())
    assert bench.texts == ["the colour is blue"]


def test_what_the_server_added_itself_is_no_output() -> None:
    bench = Bench().running().step(event("message.updated", info=info("m-a")))
    bench.step(part("m-a", "limit reached", "p1", ignored=True), part("m-a", "made up", "p2", synthetic=True))
    bench.idle_and_quiet().step(good())
    assert (bench.texts, bench.of("delta")) == ([], [])


# --- the end ----------------------------------------------------------------------------------------------------------
def test_an_idle_is_only_a_hint() -> None:
    bench = Bench().running().step(idle())
    assert (bench.reads, bench.timers[-1]) == (0, "quiet")
    bench.step(TimerFired("quiet"))
    assert bench.reads == 1
    assert bench.of("settled") == []


def test_an_error_that_is_written_after_the_first_idle_is_seen() -> None:
    failed = info("m-a", error={"name": "APIError", "data": {"message": "no", "statusCode": 401}})
    bench = Bench().running().step(event("session.error", sessionID=ROOT, error={"name": "APIError"}), idle())
    bench.step(event("message.updated", info=failed), status("idle"), idle(), TimerFired("quiet"))
    bench.step(EndRead(False, [ASKED, {"info": failed, "parts": []}]))
    assert (bench.settled["outcome"], bench.settled["reason"], bench.settled["status"]) == ("failed", "APIError", 401)


def test_work_after_an_idle_takes_it_back() -> None:
    bench = Bench().running().step(idle(), status("busy"), TimerFired("quiet"))
    assert bench.reads == 0


def test_a_reading_that_the_session_overtook_is_worth_nothing() -> None:
    bench = Bench().running().idle_and_quiet().step(status("busy"), good())
    assert bench.of("settled") == []
    bench.idle_and_quiet().step(good())
    assert bench.settled["outcome"] == "completed"


def test_a_session_that_the_server_calls_busy_is_not_at_its_end() -> None:
    bench = Bench().running().idle_and_quiet().step(EndRead(True))
    assert bench.of("settled") == []
    bench.idle_and_quiet().step(good())
    assert bench.settled["outcome"] == "completed"


def test_a_stale_idle_of_the_turn_before_ends_nothing() -> None:
    bench = Bench().step(Begun(), Subscribed(), PromptTaken()).idle_and_quiet()
    earlier = {
        "info": {"id": "m-0", "sessionID": ROOT, "role": "assistant", "parentID": "msg_0", "finish": "stop"},
        "parts": [],
    }
    bench.step(EndRead(False, [earlier]))
    assert bench.of("settled") == []
    bench.step(user(OURS), status("busy")).idle_and_quiet().step(good(earlier))
    assert bench.settled["outcome"] == "completed"


def test_a_childs_idle_is_not_the_roots() -> None:
    bench = Bench().running().step(child("s-kid"), idle("s-kid"), TimerFired("quiet"))
    assert bench.reads == 0


def test_a_missed_idle_does_not_hang_the_turn() -> None:
    bench = Bench().running().step(event("server.heartbeat"))
    assert bench.reads == 1
    bench.step(good())
    assert bench.settled["outcome"] == "completed"


def test_a_prompt_that_the_server_never_begins_is_given_up() -> None:
    bench = Bench().step(Begun(), Subscribed(), PromptTaken())
    for _ in range(4):
        bench.step(event("server.heartbeat"), EndRead(False, []))
    assert [line["cause"] for line in bench.of("broken")] == ["PROMPT_NOT_BEGUN"]
    assert bench.aborts == 1


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        ({"finish": "length"}, "OUTPUT_LENGTH"),
        ({"finish": "tool-calls"}, "ENDED_AFTER_TOOL"),
        ({"finish": "other"}, "STREAM_CUT"),
        ({"finish": "content-filter"}, "CONTENT_FILTER"),
        ({"finish": "something-new"}, "FINISH_UNKNOWN"),
        ({"finish": "stop", "error": {"name": "UnknownError"}}, "UnknownError"),
    ],
)
def test_anything_but_stop_without_an_error_is_a_failure(last: dict[str, Any], reason: str) -> None:
    bench = Bench(KILO).running().step(event("session.turn.close", sessionID=ROOT, reason="completed"))
    bench.idle_and_quiet().step(EndRead(False, [ASKED, answered(**last)]))
    assert (bench.settled["outcome"], bench.settled["reason"]) == ("failed", reason)


def test_an_answer_without_end_and_error_is_looked_at_twice_and_failed() -> None:
    bench = Bench().running().idle_and_quiet().step(EndRead(False, [ASKED, answered(finish=None)]))
    assert bench.of("settled") == []
    bench.step(TimerFired("quiet"), EndRead(False, [ASKED, answered(finish=None)]))
    assert (bench.settled["outcome"], bench.settled["reason"]) == ("failed", "NO_FINISH")


def test_kilo_is_given_a_moment_for_its_turn_close() -> None:
    bench = Bench(KILO).running().idle_and_quiet()
    assert bench.reads == 0
    bench.step(TimerFired("quiet"))
    assert bench.reads == 1


def test_a_server_that_tells_nothing_of_the_end_breaks_the_turn() -> None:
    bench = Bench().running().idle_and_quiet().step(EndReadFailed("gone"), TimerFired("quiet"), EndReadFailed("gone"))
    assert [line["cause"] for line in bench.of("broken")] == ["SERVER_UNREACHABLE"]


# --- guards -----------------------------------------------------------------------------------------------------------
def test_a_cut_stream_is_aborted_where_the_server_would_ask_again_for_ever() -> None:
    cut = event("message.updated", info=info("m-a", finish="unknown"))
    bench = Bench().running().step(cut)
    assert bench.aborts == 1
    aborted = answered(finish=None, error={"name": "MessageAbortedError", "data": {"message": "Aborted"}})
    bench.idle_and_quiet().step(EndRead(False, [ASKED, aborted]))
    assert (bench.settled["outcome"], bench.settled["reason"]) == ("failed", "STREAM_CUT")
    assert Bench(KILO).running().step(cut).aborts == 0


def test_endless_answers_without_a_tool_are_aborted() -> None:
    bench = Bench().running()
    for number in range(20):
        bench.step(event("message.updated", info=info(f"m-{number}", finish="stop")))
    assert bench.aborts == 1


def test_endless_retries_are_aborted() -> None:
    bench = Bench().running().step(*[status("retry", attempt=number, message="x") for number in range(1, 5)])
    assert (bench.aborts, len(bench.of("retry"))) == (1, 4)


def test_a_prompt_that_is_not_ours_ends_the_turn_and_the_process() -> None:
    bench = Bench().running().step(user(LATER))
    assert bench.aborts == 1
    assert [line["reason"] for line in bench.of("retire")] == ["FOREIGN_PROMPT"]
    bench.idle_and_quiet().step(good())
    assert bench.settled["outcome"] == "completed", "what the server made of it is told as it is"


def test_an_earlier_message_that_is_announced_again_is_no_foreign_prompt() -> None:
    earlier = native_id("earlier", 1_795_999_999_000, None)
    assert Bench().running().step(user(earlier)).aborts == 0


def test_a_pending_wakeup_retires_the_process() -> None:
    bench = Bench(KILO).running().step(event("session.wakeup", sessionID=ROOT, pending=1))
    assert [line["reason"] for line in bench.of("retire")] == ["WAKEUP_PENDING"]


# --- permissions ------------------------------------------------------------------------------------------------------
def replies(bench: Bench) -> list[tuple[str, Any]]:
    return [(post.path, post.body.get("reply")) for post in bench.posts]


def test_case_perm_child_session_ask() -> None:
    (events,) = case_events("perm-child-session-ask")
    expected = case("perm-child-session-ask")["expected"]
    bench = Bench().running().step(*events)
    assert replies(bench) == [(f"/permission/{name}/reply", "once") for name in expected["replied"]]
    bench.step(TimerFired("hold:pr-2"))
    assert replies(bench)[1:] == [("/permission/pr-2/reply", "reject")]


def test_an_early_request_waits_for_its_sessions_report() -> None:
    bench = Bench().running().step(permission("pr-1", "s-kid"))
    assert (bench.posts, bench.timers[-1]) == ([], "hold:pr-1")
    task = {
        "id": "p",
        "messageID": "m-a",
        "sessionID": ROOT,
        "type": "tool",
        "tool": "task",
        "callID": "call_1",
        "state": {"status": "running", "metadata": {"parentSessionId": ROOT, "sessionId": "s-kid"}},
    }
    bench.step(event("message.part.updated", part=task))
    assert replies(bench) == [("/permission/pr-1/reply", "once")]
    bench.step(TimerFired("hold:pr-1"))
    assert len(bench.posts) == 1


def test_a_grandchild_is_answered_when_its_chain_leads_to_the_root() -> None:
    bench = Bench().running().step(child("s-grandkid", "s-kid"), permission("pr-1", "s-grandkid"))
    assert bench.posts == []
    bench.step(child("s-kid"))
    assert replies(bench) == [("/permission/pr-1/reply", "once")]


@pytest.mark.parametrize("mode", ["auto", "ask", "deny"])
def test_a_stranger_is_rejected_in_every_mode_and_never_offered(mode: str) -> None:
    bench = Bench(mode=mode).running().step(child("s-x", None), permission("pr-1", "s-x"), TimerFired("hold:pr-1"))
    assert replies(bench) == [("/permission/pr-1/reply", "reject")]
    assert bench.of("ask") == []


def test_a_reply_that_fails_is_sent_once_more_and_then_the_turn_is_aborted() -> None:
    bench = Bench().running().step(permission("pr-1"), PostDone("pr-1", 500))
    assert replies(bench) == [("/permission/pr-1/reply", "once")] * 2
    assert bench.aborts == 0
    bench.step(PostDone("pr-1", None))
    assert bench.aborts == 1
    assert [line["code"] for line in bench.of("warning")] == ["REPLY_FAILED"]


def test_a_reply_whose_answer_was_lost_is_good_when_the_server_says_it_has_it() -> None:
    bench = Bench().running().step(permission("pr-1"), PostDone("pr-1", None))
    bench.step(event("permission.replied", sessionID=ROOT, requestID="pr-1", reply="once"), PostDone("pr-1", 404))
    assert bench.aborts == 0
    assert [line["how"] for line in bench.of("asked")] == ["allowed"]


def test_a_permission_that_another_one_allowed_ends_the_turn() -> None:
    bench = Bench(mode="ask").running().step(permission("pr-1"))
    bench.step(event("permission.replied", sessionID=ROOT, requestID="pr-1", reply="once"))
    assert bench.aborts == 1
    assert [line["reason"] for line in bench.of("retire")] == ["ANSWERED_BY_ANOTHER"]


# --- questions --------------------------------------------------------------------------------------------------------
def question(*questions: dict[str, Any]) -> ServerEvent:
    return event("question.asked", id="que_1", sessionID=ROOT, questions=list(questions))


ONE: dict[str, Any] = {"question": "Which?", "header": "H", "options": [{"label": "A", "description": "a"}]}
MANY = {**ONE, "multiple": True}


@pytest.mark.parametrize("mode", ["auto", "ask", "deny"])
def test_a_question_goes_to_the_client_in_every_mode(mode: str) -> None:
    bench = Bench(mode=mode).running().step(question(ONE, MANY))
    (ask,) = bench.of("ask")
    assert [one["multiple"] for one in ask["questions"]] == [False, True]
    assert bench.posts == []


@pytest.mark.parametrize(
    "answers", [(), (("A",),), (("A",), ("A",), ("A",)), (("A",), ()), (("A", "B"), ("A",)), (("",), ("A",))]
)
def test_answers_of_the_wrong_number_or_shape_are_refused_and_the_question_stays_open(
    answers: tuple[tuple[str, ...], ...],
) -> None:
    bench = Bench().running().step(question(ONE, MANY), AnswerCame("que_1", "question", answers=answers))
    assert bench.posts == []
    assert [line["cause"] for line in bench.of("refused")] == ["ANSWER_SHAPE"]
    bench.step(AnswerCame("que_1", "question", answers=(("A",), ("A", "free text"))))
    assert [(post.path, post.body) for post in bench.posts] == [
        ("/question/que_1/reply", {"answers": [["A"], ["A", "free text"]]})
    ]


def test_a_question_is_answered_once() -> None:
    bench = Bench().running().step(question(ONE), AnswerCame("que_1", "question", answers=(("A",),)))
    bench.step(AnswerCame("que_1", "question", answers=(("A",),)))
    assert len(bench.posts) == 1
    assert [line["cause"] for line in bench.of("refused")] == ["REQUEST_NOT_OPEN"]


def test_a_rejected_question_is_rejected_natively() -> None:
    bench = Bench().running().step(question(ONE), AnswerCame("que_1", "question", message="nobody there"))
    assert [(post.path, post.body) for post in bench.posts] == [("/question/que_1/reject", {})]


def test_a_network_request_of_kilo_is_no_question_and_is_rejected() -> None:
    bench = Bench(KILO).running().step(event("session.network.asked", id="que_9", sessionID=ROOT, message="no route"))
    assert [post.path for post in bench.posts] == ["/network/que_9/reject"]
    assert bench.of("ask") == []
    assert [line["code"] for line in bench.of("warning")] == ["PROVIDER_UNREACHABLE"]


def test_a_suggestion_of_kilo_is_dismissed() -> None:
    bench = Bench(KILO).running().step(event("suggestion.shown", id="sug_1", sessionID=ROOT))
    assert [post.path for post in bench.posts] == ["/suggestion/sug_1/dismiss"]


# --- abort ------------------------------------------------------------------------------------------------------------
def test_an_abort_is_sent_once_and_its_end_is_judged_like_any() -> None:
    bench = Bench().running().step(AbortAsked(), AbortAsked(), AbortDone(True))
    assert bench.aborts == 1
    aborted = answered(finish=None, error={"name": "MessageAbortedError"})
    bench.idle_and_quiet().step(EndRead(False, [ASKED, aborted]))
    assert (bench.settled["outcome"], bench.settled["reason"]) == ("cancelled", "ABORTED")


def test_an_abort_in_a_retrys_pause_leaves_neither_finish_nor_error_and_is_a_cancel() -> None:
    bench = Bench().running().step(status("retry", attempt=1), AbortAsked(), AbortDone(True)).idle_and_quiet()
    bench.step(EndRead(False, [ASKED, answered(finish=None)]))
    assert bench.settled["outcome"] == "cancelled"


def test_a_turn_that_was_complete_before_the_abort_is_complete() -> None:
    bench = Bench().running().step(AbortAsked(), AbortDone(True)).idle_and_quiet().step(good())
    assert bench.settled["outcome"] == "completed"


def test_an_abort_with_a_permission_open_clears_it() -> None:
    bench = Bench(mode="ask").running().step(permission("pr-1"), AbortAsked(), AbortDone(True))
    assert replies(bench) == [("/permission/pr-1/reply", "reject")]
    assert [line["how"] for line in bench.of("asked")] == ["gone"]
    bench.step(AnswerCame("pr-1", "permission", allow=True))
    assert len(bench.posts) == 1


def test_an_abort_before_the_prompt_sends_no_prompt() -> None:
    bench = Bench().step(Begun(), AbortAsked(), Subscribed())
    assert (bench.prompts, [line["cause"] for line in bench.of("broken")]) == (0, ["ABORTED_BEFORE_PROMPT"])


def test_an_abort_while_the_prompt_is_under_way_follows_it() -> None:
    bench = Bench().step(Begun(), Subscribed(), AbortAsked())
    assert bench.aborts == 0
    assert bench.step(PromptTaken()).aborts == 1


def test_an_abort_that_no_idle_follows_is_looked_after_and_given_up() -> None:
    bench = Bench().running().step(AbortAsked(), AbortDone(True))
    for _ in range(3):
        bench.step(TimerFired("abort"), EndRead(True))
    assert bench.reads == 3
    bench.step(TimerFired("abort"))
    assert [line["cause"] for line in bench.of("broken")] == ["ABORT_UNANSWERED"]


# --- the prompt -------------------------------------------------------------------------------------------------------
def test_a_refused_prompt_breaks_the_turn_without_an_abort() -> None:
    bench = Bench().step(Begun(), Subscribed(), PromptFailed(404, "no session"))
    assert (bench.aborts, [line["cause"] for line in bench.of("broken")]) == (0, ["PROMPT_REFUSED"])


def test_a_prompt_of_which_nothing_is_known_is_never_sent_again() -> None:
    bench = Bench().step(Begun(), Subscribed(), PromptFailed(None, "cut"))
    assert (bench.prompts, bench.aborts) == (1, 1)
    assert [line["cause"] for line in bench.of("broken")] == ["PROMPT_UNCONFIRMED"]


def test_nothing_of_the_turn_is_told_before_its_prompt_is_taken() -> None:
    bench = Bench().step(
        Begun(), Subscribed(), user(OURS), event("message.updated", info=info("m-a")), part("m-a", "hi")
    )
    assert bench.said == []
    bench.step(PromptTaken())
    assert [line["ev"] for line in bench.said] == ["accepted", "started", "delta"]


# --- the machine ------------------------------------------------------------------------------------------------------
def test_an_event_before_the_begin_raises_and_changes_nothing() -> None:
    bench = Bench()
    for wrong in (Subscribed(), PromptTaken(), good(), AbortAsked(), TimerFired("quiet")):
        with pytest.raises(IllegalEventError):
            bench.turn.step(wrong)
    assert bench.turn.state is TurnState.NEW
    assert bench.turn.step(Begun()) == [Subscribe()]


@pytest.mark.parametrize("wrong", [Begun(), Subscribed(), PromptTaken(), PromptFailed(500, "")])
def test_a_second_begin_of_a_running_turn_raises_and_changes_nothing(wrong: Any) -> None:
    bench = Bench().running()
    with pytest.raises(IllegalEventError):
        bench.turn.step(wrong)
    assert bench.turn.state is TurnState.RUNNING


def test_after_the_end_nothing_has_an_effect() -> None:
    bench = Bench().running().idle_and_quiet().step(good())
    count = len(bench.said)
    bench.step(
        status("busy"), idle(), permission("pr-1"), TimerFired("quiet"), good(), AbortAsked(), SubscriptionLost("x")
    )
    assert (len(bench.said), bench.posts, bench.aborts) == (count, [], 0)
