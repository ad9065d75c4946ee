"""What a tool under one slot's user cannot do to its CLI, its siblings and the supervisor. `docker` only: `local` claims none of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sandbox_manager.host.adapters.guest_values import GuestProgram
from tests.contract.engine.sandbox import Sandbox, StubCli

pytestmark = [pytest.mark.engine("docker"), pytest.mark.parametrize("engine_name", ["docker"], indirect=True)]

EPERM, EACCES = 1, 13
CLAUDE = "/opt/standfast/agents/claude-code/claude"

PTRACE = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
attached = libc.ptrace(16, PID, 0, 0)
result = 0 if attached == 0 else ctypes.get_errno()
if attached == 0:
    os.waitpid(PID, 0)
    libc.ptrace(17, PID, 0, 0)
"""


async def two_slots(sandbox: Sandbox) -> tuple[StubCli, StubCli]:
    return await sandbox.spawn(1), await sandbox.spawn(2)


@pytest.mark.parametrize(
    "attempt",
    [
        "import os; result = os.listdir('/members/2')",
        "import os; result = os.listdir('/members/2/home')",
        "import os; result = os.listdir('/run/slots/2')",
        "import os; result = os.listdir('/sf')",
        "import os; result = os.listdir('/sf/host')",
        "result = open('/sf/nonce').read()",
        "import socket; s = socket.socket(socket.AF_UNIX); s.connect('/sf/host/control.sock')",
        "result = open('/proc/PID2/environ').read()",
        "import os; result = os.listdir('/proc/PID2/fd')",
        "result = open('/proc/PID2/mem', 'rb')",
        "result = open('/proc/1/environ').read()",
        "import os; result = os.listdir('/proc/1/fd')",
        "result = open('/proc/1/mem', 'r+b')",
        f"result = open('{CLAUDE}', 'rb')",
        f"result = open('{CLAUDE}', 'r+b')",
        "result = open('/opt/standfast/supervisor/guest/supervisor.py', 'a')",
        "result = open('/etc/claude-code/managed-settings.json', 'a')",
    ],
)
async def test_it_opens_nothing_of_others(sandbox: Sandbox, attempt: str) -> None:
    await sandbox.link.adopt("nonce")
    first, second = await two_slots(sandbox)
    found = await first.run(attempt.replace("PID2", str(second.process.pid)))
    assert found == {"errno": EACCES}


async def test_it_signals_neither_sibling_nor_supervisor(sandbox: Sandbox) -> None:
    first, second = await two_slots(sandbox)
    for pid in (second.process.pid, 1):
        assert await first.run(f"import os; os.kill({pid}, 9)") == {"errno": EPERM}
    await first.run("import os, signal; signal.signal(15, signal.SIG_IGN); os.kill(-1, 15)")
    assert await second.ask({"echo": "alive"}) == "alive"


async def test_it_traces_neither_sibling_nor_supervisor(sandbox: Sandbox) -> None:
    first, second = await two_slots(sandbox)
    for pid in (second.process.pid, 1):
        assert await first.run(PTRACE.replace("PID", str(pid))) == EPERM


async def test_a_program_that_nobody_may_read_cannot_be_traced_by_its_own_user(sandbox: Sandbox) -> None:
    """Mode 0711 makes the process undumpable; a readable program under the same user can be traced, so the test can tell."""
    sleeper = await sandbox.spawn(1)
    readable = await sleeper.run("import subprocess; result = subprocess.Popen(['/usr/bin/sleep', '600']).pid")
    assert await sleeper.run(PTRACE.replace("PID", str(readable))) == 0
    unreadable = await sleeper.run(
        "import subprocess, time, os\n"
        f"p = subprocess.Popen(['{CLAUDE}', '-p', '--input-format', 'stream-json', '--output-format', 'stream-json', '--verbose'],"
        " stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={'HOME': os.environ['HOME'],"
        " 'ANTHROPIC_API_KEY': 'none', 'ANTHROPIC_BASE_URL': 'http://127.0.0.1:9'})\n"
        "while open(f'/proc/{p.pid}/comm').read().strip() != 'claude': time.sleep(0.01)\n"
        "result = p.pid"
    )
    assert await sleeper.run(PTRACE.replace("PID", str(unreadable))) == EPERM
    assert await sleeper.run(f"result = open('/proc/{unreadable}/mem', 'r+b')") == {"errno": EACCES}
    assert await sleeper.run(f"result = open('/proc/{unreadable}/environ').read()") == {"errno": EACCES}


async def test_the_clis_own_executable_starts_only_as_nobody_can_read_it(sandbox: Sandbox) -> None:
    place = sandbox.link.hello.slot(3)
    env = {"HOME": place.home, "TMPDIR": place.private}
    process = await sandbox.link.spawn(
        3, 1, GuestProgram((CLAUDE, "--version"), env, sandbox.link.hello.workspace, must_be_unreadable=True)
    )
    cli = StubCli(sandbox, 3, 1, process)
    assert (await cli.wait_for_exit()).code == 0
    assert cli.stdout.startswith(b"2.1.220")


async def test_nothing_can_be_forged_into_the_clis_streams(sandbox: Sandbox) -> None:
    """Its stdio are sockets: /proc/PID/fd/1 cannot be opened by anyone, not even by the same user."""
    cli = await sandbox.spawn(1)
    child = await cli.run(
        "import subprocess, sys\n"
        f"code = \"import os; os.open('/proc/{cli.process.pid}/fd/1', os.O_WRONLY)\"\n"
        "done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)\n"
        "result = done.stderr.splitlines()[-1]"
    )
    assert "No such device or address" in child


async def test_a_program_has_no_capability_and_gains_none(sandbox: Sandbox) -> None:
    cli = await sandbox.spawn(1)
    facts: dict[str, str] = await cli.run(
        "result = dict(l.split(':\\t', 1) for l in open('/proc/self/status').read().splitlines() if ':\\t' in l)"
    )
    assert {facts[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
    assert (facts["NoNewPrivs"], facts["Seccomp"]) == ("1", "2")
    assert facts["Uid"].split() == ["20001"] * 4
    assert facts["Gid"].split() == ["20001"] * 4
    assert facts["Groups"].split() == ["20000"]
    assert await cli.run("result = open('/proc/self/oom_score_adj').read().strip()") == "500"


async def test_the_workspace_is_shared_and_homes_are_not(sandbox: Sandbox) -> None:
    first, second = await two_slots(sandbox)
    await first.run("open('shared.txt', 'w').write('from one')")
    assert (
        await second.run("with open('shared.txt', 'r+') as f:\n result = f.read()\n f.write(' and two')") == "from one"
    )
    assert await first.run("result = open('shared.txt').read()") == "from one and two"
    facts: list[Any] = await first.run(
        "import os; s = os.stat('shared.txt'); result = [oct(s.st_mode & 0o777), s.st_gid]"
    )
    assert facts == ["0o660", 20000]


async def test_there_is_no_network_but_loopback(sandbox: Sandbox) -> None:
    cli = await sandbox.spawn(1)
    assert await cli.run("import os; result = sorted(os.listdir('/sys/class/net'))") == ["lo"]
    code = "import socket; s = socket.socket(); s.settimeout(5); s.connect(('192.0.2.1', 80))"
    assert await cli.run(code) == {"errno": 101}


async def test_private_space_is_bounded(sandbox: Sandbox) -> None:
    cli = await sandbox.spawn(1)
    code = "import os; s = os.statvfs(os.environ['TMPDIR']); result = s.f_blocks * s.f_frsize"
    assert await cli.run(code) == 64 * 1024 * 1024
    mode = "import os; result = oct(os.stat('/run/slots/1').st_mode & 0o777)"
    assert await cli.run(mode) == "0o700"
    await sandbox.stop()
    await sandbox.start()
    again = await sandbox.spawn(1)
    assert await again.run(mode) == "0o700", "also from the second start on"


async def test_a_process_of_the_host_with_another_number_is_not_the_host_agent(sandbox: Sandbox) -> None:
    """The control socket takes peer 0 only: a process in the container's own namespace has a number."""
    found = await sandbox.inspect()
    assert found.pid is not None
    code = "import socket; s = socket.socket(socket.AF_UNIX); s.connect('/sf/host/control.sock'); s.settimeout(5); print(len(s.recv(99)))"
    pid = found.pid
    command = ["nsenter", "-t", str(pid), "-m", "-p", "-n", "--", "/usr/bin/python3", "-c", code]
    assert await printed(command) == "0", "closed without a word"
    assert not sandbox.link.is_lost
    assert await (await sandbox.spawn(1)).ask({"echo": "still linked"}) == "still linked"


async def printed(command: list[str]) -> str:
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(20):
        out, _ = await process.communicate()
    return out.decode().strip()
