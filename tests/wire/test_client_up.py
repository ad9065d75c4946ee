"""`standfast up` with the real processes on `local`: up, used, refused a second time, and down with nothing left."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

Process = asyncio.subprocess.Process
READY_S = 90
PARTS = ["lab", "manager", "host-agent", "runner"]


async def start(*words: str) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "standfast_client",
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def run(*words: str) -> tuple[int | None, str, str]:
    process = await start(*words)
    out, err = await asyncio.wait_for(process.communicate(), READY_S)
    return process.returncode, out.decode(), err.decode()


class House:
    """A running `up`."""

    def __init__(self, process: Process, ready: dict[str, Any]) -> None:
        self.process = process
        self.ready = ready
        self.pids: dict[str, int] = ready["pids"]

    async def end(self) -> tuple[int, str]:
        """Its exit code and what it wrote to standard error, once it is over."""
        _, err = await asyncio.wait_for(self.process.communicate(), READY_S)
        assert self.process.returncode is not None
        return self.process.returncode, err.decode()

    async def all_gone(self) -> None:
        async with asyncio.timeout(20):
            while any(is_alive(pid) for pid in self.pids.values()):  # noqa: ASYNC110  # other processes set no event of ours
                await asyncio.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@asynccontextmanager
async def house(state: Path, *words: str) -> AsyncIterator[House]:
    process = await start("up", "--state", str(state), "--engine", "local", "--lab", "--json", *words)
    assert process.stdout is not None
    assert process.stderr is not None
    pid = process.pid
    try:
        line = await asyncio.wait_for(process.stdout.readline(), READY_S)
        assert line, (await process.stderr.read()).decode()
        yield House(process, json.loads(line))
    finally:
        if process.returncode is None:
            os.kill(pid, signal.SIGKILL)
            await process.wait()


@pytest.mark.engine("local")
async def test_a_house_comes_up_serves_and_goes_down_in_order(tmp_path: Path, tool_folder: Path) -> None:
    state = tmp_path / "state"
    async with house(state) as up:
        assert list(up.pids) == PARTS
        assert json.loads((state / "endpoints.json").read_text())["runner"] == up.ready["runner"]
        version, second, turn = await asyncio.gather(
            run("version", "--state", str(state), "--json"),
            run("up", "--state", str(state), "--engine", "local", "--lab"),
            run(
                "turn",
                "--state",
                str(state),
                "-c",
                "c",
                "--new",
                "--model",
                "claude-sonnet-4-5",
                "--json",
                "remember: the colour is teal",
            ),
        )
        assert [json.loads(line)["component"] for line in version[1].splitlines()] == ["client", "runner", "manager"]
        assert second[0] == 3
        assert "STATE_FOLDER_IN_USE" in second[2]
        assert turn[0] == 0, turn[1] + turn[2]
        settled = json.loads(turn[1].splitlines()[-1])["turn"]
        assert (settled["context_state"], settled["output_text"]) == ("NEW", "noted: teal")
        up.process.send_signal(signal.SIGINT)
        code, err = await up.end()
        assert code == 0
        assert re.findall(r"up +\| stopping ([\w-]+)", err) == list(reversed(PARTS))
        assert "was killed" not in err
        await up.all_gone()
    assert not (state / "endpoints.json").exists()


@pytest.mark.engine("local")
async def test_a_process_that_ends_by_itself_takes_the_house_down(tmp_path: Path, tool_folder: Path) -> None:
    async with house(tmp_path / "state") as up:
        os.kill(up.pids["manager"], signal.SIGKILL)
        code, err = await up.end()
        assert code == 1
        assert "manager ended by itself with code -9" in err
        await up.all_gone()


@pytest.mark.engine("local")
async def test_signals_in_the_middle_of_the_start_end_it_in_order(tmp_path: Path, tool_folder: Path) -> None:
    process = await start("up", "--state", str(tmp_path / "state"), "--engine", "local", "--lab")
    assert process.stderr is not None
    # The lab's first line: the manager is being started.
    await asyncio.wait_for(process.stderr.readline(), READY_S)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    out, err = await asyncio.wait_for(process.communicate(), READY_S)
    assert process.returncode == 0, err.decode()
    assert out == b""
    assert b"stopping lab" in err
    assert not (tmp_path / "state" / "endpoints.json").exists()


@pytest.mark.engine("local")
async def test_a_killed_house_leaves_nobody_behind(tmp_path: Path, tool_folder: Path) -> None:
    async with house(tmp_path / "state") as up:
        up.process.kill()
        await up.all_gone()
    # And its state folder is free for the next one.
    async with house(tmp_path / "state") as again:
        again.process.send_signal(signal.SIGTERM)
        assert (await again.end())[0] == 0


async def test_a_port_in_use_is_refused_before_anything_starts(tmp_path: Path, tool_folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = str(held.getsockname()[1])
        code, _, err = await run(
            "up", "--state", str(tmp_path / "s"), "--engine", "local", "--lab", "--host-port", port
        )
    assert code == 3
    assert "ADDRESS_IN_USE" in err
    assert f"port {port} for host-agent" in err
    assert "manager  " not in err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--engine", "local"], 2, "--provider-url"),
        (["--engine", "local", "--lab", "--provider-url", "http://x"], 2, "--lab"),
        (["--engine", "local", "--lab", "--manifest", "/none/m.json"], 3, "scripts/local_tools"),
        (["--engine", "local", "--lab", "--tools", "/none"], 3, "--tools"),
        (["--engine", "local", "--lab", "--provider-key-file", "/none/key"], 3, "/none/key"),
        (["--engine", "nonsense", "--lab"], 2, "nonsense"),
        (["--engine", "local", "--lab", "--state", "/dev/null"], 3, "STATE_FOLDER_UNUSABLE"),
    ],
)
async def test_what_is_wrong_is_said_and_nothing_starts(
    words: list[str], code: int, said: str, tmp_path: Path, tool_folder: Path
) -> None:
    found, out, err = await run("up", "--state", str(tmp_path / "s"), *words)
    assert found == code
    assert said in err
    assert out == ""


@pytest.mark.parametrize("name", ["runner", "manager", "host-agent"])
async def test_a_server_names_its_wrong_settings(name: str, tmp_path: Path) -> None:
    (help_code, help_text, _), (unknown, _, _), (missing, _, said) = await asyncio.gather(
        run(name, "--help"), run(name, "--nonsense"), run(name, "--state", str(tmp_path))
    )
    assert (help_code, unknown, missing) == (0, 2, 2)
    assert "--listen" in help_text
    assert "STANDFAST_" in said
