"""Whether the native store already holds what the CLI printed. Pure.

A CLI may print its end before it has written its history (Claude Code: 19 to 104 ms later), so the store is read again until it holds
everything, or the wait runs out. Two reads that agree are not enough: a slow disk is quiet, too.
"""

from __future__ import annotations

from sandbox_manager.core.values import StoreReading, TapFindings


def missing(findings: TapFindings, message_id: str, reading: StoreReading) -> tuple[str, ...]:
    """The native uuids that were printed, and our message's own, that the reading does not hold. Empty: all of it is there."""
    wanted = (findings.message_printed_as or message_id, *findings.printed)
    if reading.segment is None:
        return wanted
    on_disk = {name for record in reading.segment.records for name in (record.uuid, record.printed_as)}
    return tuple(uuid for uuid in wanted if uuid not in on_disk)


def is_settled_on_disk(findings: TapFindings, message_id: str, reading: StoreReading) -> bool:
    """No read is needed any more: all of it is there, and no line is half written."""
    return (
        reading.error is None
        and reading.segment is not None
        and not reading.segment.torn_tail
        and not missing(findings, message_id, reading)
    )


def must_read_after_exit(*, is_first_turn: bool, complete: bool) -> bool:
    """A first turn without its store has no later turn to prove it: the process is ended and the store read once more."""
    return is_first_turn and not complete
