"""The sandbox side's launch spec, grammar, tap reader, store reader and store check, on the pinned CLI itself."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sandbox_manager.agents.claude_code.gate_grammar import initialize_frame
from sandbox_manager.agents.port import GateContext, UserFrame
from sandbox_manager.agents.registry import agent_named
from sandbox_manager.core.store_check import AdmittedTurn, StoreCheck, check_store
from sandbox_manager.core.values import LaunchSettings, StoreReading, StoreRecord, TapFindings
from standfast_lab.provider import LabProvider

AGENT = agent_named("claude-code")
CONTEXT = GateContext("/workspace", "auto", None, (), None, resumes=False)
DEADLINE_S = 30.0


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Process:
    """One CLI process, started by the agent's own launch spec; everything it printed is kept as bytes."""

    def __init__(self, process: asyncio.subprocess.Process, transcript: Path) -> None:
        self._process, self._transcript = process, transcript
        self.tap = bytearray()
        self._grew = asyncio.Event()

    async def pump(self) -> None:
        assert self._process.stdout is not None
        while data := await self._process.stdout.read(65536):
            self.tap += data
            self._grew.set()

    def write(self, frame: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(frame)

    async def until(self, is_so: Callable[[TapFindings], bool], message_id: str | None, start: int) -> TapFindings:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                self._grew.clear()
                reader = AGENT.tap_reader(message_id=message_id, start_offset=start)
                reader.feed(bytes(self.tap[start:]))
                if is_so(reader.findings()):
                    return reader.findings()
                await self._grew.wait()

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await asyncio.wait_for(self._process.wait(), DEADLINE_S)

    async def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        await asyncio.wait_for(self._process.wait(), DEADLINE_S)

    def read_store(self, record: StoreRecord | None) -> StoreReading:
        start = record.length if record else 0
        if not self._transcript.exists():
            return StoreReading("ABSENT", None, None, start, None, None)
        data = self._transcript.read_bytes()
        prefix = sha(data[:start]) if len(data) >= start else None
        segment = AGENT.read_segment(data[start:], from_start=start == 0)
        return StoreReading(None, len(data), sha(data), start, prefix, segment)


class Session:
    """One native session through several processes, with the record that each settlement leaves."""

    def __init__(self, executable: Path, lab: LabProvider, folder: Path) -> None:
        self._executable, self._lab, self._folder = executable, lab, folder
        self.session_id = str(uuid.uuid4())
        self.record: StoreRecord | None = None
        self.leftovers: tuple[AdmittedTurn, ...] = ()
        for name in ("home", "tmp", "workspace"):
            (folder / name).mkdir()

    @asynccontextmanager
    async def process(self, *, resume: bool) -> AsyncIterator[Process]:
        workspace = str((self._folder / "workspace").resolve())
        settings = LaunchSettings(
            agent="claude-code",
            native_session_id=self.session_id,
            resume=resume,
            home=str(self._folder / "home"),
            tmp=str(self._folder / "tmp"),
            workspace=workspace,
            executable=str(self._executable),
            model_base_url=self._lab.base_url,
            slot_secret="lab",
            model="claude-sonnet-4-5",
            isolated=False,
        )
        spec = AGENT.launch(settings)
        location = AGENT.store_location(AGENT.locator(self.session_id, workspace))
        started = await asyncio.create_subprocess_exec(
            *spec.argv,
            cwd=spec.cwd,
            env=dict(spec.env),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        process = Process(started, (self._folder / "home").joinpath(*location.components))
        pump = asyncio.create_task(process.pump())
        try:
            process.write(initialize_frame("h1"))
            await process.until(lambda found: found.handshake == "OK", None, 0)
            yield process
        finally:
            if started.returncode is None:
                await process.kill()
            await asyncio.wait_for(pump, DEADLINE_S)

    def send(self, process: Process, text: str) -> tuple[str, int]:
        message_id, start = str(uuid.uuid4()), len(process.tap)
        content = [{"type": "text", "text": text}, {"type": "text", "text": ""}]
        frame = {"type": "user", "uuid": message_id, "message": {"role": "user", "content": content}}
        line = json.dumps(frame, ensure_ascii=False).encode() + b"\n"
        assert AGENT.classify(line, CONTEXT) == UserFrame(text.encode(), message_id, literal=True)
        process.write(line)
        return message_id, start

    async def turn(
        self, process: Process, text: str, *, interrupt_when: Callable[[TapFindings], bool] | None = None
    ) -> TapFindings:
        """One turn to its end and its store to disk; what the store check finds is asserted to be in order."""
        message_id, start = self.send(process, text)
        if interrupt_when is not None:
            await process.until(interrupt_when, message_id, start)
            process.write(AGENT.interrupt_frame("i1"))
        found = await process.until(lambda f: f.end is not None and f.lifecycle_closed, message_id, start)
        assert (found.session_ids, found.identity_before_output) == ((self.session_id,), True)
        check = await self._settled(
            process, AdmittedTurn(message_id, sha(text.encode()), found.assistant, found.printed)
        )
        assert check.reasons == ()
        self.record, self.leftovers = check.record, ()
        return found

    async def _settled(self, process: Process, current: AdmittedTurn) -> StoreCheck:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                check = self.check(process, current)
                if not (check.promised or check.late) and all(
                    reason.code != "HISTORY_TORN" for reason in check.reasons
                ):
                    return check
                # The CLI gives no sign of its own that its history is on disk.
                await asyncio.sleep(0.01)

    def check(self, process: Process, current: AdmittedTurn | None = None) -> StoreCheck:
        return check_store(
            self.record,
            process.read_store(self.record),
            session_id=self.session_id,
            leftovers=self.leftovers,
            current=current,
        )

    def leave(self, process: Process, message_id: str, start: int, text: str) -> None:
        """What a killed turn left is explained by its admission."""
        reader = AGENT.tap_reader(message_id=message_id, start_offset=start)
        reader.feed(bytes(process.tap[start:]))
        found = reader.findings()
        assert found.end is None
        self.leftovers = (AdmittedTurn(message_id, sha(text.encode()), found.assistant, found.printed),)


@pytest.fixture
def session(claude_executable: Path, lab: LabProvider, tmp_path: Path) -> Session:
    return Session(claude_executable, lab, tmp_path)


async def test_every_kind_of_turn_is_explained_and_kept(session: Session) -> None:
    async with session.process(resume=False) as process:
        for text, is_error in (
            ("hello", False),
            ("/clear", False),
            ('[[lab:tool=Bash {"command":"echo one","description":"x"}]] done', False),
            ("[[lab:status=403]]", True),
            ("after the failure", False),
            ("[[lab:think=hmm]] think", False),
            ("[[lab:empty]] nothing first", False),
            ("[[lab:max_tokens]] long", False),
            ("[[lab:refusal]] no", True),
            ("[[lab:task do a thing]] sub", False),
            ("a\u2028b\u2029c\u0085 \x01 \ufeff  spaces  \n", False),
            ("z" * 1_000_000, False),
        ):
            found = await session.turn(process, text)
            assert found.end is not None
            assert found.end.is_error is is_error
            assert AGENT.must_retire(found) is None
        await process.close()
        assert session.check(process).reasons == ()
    async with session.process(resume=True) as process:
        assert session.check(process).reasons == ()
        await session.turn(process, "count")


async def test_a_turn_with_a_retry_is_retired_and_its_history_holds(session: Session) -> None:
    async with session.process(resume=False) as process:
        await session.turn(process, "hello")
        found = await session.turn(process, "[[lab:status=500 times=1]] once more")
        assert AGENT.must_retire(found) == "API_RETRY_SEEN"
        await process.close()
        assert session.check(process).reasons == ()
    async with session.process(resume=True) as process:
        await session.turn(process, "count")


async def test_with_that_rule_off_the_lost_reply_is_found_out(session: Session) -> None:
    async with session.process(resume=False) as process:
        await session.turn(process, "hello")
        await session.turn(process, "[[lab:status=500 times=1]] once more")
        message_id, start = session.send(process, "in the same process")
        found = await process.until(lambda f: f.end is not None and f.lifecycle_closed, message_id, start)
        text = sha(b"in the same process")
        check = await session._settled(process, AdmittedTurn(message_id, text, found.assistant, found.printed))
        assert [reason.code for reason in check.reasons] == ["HISTORY_BROKEN"]


async def test_an_interrupted_turn_settles_and_its_records_are_explained(session: Session) -> None:
    async with session.process(resume=False) as process:
        await session.turn(process, "hello")
        before = len(process.tap)
        streaming = await session.turn(
            process,
            "[[lab:slow=40x50ms]] [[lab:say one two three four five six seven eight nine ten]]",
            interrupt_when=lambda found: found.message_started and b"content_block_delta" in process.tap[before:],
        )
        assert streaming.end is not None
        assert streaming.end.cancelled
        assert AGENT.must_retire(streaming) == "CANCELLED"
        await process.close()
        assert session.check(process).reasons == ()
    async with session.process(resume=True) as process:
        in_tool = await session.turn(
            process,
            '[[lab:tool=Bash {"command":"sleep 20","description":"x"}]]',
            interrupt_when=lambda found: len(found.printed) > 0,
        )
        assert in_tool.end is not None
        assert in_tool.end.cancelled
        await process.close()
        assert session.check(process).reasons == ()
    async with session.process(resume=True) as process:
        await session.turn(process, "count")


@pytest.mark.parametrize(
    ("text", "is_under_way"),
    [
        ('[[lab:tool=Bash {"command":"sleep 20","description":"x"}]]', lambda found: len(found.printed) > 0),
        ("[[lab:slow=40x50ms]] [[lab:say one two three four five six]]", lambda found: found.message_started),
        ("[[lab:hang]]", lambda found: found.agent_version is not None),
    ],
    ids=["in a tool", "while streaming", "before an answer"],
)
async def test_what_a_killed_process_left_is_explained_by_its_admission(
    session: Session, text: str, is_under_way: Callable[[TapFindings], bool]
) -> None:
    async with session.process(resume=False) as process:
        await session.turn(process, "hello")
        message_id, start = session.send(process, text)
        await process.until(is_under_way, message_id, start)
        await process.kill()
        session.leave(process, message_id, start, text)
    async with session.process(resume=True) as process:
        assert session.check(process).reasons == ()
        await session.turn(process, "count")
        await process.close()
        assert session.check(process).reasons == ()
