"""`chat` on a real terminal: a prompt, live text, Ctrl-C and Ctrl-D."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import sys
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from standfast.types.v1 import types_pb2 as types
from tests.wire.client_fake_runner import Script, events_of, fake_runner, turn_record

CTRL_C, CTRL_D = b"\x03", b"\x04"


class Terminal:
    """The other end of a command's terminal."""

    def __init__(self, process: asyncio.subprocess.Process, master: int) -> None:
        self.process = process
        self._master = master
        self._came = asyncio.Event()
        self.shown = ""
        asyncio.get_running_loop().add_reader(master, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._master, 65536)
        except OSError:  # the last process on the terminal is gone
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._master)
        self.shown += data.decode("utf-8", "replace")
        self._came.set()

    async def until(self, text: str, times: int = 1) -> None:
        """Returns when `text` was shown so often."""
        async with asyncio.timeout(30):
            while self.shown.count(text) < times:
                self._came.clear()
                await self._came.wait()

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    async def code_after(self, keys: bytes) -> int:
        """Types until the command has ended: a key in the instant between the prompt and its reading is not heard."""
        async with asyncio.timeout(30):
            while True:
                self.type(keys)
                try:
                    return await asyncio.wait_for(asyncio.shield(self.process.wait()), 1)
                except TimeoutError:
                    continue

    async def code(self) -> int:
        return await asyncio.wait_for(self.process.wait(), 30)


def _own_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@asynccontextmanager
async def on_terminal(*words: str) -> AsyncIterator[Terminal]:
    master, slave = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "standfast_client",
        *words,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=_own_terminal,
        env=os.environ | {"TERM": "xterm", "NO_COLOR": "1"},
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        asyncio.get_running_loop().remove_reader(master)
        os.close(master)


async def test_text_appears_while_the_turn_runs_and_once() -> None:
    script = Script(events=events_of("hello world"), hold_after=4)
    async with fake_runner(script) as address, on_terminal("chat", "--runner", address) as terminal:
        await terminal.until("you> ")
        terminal.type(b"/clear \n")
        await asyncio.wait_for(script.held.wait(), 30)
        await terminal.until("hello")
        assert "hello world" not in terminal.shown
        script.release.set()
        await terminal.until("you> ", times=2)
        assert terminal.shown.count("hello world") == 1
        assert script.started[0].message == "/clear "
        terminal.type(CTRL_D)
        assert await terminal.code() == 0
        assert "standfast chat --conversation c-" in terminal.shown


async def test_ctrl_c_on_the_prompt_leaves_the_chat() -> None:
    async with fake_runner(Script()) as address, on_terminal("chat", "--runner", address) as terminal:
        await terminal.until("you> ")
        assert await terminal.code_after(CTRL_C) == 0
        assert "Traceback" not in terminal.shown


async def test_ctrl_c_twice_in_a_turn_cancels_it_and_the_chat_goes_on() -> None:
    cancelled = turn_record(outcome=types.OUTCOME_CANCELLED)
    script = Script(events=events_of("x", cancelled), hold_after=3)
    async with fake_runner(script) as address, on_terminal("chat", "--runner", address) as terminal:
        await terminal.until("you> ")
        terminal.type(b"go\n")
        await asyncio.wait_for(script.held.wait(), 30)
        terminal.type(CTRL_C)
        await terminal.until("The turn runs on")
        terminal.type(CTRL_C)
        await terminal.until("CANCELLED")
        await terminal.until("you> ", times=2)
        assert len(script.cancelled) == 1
        terminal.type(CTRL_D)
        assert await terminal.code() == 4
