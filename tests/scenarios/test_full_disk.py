"""No space where the sandboxes lie: a clear reason, nothing that was settled is lost."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.scenarios.stage import Stage
from tests.stub_cli.tool_folder import ToolFolder

pytestmark = pytest.mark.engine("local")

_SIZE_BYTES = 8 * 1024 * 1024


@pytest.fixture
def small_disk(short_folder: Callable[[], Path]) -> Iterator[Path]:
    """A fleet's folder whose sandboxes lie on a file system of 8 MiB. Tests that use it are left out where mounting is not allowed."""
    folder = short_folder()
    place = folder / "h" / "g"
    place.mkdir(parents=True, mode=0o700)
    (folder / "h").chmod(0o700)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={_SIZE_BYTES},mode=700", "tmpfs", str(place)], check=True, timeout=30
    )
    yield folder
    subprocess.run(["umount", "-l", str(place)], check=True, timeout=30)


def fill(place: Path) -> Path:
    """Writes until nothing more goes in."""
    filler = place / ".filler"
    with filler.open("wb", buffering=0) as file:
        size = 1 << 16
        while size:
            try:
                file.write(b"\0" * size)
            except OSError:
                size //= 2
    return filler


async def test_a_turn_on_a_full_disk_is_not_settled_and_the_session_goes_on_when_there_is_room(
    small_disk: Path, stub_tools: ToolFolder
) -> None:
    async with Stage(small_disk, stub_tools, settings={"host-agent": {"disk_free_min_bytes": 0}}) as stage:
        first = await stage.begin("c")
        assert first.outcome == "COMPLETED"
        records = stage.rows("manager", "select * from store_records")
        filler = fill(stage.sandboxes)
        full = await stage.ask("c", "hello " + "x" * 20_000)  # more than what is left of the transcript's last page
        assert full.outcome in ("FAILED", "REFUSED")
        assert (full.reason, full.turn.locator_saved) == ("STORAGE_FULL", False)
        assert stage.rows("manager", "select * from store_records") == records
        filler.unlink()
        lost = await stage.ask("c", "what is the colour?")
        if lost.state == "LOST":
            # The CLI got half a record onto the disk before it was full.
            assert lost.reason == "HISTORY_TORN"
            path = stage.transcript(first)
            path.write_bytes(path.read_bytes()[: path.read_bytes().rindex(b"\n") + 1])
        after = await stage.ask("c", "what is the colour?")
        assert (after.outcome, after.text, after.session) == ("COMPLETED", "the colour is green", first.session)


async def test_too_little_room_refuses_new_turns_before_anything_is_sent(
    short_folder: Callable[[], Path], stub_tools: ToolFolder
) -> None:
    folder = short_folder()
    free = os.statvfs(folder)
    wanted = free.f_bavail * free.f_frsize * 4
    async with Stage(folder, stub_tools, settings={"host-agent": {"disk_free_min_bytes": wanted}}) as stage:
        told = await stage.begin("c")
        assert told.refusal is not None
        assert told.refusal.reason == "STORAGE_FULL"
        assert stage.requests() == []
        assert not list(stage.sandboxes.iterdir())
