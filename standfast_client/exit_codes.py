"""What the commands' exit codes mean; the help lists them from here."""

from __future__ import annotations

import enum

from standfast.runner.v1 import runner_pb2 as pb
from standfast.types.v1 import types_pb2 as types
from standfast_client.errors import (
    BusyError,
    ClientError,
    InvalidRequestError,
    NoRoomError,
    NotBuiltError,
    NotFoundError,
    RefusedError,
    UnavailableError,
)


class Exit(enum.IntEnum):
    """Exit codes of every command that talks to a runner."""

    COMPLETED = 0
    FAILED = 1
    USAGE = 2
    REFUSED = 3
    NOT_ENDED = 4
    UNAVAILABLE = 5
    NOT_FOUND = 6
    FAULT = 7
    LEFT = 130


EXIT_CODES_HELP = """\
Exit codes: 0 done, the turn completed · 1 the turn failed (settled as failed, or failed by a verdict) · 2 wrong usage or an invalid
request · 3 refused, nothing was sent (LOST, busy, not built and others; the reason is printed) · 4 the turn did not end normally
(cancelled, interrupted, timed out, unanswered, not sent) · 5 unavailable, nothing was sent: retry with the same turn id · 6 no such
conversation, turn or request · 7 a fault of the product · 130 the view was left with Ctrl-C, the turn runs on."""

_BY_OUTCOME = {
    types.OUTCOME_COMPLETED: Exit.COMPLETED,
    types.OUTCOME_FAILED: Exit.FAILED,
    types.OUTCOME_REFUSED: Exit.REFUSED,
}


def exit_of_turn(turn: pb.Turn) -> Exit:
    """The exit code for an ended turn."""
    return _BY_OUTCOME.get(turn.outcome, Exit.NOT_ENDED)


def exit_of_error(error: ClientError) -> Exit:
    """The exit code for a call that did not do what was asked."""
    match error:
        case UnavailableError():
            return Exit.UNAVAILABLE
        case InvalidRequestError():
            return Exit.USAGE
        case NotFoundError():
            return Exit.NOT_FOUND
        case RefusedError() | BusyError() | NoRoomError() | NotBuiltError():
            return Exit.REFUSED
        case _:
            return Exit.FAULT
