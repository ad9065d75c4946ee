"""At the end of a turn nothing of it may be left running, and nothing else may be touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sandbox_manager.host.adapters import local_processes
from sandbox_manager.host.adapters.guest_connection import ExpectedPeer
from sandbox_manager.host.adapters.guest_errors import GuestOperationError
from sandbox_manager.host.adapters.guest_link import GuestLink
from sandbox_manager.host.adapters.guest_values import GuestProgram
from tests.contract.engine.sandbox import PATIENCE_S, Sandbox, StubCli, eventually
from tests.contract.engine.test_programs_and_streams import case

CHILDREN = {
    "in the background": "import subprocess; result = subprocess.Popen(['sleep', '600']).pid",
    "in a session of its own": "import subprocess; result = subprocess.Popen(['sleep', '600'], start_new_session=True).pid",
    "double-forked": """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in (0, 1, 2): os.close(fd)
        time.sleep(600)
    os._exit(0)
os.wait()
result = 1
""",
    "deaf to SIGTERM and all others": """
import os, signal, time
pid = os.fork()
if pid == 0:
    for number in range(1, 65):
        try: signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError): pass
    while True: time.sleep(600)
result = pid
""",
    "without the environment it was given": "import subprocess; result = subprocess.Popen(['sleep', '600'], env={}).pid",
    "stopped": "import os, signal, subprocess; p = subprocess.Popen(['sleep', '600']); p.send_signal(signal.SIGSTOP); result = p.pid",
    "whose first thread has ended": """
import subprocess, sys, time
headless = "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(600,)).start(); ctypes.CDLL(None).syscall(60, 0)"
result = subprocess.Popen([sys.executable, '-c', headless]).pid
while open(f'/proc/{result}/stat').read().rpartition(')')[2].split()[0] != 'Z': time.sleep(0.01)
""",
    "many": "import subprocess; result = [subprocess.Popen(['sleep', '600']).pid for _ in range(60)]",
    "forking and ending for ever": """
import os, time
if os.fork() == 0:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if os.fork(): os._exit(0)
        time.sleep(0.0005)
    os._exit(0)
result = 1
""",
}


# The stub does not wait for its children: without SIG_IGN their zombies would hold their numbers.
FILL = """
import signal, subprocess
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
result = 0
try:
    while True:
        subprocess.Popen(['sleep', '600'])
        result += 1
except OSError:
    pass
"""


@pytest.mark.parametrize("kind", CHILDREN)
async def test_a_child_is_ended_and_the_kept_cli_lives_on(sandbox: Sandbox, kind: str) -> None:
    cli = await sandbox.spawn()
    await cli.run(CHILDREN[kind])
    report = await sandbox.link.reclaim(1, [cli.process.key], timeout_s=10)
    assert report.is_complete, report
    assert [row.key for row in report.kept] == [cli.process.key]
    assert report.unattributed == ()
    census = await sandbox.link.census(1)
    assert [row.key for row in census.processes] == [cli.process.key]
    assert await cli.ask({"echo": "kept"}) == "kept"


@pytest.mark.parametrize("kind", CHILDREN)
async def test_everything_is_ended_when_nothing_is_to_be_kept(sandbox: Sandbox, kind: str) -> None:
    cli = await sandbox.spawn()
    await cli.run(CHILDREN[kind])
    report = await sandbox.link.reclaim(1, timeout_s=10)
    assert report.is_complete, report
    assert (await cli.wait_for_exit()).signal == signal.SIGKILL
    assert (await sandbox.link.census(1)).processes == ()
    assert (await sandbox.link.refresh_hello()).slot(1).state == "IDLE"
    assert await (await sandbox.spawn(1, 2)).ask({"echo": "next"}) == "next"


async def test_a_reclaim_leaves_the_other_slots_alone(sandbox: Sandbox) -> None:
    first, second = await sandbox.spawn(1), await sandbox.spawn(2)
    child = await second.run("import subprocess; result = subprocess.Popen(['sleep', '600']).pid")
    assert (await sandbox.link.reclaim(1)).is_complete
    assert {row.pid for row in (await sandbox.link.census(2)).processes} == {second.process.pid, child}
    assert await second.ask({"echo": "untouched"}) == "untouched"
    await first.wait_for_exit()


async def test_a_recorded_child_may_be_kept_too(sandbox: Sandbox) -> None:
    cli = await sandbox.spawn()
    await cli.run("import subprocess; subprocess.Popen(['sleep', '601'])")
    recorded = [row.key for row in (await sandbox.link.census(1)).processes]
    await cli.run("import subprocess; subprocess.Popen(['sleep', '602'])")
    report = await sandbox.link.reclaim(1, recorded)
    assert report.is_complete
    assert sorted(row.key for row in report.kept) == sorted(recorded)
    assert len(report.killed) == 1


async def test_orphans_leave_no_zombies_and_a_turn_starts_after_200_rounds(sandbox: Sandbox) -> None:
    """The case cont-zombies-under-pid-1."""
    given = case("cont-zombies-under-pid-1")
    orphans, rounds = given["steps"][0]["count"], given["steps"][2]["times"]
    cli = await sandbox.spawn()
    code = f"""
import os, time
for _ in range({rounds}):
    if os.fork() == 0:
        for _ in range({orphans}):
            if os.fork() == 0:
                time.sleep(0.01)
                os._exit(0)
        os._exit(0)
    os.wait()
"""
    await cli.run(code)
    count = (
        "import os\nresult = 0\nfor n in os.listdir('/proc'):\n if n.isdigit():\n  try: t = open(f'/proc/{n}/stat').read()\n"
        "  except OSError: continue\n  if t.rpartition(')')[2].split()[0] == 'Z' and t.split()[3] == SUPERVISOR: result += 1"
    )
    measured: dict[str, Any] = dict(await sandbox.link.measure())
    supervisor = str(measured["probes"]["supervisor_pid"])

    async def has_no_zombies() -> bool:
        return bool(await cli.run(count.replace("SUPERVISOR", repr(supervisor))) == 0)

    await eventually(has_no_zombies, timeout_s=3)
    await cli.ask({"exit": 0})
    await cli.wait_for_exit()
    assert (await sandbox.link.reclaim(1)).is_complete
    assert await (await sandbox.spawn(1, 2)).ask({"echo": "turn"}) == "turn"


async def test_a_slot_that_used_up_all_process_numbers_is_reclaimed(sandbox: Sandbox) -> None:
    if not sandbox.engine.is_isolated:
        # A retained folder has no limit of its own: filling the machine's would be an attack on it.
        return
    cli = await sandbox.spawn()
    filled = await cli.run(FILL)
    assert filled > 300
    with pytest.raises(GuestOperationError) as refused:
        await sandbox.spawn(2)
    assert refused.value.guest_reason == "SPAWN_FAILED"
    report = await sandbox.link.reclaim(1, [cli.process.key], timeout_s=10)
    assert report.is_complete
    assert len(report.killed) >= 300
    assert await (await sandbox.spawn(2, 2)).ask({"echo": "there is room"}) == "there is room"


@pytest.mark.engine("local")
@pytest.mark.parametrize("engine_name", ["local"], indirect=True)
async def test_an_innocent_process_of_the_same_user_survives(sandbox: Sandbox) -> None:
    """Also one in the same working folder, and one that was started by hand with a marker of another folder."""
    workspace = sandbox.link.hello.workspace
    environment = {**os.environ, "STANDFAST_SLOT_MARKER": "0123456789abcdef.1"}
    innocent = [sleeper(cwd=workspace), sleeper(env=environment, start_new_session=True)]
    try:
        cli = await sandbox.spawn()
        await cli.run(CHILDREN["double-forked"])
        assert (await sandbox.link.reclaim(1)).is_complete
        await sandbox.stop()
        await sandbox.start()
        await sandbox.spawn()
        await sandbox.disconnect()
        await sandbox.engine.kill(sandbox.container_id)
        assert [process.poll() for process in innocent] == [None, None]
    finally:
        for process in innocent:
            process.kill()
            process.wait()


@pytest.mark.engine("local")
@pytest.mark.parametrize("engine_name", ["local"], indirect=True)
async def test_what_cannot_be_attributed_is_reported_and_not_killed(sandbox: Sandbox) -> None:
    cli = await sandbox.spawn()
    await hide(cli)
    report = await sandbox.link.reclaim(1)
    assert [row.name for row in report.unattributed] == ["sleep"]
    stranger = report.unattributed[0]

    async def is_gone() -> bool:
        return local_processes.start_time(stranger.pid) is None

    assert not await is_gone()
    # A stop ends the sandbox as a whole, as a container's does.
    await sandbox.disconnect()
    await sandbox.engine.kill(sandbox.container_id)
    await eventually(is_gone)


def sleeper(**how: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "600"], **how)


async def hide(cli: StubCli) -> None:
    """Starts a process that lost environment, parent and session before anyone could see it."""
    await cli.run(
        "import os, subprocess\n"
        "if os.fork() == 0:\n"
        " os.setsid()\n"
        " if os.fork() == 0:\n"
        "  os.setsid()\n"
        "  if os.fork() == 0: os.execve('/usr/bin/sleep', ['sleep', '600'], {})\n"
        "  os._exit(0)\n"
        " os._exit(0)\n"
        "os.wait()\n"
        "import time; time.sleep(0.05)\n"
    )


@pytest.mark.engine("local")
@pytest.mark.parametrize("engine_name", ["local"], indirect=True)
async def test_what_a_dead_supervisor_left_running_is_found_by_the_next_one(sandbox: Sandbox) -> None:
    """Started by hand here: the engine itself sweeps a retained folder before it starts a supervisor in it."""
    cli = await sandbox.spawn()
    await cli.run(CHILDREN["in a session of its own"])
    found = await sandbox.inspect()
    supervisor = found.pid
    assert supervisor is not None
    hello = sandbox.link.hello
    await sandbox.disconnect()
    os.kill(supervisor, signal.SIGKILL)

    async def is_gone() -> bool:
        return local_processes.start_time(supervisor) is None

    await eventually(is_gone)
    root = Path(hello.workspace).parent
    options = ["--root", str(root), "--socket-dir", str(sandbox.socket_dir), "--agents", hello.agents]
    next_one = by_hand("-m", "sandbox_manager.guest", "--layout", "local", *options)
    try:
        async with await GuestLink.connect(sandbox.socket_dir, ExpectedPeer(next_one.pid, None)) as link:
            assert link.hello.slot(1).state == "LEFTOVERS"
            with pytest.raises(GuestOperationError) as refused:
                await link.spawn(1, 1, GuestProgram(("/usr/bin/true",), {}, hello.workspace, must_be_unreadable=False))
            assert refused.value.guest_reason == "SLOT_LEFTOVERS"
            report = await link.reclaim(1)
            assert report.is_complete
            assert "sleep" in {row.name for row in report.killed}
            assert (await link.refresh_hello()).slot(1).state == "IDLE"
    finally:
        next_one.terminate()
        next_one.wait(PATIENCE_S)


def by_hand(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, *arguments], stderr=subprocess.DEVNULL)
