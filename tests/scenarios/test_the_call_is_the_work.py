"""The stream that carries a turn is its work: however it ends, the native turn ends with it, and the slot is free within 5 s."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import grpc
import pytest

from standfast.sandbox.v1 import sandbox_manager_pb2 as sandbox_pb
from standfast.types.v1 import types_pb2 as types
from standfast_client.sdk import Expect, new_id
from tests.scenarios.bare_runner import BareRunner
from tests.scenarios.stage import Stage

pytestmark = [pytest.mark.engine("local"), pytest.mark.asyncio(loop_scope="module")]

SLOT_FREE_S = 5.0


class CutLine:
    """A TCP line that can be cut: what goes through it stops without a word from either end."""

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        self._server.close()

    def cut(self) -> None:
        """Resets both ends."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        self._writers += [writer, far_writer]
        async with asyncio.TaskGroup() as both:
            both.create_task(_copy(reader, far_writer))
            both.create_task(_copy(far_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        return
    finally:
        writer.close()


@pytest.mark.parametrize("way", ["cancel", "deadline", "cut"])
async def test_a_call_that_ends_in_any_way_ends_the_native_turn_and_frees_the_slot(
    stage: Stage, conversation: str, way: str
) -> None:
    first = await stage.begin(conversation)
    line = CutLine(stage.fleet.host_agent.address)
    tool = '{"command": "sleep 300; touch after-the-cancel", "description": "wait"}'
    text = f"work [[lab:tool=Bash {tool}]]"
    async with line as address, BareRunner(stage.fleet.manager.address, conversation, new_id("t"), text) as bare:
        await bare.claim(types.EXPECT_CONTINUE)
        await bare.prepare()
        await bare.attach(timeout_s=3.0 if way == "deadline" else None, address=address if way == "cut" else None)
        await bare.admit()
        await bare.send()
        await bare.until_sent()
        await stage.until("the tool runs", lambda: bool(stage.processes("sleep 300; touch")), 10.0)
        if way == "cancel":
            bare.call.cancel()
        elif way == "cut":
            line.cut()
        else:
            with pytest.raises(grpc.aio.AioRpcError) as over:
                await bare.until_observed()
            assert over.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        ended_at = time.monotonic()
        await stage.until("the journal has its end", journal_is_over(stage, bare.grant.activation_id), SLOT_FREE_S)
        assert not stage.processes("sleep 300; touch")
        assert time.monotonic() - ended_at < SLOT_FREE_S
        entry = await bare.journal()
        assert (entry.state, entry.forwarded) == ("OBSERVED", True)
        # The interrupt brought a native end: the turn is settled, and its locator is the one it was.
        settlement = await bare.settle(
            sandbox_pb.RunnerClaim(verdict=types.VERDICT_CONFIRMED, native_session_id=first.session, failed=True)
        )
        assert settlement.outcome == types.OUTCOME_CANCELLED
        assert settlement.locator.native_session_id == first.session
    after = await stage.ask(conversation, "what is the colour?")
    assert (after.state, after.text, after.session) == ("RESTORED", "the colour is green", first.session)
    assert not list(stage.sandboxes.glob("*/workspace/after-the-cancel"))


def journal_is_over(stage: Stage, activation_id: str) -> Callable[[], bool]:
    def is_over() -> bool:
        rows = stage.rows("host", "select state from activations where activation_id = ?", activation_id)
        return [row["state"] for row in rows] == ["OBSERVED"]

    return is_over


async def test_a_process_that_ends_its_turn_and_does_not_leave_keeps_the_slot_no_longer(
    stage: Stage, conversation: str
) -> None:
    """It takes the interrupt, says so, and hangs with its stdin closed."""
    await stage.begin(conversation)
    text = "hang [[lab:slow=600x50ms]] [[stub:spawn=kill -STOP $PPID at=completed]]"
    async with BareRunner(stage.fleet.manager.address, conversation, new_id("t"), text) as bare:
        await bare.claim(types.EXPECT_CONTINUE)
        await bare.prepare()
        await bare.attach()
        await bare.admit()
        await bare.send()
        await bare.until_sent()
        bare.call.cancel()
        ended_at = time.monotonic()
        await stage.until("the journal has its end", journal_is_over(stage, bare.grant.activation_id), SLOT_FREE_S)
        assert time.monotonic() - ended_at < SLOT_FREE_S
        assert not stage.processes(bare.grant.locator.native_session_id)


async def test_a_runner_that_leaves_while_its_activation_is_made_leaves_nothing_open(stage: Stage) -> None:
    sessions = []
    for after_ms in (2, 3, 4, 6, 8, 12, 20, 40):
        async with BareRunner(stage.fleet.manager.address, f"early-{after_ms}", new_id("t"), "hello") as bare:
            await bare.claim(types.EXPECT_NEW)
            sessions.append((await bare.prepare()).locator.native_session_id)
            with suppress(TimeoutError):
                async with asyncio.timeout(after_ms / 1000):
                    await bare.attach()
            bare.call.cancel()
    open_ones = "select activation_id from activations where state = 'OPEN'"
    await stage.until("nothing is open", lambda: not stage.rows("host", open_ones))
    await stage.until("nothing runs", lambda: not any(stage.processes(session) for session in sessions))


async def test_a_runner_that_only_hangs_holds_nothing_after_it_is_ended(stage: Stage, conversation: str) -> None:
    await stage.begin(conversation)
    turn_id = new_id("t")
    stream = stage.client.start_turn(
        conversation, "long [[lab:slow=600x50ms]]", expect=Expect.CONTINUE, turn_id=turn_id
    )
    view = aiter(stream)
    async for event in view:
        if event.HasField("text_delta"):
            break
    await close(view)
    stage.fleet.runner.freeze()
    await stage.fleet.runner.kill()
    newest = "select activation_id from activations order by rowid desc limit 1"
    activation_id = str(stage.rows("host", newest)[0]["activation_id"])
    await stage.until("the journal has its end", journal_is_over(stage, activation_id), SLOT_FREE_S)
    await stage.fleet.restart(stage.fleet.runner)
    stage.reconnect()
    while (await stage.client.get_turn(conversation, turn_id)).state not in ("SETTLED", "ENDED"):  # noqa: ASYNC110 (another process)
        await asyncio.sleep(0.05)
    after = await stage.ask(conversation, "what is the colour?")
    assert (after.state, after.text) == ("RESTORED", "the colour is green")
    killed = await stage.client.get_turn(conversation, turn_id)
    assert killed.outcome in (types.OUTCOME_INTERRUPTED, types.OUTCOME_CANCELLED)
    assert len([text for text in stage.prompts() if text.startswith("long [[lab:slow=600x50ms]]")]) == 1


async def close(view: AsyncIterator[object]) -> None:
    await view.aclose()  # type: ignore[attr-defined]  # it is a generator


async def test_the_managers_verdict_does_not_change_with_the_runners_claim(stage: Stage) -> None:
    """The same turn, four claims: true, another session, a contradiction, a failure. What the manager found stays what it found."""
    other = "0b5e55ed-dead-4000-8000-00000000beef"
    found = []
    for number, claim in enumerate(
        (
            sandbox_pb.RunnerClaim(verdict=types.VERDICT_CONFIRMED),
            sandbox_pb.RunnerClaim(verdict=types.VERDICT_CONFIRMED, native_session_id=other),
            sandbox_pb.RunnerClaim(verdict=types.VERDICT_CONTRADICTED),
            sandbox_pb.RunnerClaim(verdict=types.VERDICT_CONFIRMED, failed=True),
        )
    ):
        async with BareRunner(stage.fleet.manager.address, f"claim-{number}", "t1", "hello") as bare:
            await bare.to_the_message()
            await bare.until_observed()
            if not claim.native_session_id:
                claim.native_session_id = bare.grant.locator.native_session_id
            settlement = await bare.settle(claim)
            found.append(settlement)
            again = await bare.settle(sandbox_pb.RunnerClaim(verdict=types.VERDICT_CONFIRMED))
            assert again == settlement
    assert [one.saved for one in found] == [True, False, False, False]
    assert {(one.manager_verdict, one.store_verdict) for one in found} == {
        (types.VERDICT_CONFIRMED, types.STORE_VERDICT_CONFIRMED)
    }
    assert [{f.code for f in one.findings} for one in found] == [set(), *[{"VERDICTS_DIFFER"}] * 3]
