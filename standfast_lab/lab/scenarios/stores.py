"""The native store is damaged while the sandbox is stopped: LOST, nothing is sent or mended; put back, it is RESTORED."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from standfast_lab.lab.checks import check_that
from standfast_lab.lab.play import Play
from standfast_lab.lab.scenario import Act, add_each

CAUSES = ("STORE_MISSING", "HISTORY_BROKEN", "HISTORY_TORN", "HISTORY_CHANGED_OUTSIDE_TURN", "NATIVE_SESSION_MISMATCH")
Damage = Callable[[Sequence[Path], str], None]


def _removed(files: Sequence[Path], word: str) -> None:
    for path in files:
        path.unlink()


def _emptied(files: Sequence[Path], word: str) -> None:
    for path in files:
        path.write_bytes(b"")


def _halved(files: Sequence[Path], word: str) -> None:
    for path in files:
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])


def _retold(files: Sequence[Path], word: str) -> None:
    """A settled reply says another word of the same length."""
    old, new = f"noted: {word}".encode(), f"noted: {'x' * len(word)}".encode()
    found = 0
    for path in files:
        content = path.read_bytes()
        found += content.count(old)
        path.write_bytes(content.replace(old, new))
    check_that(found > 0, f"the reply stands in one of {[path.name for path in files]}")


def _damaged(damage: Damage) -> Act:
    async def act(play: Play) -> None:
        talk = play.talk()
        await talk.begin()
        last = await talk.asked("LIVE")
        await talk.stop()
        files = play.site.store_files(last)
        kept = [(path, path.read_bytes(), path.stat()) for path in files]
        damage(files, talk.word)
        damaged = [path.read_bytes() if path.exists() else None for path in files]
        cause = await talk.lost()
        check_that(cause in CAUSES, f"the cause {cause} is one of {CAUSES}")
        left = [path.read_bytes() if path.exists() else None for path in files]
        check_that(left == damaged, "what was damaged was not touched")
        for path, content, stat in kept:
            path.write_bytes(content)
            path.chmod(stat.st_mode & 0o7777)
            os.chown(path, stat.st_uid, stat.st_gid)
        await talk.asked("RESTORED")

    act.__doc__ = (
        f"A store that is {damage.__name__.strip('_')} is LOST by name and nothing is sent; put back, it is RESTORED."
    )
    return act


add_each(
    {
        "store-removed": _damaged(_removed),
        "store-emptied": _damaged(_emptied),
        "store-halved": _damaged(_halved),
        "store-reply-changed": _damaged(_retold),
    },
    core=("store-reply-changed",),
)
