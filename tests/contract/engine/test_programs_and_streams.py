"""Programs in slots: start, streams, exits, a lost link."""

from __future__ import annotations

import asyncio
import functools
import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandbox_manager.host.adapters import local_processes
from sandbox_manager.host.adapters.guest_errors import GuestLinkLostError, GuestOperationError
from sandbox_manager.host.adapters.guest_link import GuestLink
from sandbox_manager.host.adapters.guest_values import GuestProgram, SlotFile
from tests.contract.engine.sandbox import PATIENCE_S, Sandbox, StubCli, eventually

CASES = Path(__file__).parents[2] / "cases"


def case(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CASES / "inputs" / f"{name}.json").read_text())
    return found


async def test_a_program_echoes_and_exits_with_its_code(sandbox: Sandbox) -> None:
    cli = await sandbox.spawn()
    assert await cli.ask({"echo": "größe 🙂"}) == "größe 🙂"
    assert await cli.ask({"exit": 3}) == "bye"
    exited = await cli.wait_for_exit()
    assert (exited.code, exited.signal) == (3, None)
    assert exited.stdout_length == len(cli.stdout)


async def test_a_signal_is_told_as_a_signal(sandbox: Sandbox) -> None:
    cli = await sandbox.spawn()
    await cli.ask({"echo": "up"})
    await sandbox.link.signal(1, 1, signal.SIGTERM)
    exited = await cli.wait_for_exit()
    assert (exited.code, exited.signal) == (None, signal.SIGTERM)


async def test_closing_stdin_after_a_write_delivers_the_write_first(sandbox: Sandbox) -> None:
    cli = await sandbox.spawn()
    await cli.send({"echo": "last words"})
    await sandbox.link.close_stdin(1, 1)
    assert (await cli.wait_for_exit()).code == 0
    assert json.loads(bytes(cli.stdout)) == {"answer": "last words"}


async def test_stderr_is_a_stream_of_its_own(sandbox: Sandbox) -> None:
    cli = await sandbox.spawn()
    await cli.run("import sys; sys.stderr.write('complaint'); sys.stderr.flush()")
    await cli.read_until(lambda: bytes(cli.stderr) == b"complaint")
    assert b"complaint" not in cli.stdout


async def test_a_line_of_8_mib_passes_both_ways_unchanged(sandbox: Sandbox) -> None:
    cli = await sandbox.spawn()
    text = "0123456789abcdef" * (512 * 1024)
    assert await cli.ask({"echo": text}) == text
    assert await cli.ask({"repeat": "é\n", "count": 1024 * 1024}) == "é\n" * 1024 * 1024


async def test_end_of_stream_is_not_end_of_process(sandbox: Sandbox) -> None:
    """The case cont-output-held-by-background-child: a child keeps the CLI's stdout open after the CLI is gone."""
    given = case("cont-output-held-by-background-child")
    lines: str = given["stdout"]
    code = f"import sys, os, subprocess; subprocess.Popen(['sleep', '600']); sys.stdout.write({lines!r}); sys.stdout.flush(); os._exit(0)"
    cli = await sandbox.spawn()
    async with asyncio.timeout(5):
        await cli.send({"run": code})
        exited = await cli.wait_for_exit()
    assert exited.code == 0
    assert bytes(cli.stdout) == lines.encode(), "all that was printed before the exit comes before it"
    assert "stdout" not in cli.ended
    with pytest.raises(GuestOperationError) as refused:
        await sandbox.spawn(1, 2)
    assert (refused.value.guest_reason, refused.value.reason) == ("SLOT_LEFTOVERS", "RECLAIM_INCOMPLETE")
    report = await sandbox.link.reclaim(1)
    assert report.is_complete
    assert [row.name for row in report.killed] == ["sleep"]
    await cli.read_until(lambda: cli.ended == {"stdout", "stderr"})
    again = await sandbox.spawn(1, 2)
    assert await again.ask({"echo": "next"}) == "next"


async def test_a_stale_generation_is_refused_everywhere(sandbox: Sandbox) -> None:
    cli = await sandbox.spawn(1, 5)
    for attempt in (
        sandbox.link.write(1, 4, b"{}\n"),
        sandbox.link.close_stdin(1, 4),
        sandbox.link.signal(1, 6, signal.SIGKILL),
        sandbox.link.deposit_interrupt(1, 4, b"x", 0),
    ):
        with pytest.raises(GuestOperationError) as refused:
            await attempt
        assert refused.value.reason == "GENERATION_STALE"
    await sandbox.link.close_stdin(1, 5)
    await cli.wait_for_exit()
    await sandbox.link.reclaim(1)
    with pytest.raises(GuestOperationError) as stale:
        await sandbox.spawn(1, 5)
    assert stale.value.reason == "GENERATION_STALE"


async def test_a_running_slot_refuses_a_second_program(sandbox: Sandbox) -> None:
    cli = await sandbox.spawn()
    with pytest.raises(GuestOperationError) as refused:
        await sandbox.spawn(1, 2)
    assert refused.value.reason == "SLOT_BUSY"
    assert await cli.ask({"echo": "still here"}) == "still here"


async def test_a_program_that_cannot_start_leaves_the_slot_idle(sandbox: Sandbox) -> None:
    workspace = sandbox.link.hello.workspace
    bad = [
        (GuestProgram(("/usr/bin/false",), {}, "/nowhere", must_be_unreadable=False), "SPAWN_FAILED"),
        (GuestProgram(("/nowhere",), {}, workspace, must_be_unreadable=False), "EXECUTABLE_REFUSED"),
        (GuestProgram(("/etc/passwd",), {}, workspace, must_be_unreadable=False), "EXECUTABLE_REFUSED"),
        (
            GuestProgram(("/usr/bin/env",), {}, workspace, executable_sha256="0" * 64, must_be_unreadable=False),
            "EXECUTABLE_REFUSED",
        ),
        (GuestProgram(("/usr/bin/env",), {}, workspace), "EXECUTABLE_REFUSED"),
        (GuestProgram(("/usr/bin/env", "a\0b"), {}, workspace, must_be_unreadable=False), "BAD_REQUEST"),
    ]
    for generation, (program, reason) in enumerate(bad, start=1):
        with pytest.raises(GuestOperationError) as refused:
            await sandbox.link.spawn(1, generation, program)
        assert refused.value.guest_reason == reason
    cli = await sandbox.spawn(1, 10)
    assert await cli.ask({"echo": "fine"}) == "fine"


async def test_files_are_laid_down_as_the_slot_before_its_program_runs(sandbox: Sandbox) -> None:
    program = sandbox.program(2)
    extra = SlotFile("home", (".config", "settings.json"), 0o640, b"\x00\xff settings")
    process = await sandbox.link.spawn(
        2, 1, GuestProgram(program.argv, program.env, program.cwd, (*program.files, extra), must_be_unreadable=False)
    )
    cli = StubCli(sandbox, 2, 1, process)
    code = (
        "import os; p = os.path.expanduser('~/.config/settings.json'); s = os.stat(p);"
        "result = [open(p, 'rb').read().hex(), oct(s.st_mode & 0o7777), s.st_uid == os.getuid()]"
    )
    assert await cli.run(code) == [extra.content.hex(), "0o640", True]


async def test_a_file_does_not_follow_a_link_in_its_path(sandbox: Sandbox) -> None:
    cli = await sandbox.spawn()
    await cli.run(
        "import os; os.makedirs('outside'); os.symlink(os.path.realpath('outside'), os.path.expanduser('~/.config'))"
    )
    await cli.ask({"exit": 0})
    await cli.wait_for_exit()
    await sandbox.link.reclaim(1)
    program = sandbox.program(1)
    bad = SlotFile("home", (".config", "settings.json"), 0o600, b"{}")
    with pytest.raises(GuestOperationError) as refused:
        await sandbox.link.spawn(
            1, 2, GuestProgram(program.argv, program.env, program.cwd, (bad,), must_be_unreadable=False)
        )
    assert refused.value.facts["stage"] == "files"
    again = await sandbox.spawn(1, 3)
    assert await again.run("import os; result = os.listdir('outside')") == []


async def test_a_full_stdin_neither_blocks_nor_loses(sandbox: Sandbox) -> None:
    """The CLI does not read: what fits is queued, what does not is refused as a whole, and others are not held up."""
    busy = await sandbox.spawn(1)
    other = await sandbox.spawn(2)
    await busy.send({"run": "import os, time\nwhile not os.path.exists('go-on'): time.sleep(0.01)"})
    text = "x" * (4 << 20)
    accepted, refusal = 0, ""
    async with asyncio.timeout(PATIENCE_S):
        while not refusal:
            try:
                await busy.send({"echo": f"{accepted}{text}"})
                accepted += 1
            except GuestOperationError as error:
                refusal = error.guest_reason
    assert refusal == "STDIN_FULL"
    assert accepted >= 4
    assert await other.ask({"echo": "alive"}) == "alive"
    await other.run("open('go-on', 'w')")
    await busy.read_until(lambda: busy.line_count == accepted + 1)
    answers = [json.loads(line)["answer"] for line in bytes(busy.stdout).splitlines()]
    assert answers == [None, *(f"{number}{text}" for number in range(accepted))]


async def test_a_slow_reader_holds_back_its_own_cli_only(sandbox: Sandbox) -> None:
    flood = await sandbox.spawn(1)
    other = await sandbox.spawn(2)
    await flood.send({"repeat": "y", "count": 80 << 20})
    assert await other.ask({"echo": "alive"}) == "alive"

    async def is_tap_full() -> bool:
        stream = (await sandbox.link.refresh_hello()).processes[0].stdout
        return stream.end == 64 << 20 and not stream.has_lost_unread

    await eventually(is_tap_full)
    await flood.read_until(lambda: flood.stdout.endswith(b"\n"))
    assert flood.gaps == []
    assert json.loads(bytes(flood.stdout))["answer"] == "y" * (80 << 20)


async def cut(link: GuestLink) -> None:
    """Breaks the connection under the link's feet, as a fault would."""
    connection = link._connection
    assert connection is not None
    connection.lose("cut by the test")


def has_more_lines(cli: StubCli, count: int) -> bool:
    return cli.line_count > count


async def test_a_cut_link_comes_back_without_a_lost_byte(sandbox: Sandbox) -> None:
    cli = await sandbox.spawn()
    total = 3000
    code = f"import time\nfor i in range({total}):\n print('line', i, flush=True)\n time.sleep(0.0005)"
    await cli.send({"run": code})
    for lines in (200, 900, 1700, 2500):
        await cli.read_until(functools.partial(has_more_lines, cli, lines))
        await cut(sandbox.link)
    await cli.read_until(lambda: cli.line_count == total + 1)
    assert [line.decode() for line in bytes(cli.stdout).splitlines()[:-1]] == [f"line {i}" for i in range(total)]
    assert await cli.ask({"echo": "after"}) == "after"


async def test_an_operation_under_way_at_the_cut_fails_and_is_not_repeated(sandbox: Sandbox) -> None:
    cli = await sandbox.spawn()
    ask = asyncio.ensure_future(sandbox.link.measure())
    await asyncio.sleep(0)
    await cut(sandbox.link)
    with pytest.raises(GuestLinkLostError):
        await ask
    assert await cli.ask({"echo": "after"}) == "after"


async def test_a_program_starts_while_the_sandbox_measures_itself_and_neither_disturbs_the_other(
    sandbox: Sandbox,
) -> None:
    alone = await sandbox.link.measure()
    for generation in range(1, 6):
        measuring = asyncio.ensure_future(sandbox.link.measure())
        await asyncio.sleep(0)
        cli = await sandbox.spawn(1, generation)
        assert await cli.ask({"echo": "beside"}) == "beside"
        report = await sandbox.link.reclaim(1)
        assert report.is_complete
        assert await measuring == alone


async def test_a_new_host_agent_takes_a_running_program_over(sandbox: Sandbox) -> None:
    cli = await sandbox.spawn(1, 7)
    assert await cli.ask({"echo": "one"}) == "one"
    seen = len(cli.stdout)
    await cli.send({"run": "import time\ntime.sleep(0.2)\nprint('while nobody was there', flush=True)"})
    await sandbox.disconnect()
    link = await sandbox.connect()
    (found,) = link.hello.processes
    assert (found.slot, found.process_generation, found.pid) == (1, 7, cli.process.pid)
    assert found.start_time == cli.process.start_time
    assert found.exit is None
    cli.process = replace(cli.process, events=await link.follow(1, 7, stdout_offset=seen))
    await cli.read_until(lambda: cli.line_count == 3)
    assert b"while nobody was there" in cli.stdout
    reading = await link.read_tap(1, 7, 0)
    assert (reading.data, reading.is_gap) == (bytes(cli.stdout), False)


async def test_an_exit_while_nobody_was_there_is_told_afterwards(sandbox: Sandbox) -> None:
    cli = await sandbox.spawn()
    await cli.send({"run": "import time, os; time.sleep(0.2); print('bye', flush=True); os._exit(9)"})
    await sandbox.disconnect()
    link = await sandbox.connect()

    async def has_exited() -> bool:
        return (await link.refresh_hello()).processes[0].exit is not None

    await eventually(has_exited)
    cli.process = replace(cli.process, events=await link.follow(1, 1))
    assert (await cli.wait_for_exit()).code == 9
    assert bytes(cli.stdout) == b"bye\n"


async def test_a_newer_host_agent_replaces_the_older(sandbox: Sandbox) -> None:
    cli = await sandbox.spawn()
    older = sandbox.link
    peer = sandbox.engine.expected_peer(await sandbox.inspect())
    async with await GuestLink.connect(sandbox.socket_dir, peer) as newer:
        await newer.write(1, 1, b'{"echo": "to the newer"}\n')
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(GuestLinkLostError, match="newer host agent"):
                await anext(cli.process.events)
        assert older.is_lost
        await newer.write(1, 1, b'{"echo": "and it stays"}\n')


async def test_a_deposited_interrupt_is_written_once_the_host_is_gone(sandbox: Sandbox) -> None:
    cli = await sandbox.spawn()
    await cli.ask({"echo": "up"})
    supervisor = (await sandbox.inspect()).pid
    assert supervisor is not None
    await sandbox.link.deposit_interrupt(1, 1, b'{"exit": 42}\n', 0.05)
    await sandbox.disconnect()

    async def has_exited() -> bool:
        # Seen from outside: connecting to ask would bring a host agent back.
        return not local_processes.descendants(supervisor)

    await eventually(has_exited)
    link = await sandbox.connect()
    (found,) = link.hello.processes
    assert found.exit is not None
    assert found.exit.code == 42
    assert found.was_interrupted_on_loss


async def test_a_deposited_interrupt_is_not_written_when_the_host_is_back_in_time_or_took_it_back(
    sandbox: Sandbox,
) -> None:
    cli = await sandbox.spawn()
    await sandbox.link.deposit_interrupt(1, 1, b'{"exit": 42}\n', 30)
    await cut(sandbox.link)
    assert await cli.ask({"echo": "back in time"}) == "back in time"
    await sandbox.link.deposit_interrupt(1, 1, b'{"exit": 42}\n', 0)
    await sandbox.link.deposit_interrupt(1, 1, b"", 0)
    await cut(sandbox.link)
    assert await cli.ask({"echo": "taken back"}) == "taken back"
    assert not (await sandbox.link.refresh_hello()).processes[0].was_interrupted_on_loss


@pytest.mark.parametrize(
    ("operation", "request_", "reason"),
    [
        ("nonsense", {}, "UNKNOWN_OPERATION"),
        ("census", {"slot": 99}, "BAD_REQUEST"),
        ("census", {"slot": True}, "BAD_REQUEST"),
        ("write", {"slot": 1}, "BAD_REQUEST"),
        ("signal", {"slot": 1, "process_generation": 1, "signal": 999}, "BAD_REQUEST"),
        ("reclaim", {"slot": 1, "keep": [[1]]}, "BAD_REQUEST"),
        ("reclaim", {"slot": 1, "keep": [], "timeout_s": "long"}, "BAD_REQUEST"),
        ("read_store", {"slot": 1, "base": "root", "components": ["x"]}, "BAD_REQUEST"),
        ("spawn", {"slot": 1, "argv": [], "env": {}}, "BAD_REQUEST"),
        ("spawn", {"slot": 1, "argv": ["/bin/true"], "env": {}, "files": [7]}, "INTERNAL"),
    ],
)
async def test_a_bad_request_is_answered_and_nothing_else_is_touched(
    sandbox: Sandbox, operation: str, request_: dict[str, object], reason: str
) -> None:
    cli = await sandbox.spawn()
    with pytest.raises(GuestOperationError) as refused:
        await sandbox.link._ask(operation, request_)
    assert refused.value.guest_reason == reason
    assert await cli.ask({"echo": "untouched"}) == "untouched"


async def test_a_peer_that_speaks_no_frames_is_dropped_and_the_next_is_served(sandbox: Sandbox) -> None:
    cli = await sandbox.spawn()
    connection = sandbox.link._connection
    assert connection is not None
    connection._sock.send(b"GET / HTTP/1.1\r\n\r\n" * 10)

    async def is_linked_anew() -> bool:
        return sandbox.link._connection not in (connection, None) and sandbox.link._is_ready.is_set()

    await eventually(is_linked_anew)
    assert await cli.ask({"echo": "linked again"}) == "linked again"


async def test_what_nobody_read_for_longer_than_the_tap_lasts_is_told_as_a_gap(sandbox: Sandbox) -> None:
    cli = await sandbox.spawn()
    total = 70 << 20
    await cli.send({"run": "import sys\nfor _ in range(70): sys.stdout.write('z' * (1 << 20))\nsys.stdout.flush()"})
    await sandbox.disconnect()
    link = await sandbox.connect()

    async def is_printed() -> bool:
        return (await link.refresh_hello()).processes[0].stdout.end > total

    await eventually(is_printed)
    tap = link.hello.processes[0].stdout
    assert tap.has_lost_unread
    assert tap.end - tap.start == 64 << 20
    assert (await link.read_tap(1, 1, 0)).is_gap
    cli.process = replace(cli.process, events=await link.follow(1, 1))
    await cli.read_until(lambda: cli.line_count == 1)
    assert [(gap.stream, gap.start, gap.end) for gap in cli.gaps] == [("stdout", 0, tap.start)]
    assert len(cli.stdout) == tap.end - tap.start
