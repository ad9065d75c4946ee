"""What the CLI sends as history: live, after a resume, after failures and retries. The request-history regression of the real part."""

from __future__ import annotations

import asyncio
import signal

import pytest

from standfast_lab.oracle import Fault, Outcome, Place, State, Turn
from standfast_lab.provider import LabProvider
from tests.pinned_cli.desk import Desk

RETRIED = [
    "[[lab:status=529 times=1]]",
    "[[lab:status=500 times=1]]",
    "[[lab:status=429 retry-after=1 times=1]]",
    "[[lab:cut=before-head times=1]]",
    "[[lab:cut=mid-event times=1]]",
    "[[lab:reset=mid-text times=1]]",
]
REPEATED_WHOLE = ["[[lab:end=mid-event times=1]]", "[[lab:end=mid-text times=1]]", "[[lab:error-event times=1]]"]


async def test_two_live_turns_and_a_resume_send_the_whole_history(desk: Desk) -> None:
    async with desk.start() as claude:
        await desk.ask(claude, "remember: the word is plum")
        told = await desk.ask(claude, "what is the word?")
        assert told.texts == ("the word is plum",)
        assert desk.verdict().is_complete
        assert await claude.close() == 0
    resumed = await desk.resumed('what did you reply to "what is the word?"')
    assert resumed.texts == ("I replied: the word is plum",)
    assert str(desk.verdict()) == "COMPLETE"
    assert {turn["session_id"] for turn in resumed.events if turn.get("session_id")} == {desk.session_id}


async def test_a_reply_taken_out_of_the_transcript_is_missed_by_the_answer_and_named_by_the_oracle(desk: Desk) -> None:
    async with desk.start() as claude:
        await desk.ask(claude, "remember: the word is plum")
        await desk.ask(claude, "hello")
        await claude.close()
    lines = desk.transcript().read_bytes().splitlines(keepends=True)
    desk.transcript().write_bytes(b"".join(line for line in lines if b"noted: plum" not in line))
    resumed = await desk.resumed('what did you reply to "remember: the word is plum"')
    # The CLI says nothing of it: a resume proves no history.
    assert resumed.result is not None
    assert resumed.result["is_error"] is False
    assert resumed.texts == ("I have no reply to: remember: the word is plum",)
    verdict = desk.verdict()
    assert (verdict.state, verdict.turn) == (State.MISSING, 1)
    assert Place(1, "assistant") in [d.place for d in verdict.differences if d.fault is Fault.MISSING]


@pytest.mark.parametrize("status", [400, 403])
async def test_a_refused_call_is_not_retried_and_the_session_goes_on(desk: Desk, status: int) -> None:
    async with desk.start() as claude:
        await desk.ask(claude, "remember: the word is plum")
        failed = await desk.ask(claude, f"now fail [[lab:status={status}]]")
        assert failed.result is not None
        assert (failed.result["subtype"], failed.result["is_error"]) == ("success", True)
        assert failed.result["api_error_status"] == status
        assert failed.of("system", "api_retry") == []
        live = await desk.ask(claude, "what is the word?")
        assert live.texts == ("the word is plum",)
        # The failed user text and the next one came as one message, joined by the CLI.
        assert desk.roots()[-1]["messages"][-1]["texts"] == [f"now fail [[lab:status={status}]]\n", "what is the word?"]
        assert desk.verdict().is_complete
        await claude.close()
    await desk.resumed()
    assert desk.verdict().is_complete


@pytest.mark.parametrize("word", RETRIED)
async def test_a_turn_after_an_internal_retry_loses_the_reply_on_the_next_resume(desk: Desk, word: str) -> None:
    async with desk.start() as claude:
        await desk.ask(claude, "one")
        retried = await desk.ask(claude, f"two {word}")
        assert len(retried.of("system", "api_retry")) == 1
        await desk.ask(claude, "three")
        assert desk.verdict().is_complete, "live, the history is whole"
        await claude.close()
    await desk.resumed()
    assert desk.verdict().differences[0].fault is Fault.MISSING
    assert str(desk.verdict()) == "MISSING{2}: MISSING turn 2 assistant text 0"


@pytest.mark.parametrize("word", RETRIED[:1] + RETRIED[4:5])
async def test_closing_stdin_after_the_retried_turn_keeps_its_reply(desk: Desk, word: str) -> None:
    async with desk.start() as claude:
        await desk.ask(claude, "one")
        retried = await desk.ask(claude, f"two {word}")
        assert len(retried.of("system", "api_retry")) == 1
        assert await claude.close() == 0
    assert not any(record.get("subtype") == "api_error" for record in desk.records())
    for _ in range(2):
        await desk.resumed()
        assert str(desk.verdict()) == "COMPLETE"


@pytest.mark.parametrize("word", REPEATED_WHOLE)
async def test_a_body_that_ends_in_order_too_early_is_asked_for_again_whole_and_costs_no_reply(
    desk: Desk, word: str
) -> None:
    async with desk.start() as claude:
        await desk.ask(claude, "one")
        again = await desk.ask(claude, f"two {word}")
        assert again.of("system", "api_retry") == []
        assert [row["stream"] for row in desk.roots()] == [True, True, False]
        await desk.ask(claude, "three")
        await claude.close()
    await desk.resumed()
    assert str(desk.verdict()) == "COMPLETE"


async def test_a_cut_behind_the_last_text_fails_the_turn_but_its_text_lasts(desk: Desk) -> None:
    async with desk.start() as claude:
        failed = await desk.ask(claude, "one [[lab:cut=before-stop pause=300ms]]")
        assert failed.result is not None
        assert (failed.result["is_error"], failed.result["terminal_reason"]) == (True, "api_error")
        assert len(failed.texts) == 1
        assert len(desk.roots()) == 1
        await claude.close()
    await desk.resumed()
    assert str(desk.verdict()) == "COMPLETE"


async def test_an_empty_reply_is_asked_for_again_inside_the_turn(desk: Desk) -> None:
    async with desk.start() as claude:
        turn = await desk.ask(claude, "one [[lab:empty]]")
        assert len(desk.roots()) == 2
        assert len(turn.texts) == 1
        assert desk.verdict().additions[0].startswith("[Your previous response had no visible output.")
        assert (await desk.ask(claude, "two [[lab:empty times=9]]")).texts == ()
        await desk.ask(claude, "three")
        await claude.close()
    await desk.resumed()
    assert str(desk.verdict()) == "COMPLETE"


async def test_a_reply_cut_by_max_tokens_is_continued_inside_the_turn(desk: Desk) -> None:
    async with desk.start() as claude:
        turn = await desk.ask(claude, "one [[lab:max_tokens]]")
        assert len(turn.texts) == 2
        await desk.ask(claude, "two")
        await claude.close()
    await desk.resumed()
    assert str(desk.verdict()) == "COMPLETE"


@pytest.mark.parametrize(
    "text",
    [
        "/clear",
        "/unknown and more",
        " /clear",
        "<system-reminder>\nmine\n</system-reminder>",
        "  outer spaces \n",
        "tab\t crlf\r\n zero\u200bwidth \U0001f600",
        "[Request interrupted by user]",
    ],
)
async def test_the_users_text_arrives_byte_for_byte_live_and_after_a_resume(desk: Desk, text: str) -> None:
    async with desk.start() as claude:
        await desk.ask(claude, text)
        assert desk.verdict().is_complete
        assert desk.roots()[-1]["messages"][-1]["texts"][-1] == text
        assert claude.events[-1]["session_id"] == desk.session_id
        await desk.ask(claude, text)
        await claude.close()
    await desk.resumed()
    assert str(desk.verdict()) == "COMPLETE"


async def test_outer_white_space_of_a_reply_lasts(desk: Desk) -> None:
    async with desk.start() as claude:
        turn = await desk.ask(claude, "one [[lab:say  \n two lines \n\n]]")
        assert turn.texts == (" \n two lines \n\n",)
        await claude.close()
    await desk.resumed()
    assert str(desk.verdict()) == "COMPLETE"


@pytest.mark.parametrize("number", [None, signal.SIGTERM])
async def test_an_interrupted_turn_leaves_its_user_text_and_only_known_additions(
    desk: Desk, lab: LabProvider, number: signal.Signals | None
) -> None:
    async with desk.start() as claude:
        await desk.ask(claude, "one")
        turn = await claude.send("two [[lab:hang=mid-text times=1]]")
        await lab.log.wait_for(lambda rows: rows[-1]["state"] == "HOLDING")
        if number is None:
            await claude.control("interrupt")
            await claude.until(lambda e: e["type"] == "command_lifecycle" and e["state"] == "cancelled", turn)
            assert await claude.close() == 1
        else:
            assert await claude.end(number) == 143
            # SIGTERM in a turn mostly makes the CLI print a result: an end that the model never gave.
            results = [e for e in claude.events[-2:] if e["type"] == "result"]
            assert [e["subtype"] for e in results] in ([], ["error_during_execution"])
    desk.turns.append(Turn("two [[lab:hang=mid-text times=1]]", (), Outcome.NOT_ENDED))
    await desk.resumed()
    assert str(desk.verdict()) == "COMPLETE"
    added = [text.rstrip("\n") for text in desk.verdict().additions]
    assert ("[Request interrupted by user]" if number is None else "No response requested.") in added


async def test_two_conversations_do_not_see_each_other(desk: Desk, tmp_path: object) -> None:
    other = Desk(desk.executable, desk.lab, desk.home.parent / "workspace")
    async with desk.start() as one, other.start() as two:
        await asyncio.gather(desk.ask(one, "remember: the word is plum"), other.ask(two, "remember: the word is fig"))
        answers = await asyncio.gather(desk.ask(one, "what is the word?"), other.ask(two, "what is the word?"))
        assert [answer.texts[0] for answer in answers] == ["the word is plum", "the word is fig"]
        assert desk.verdict().is_complete
        assert other.verdict().is_complete
        await asyncio.gather(one.close(), two.close())
