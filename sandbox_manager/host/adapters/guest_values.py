"""What the supervisor tells, as values. Process numbers are those of the sandbox's own process namespace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from sandbox_manager.host.adapters.guest_errors import GuestProtocolError

Json = Mapping[str, object]


def text_in(found: Json, name: str) -> str:
    """A required text of an answer."""
    value = found.get(name)
    if not isinstance(value, str):
        raise GuestProtocolError(f"the supervisor's answer has no text {name!r}", {"field": name})
    return value


def number_in(found: Json, name: str) -> int:
    """A required whole number of an answer."""
    value = found.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise GuestProtocolError(f"the supervisor's answer has no number {name!r}", {"field": name})
    return value


def optional_text_in(found: Json, name: str) -> str | None:
    """A text, or None where the supervisor says null."""
    return None if found.get(name) is None else text_in(found, name)


def optional_number_in(found: Json, name: str) -> int | None:
    """A whole number, or None where the supervisor says null."""
    return None if found.get(name) is None else number_in(found, name)


def objects_in(found: Json, name: str) -> list[Json]:
    """A required list of objects."""
    value = found.get(name)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise GuestProtocolError(f"the supervisor's answer has no list {name!r}", {"field": name})
    return cast("list[Json]", value)


def object_in(found: Json, name: str) -> Json:
    """A required object."""
    value = found.get(name)
    if not isinstance(value, dict):
        raise GuestProtocolError(f"the supervisor's answer has no object {name!r}", {"field": name})
    return value


@dataclass(frozen=True, slots=True)
class GuestProcess:
    """A process of a slot. `(pid, start_time)` names it for good."""

    pid: int
    start_time: int
    parent: int
    name: str
    state: str

    @property
    def key(self) -> tuple[int, int]:
        """What a reclaim is told to keep."""
        return self.pid, self.start_time

    @classmethod
    def read(cls, found: Json) -> GuestProcess:
        """From the supervisor's object."""
        return cls(
            number_in(found, "pid"),
            number_in(found, "start_time"),
            number_in(found, "parent"),
            text_in(found, "name"),
            text_in(found, "state"),
        )


def _processes(found: Json, name: str) -> tuple[GuestProcess, ...]:
    return tuple(GuestProcess.read(item) for item in objects_in(found, name))


@dataclass(frozen=True, slots=True)
class GuestCensus:
    """A slot's living processes. `unattributed`: descendants of the supervisor that no slot can be given (local only)."""

    processes: tuple[GuestProcess, ...]
    unattributed: tuple[GuestProcess, ...]

    @classmethod
    def read(cls, found: Json) -> GuestCensus:
        """From the supervisor's answer."""
        return cls(_processes(found, "processes"), _processes(found, "unattributed"))


@dataclass(frozen=True, slots=True)
class ReclaimReport:
    """What a reclaim did. `is_complete`: nothing but what was to be kept was found twice in a row."""

    is_complete: bool
    killed: tuple[GuestProcess, ...]
    kept: tuple[GuestProcess, ...]
    remaining: tuple[GuestProcess, ...]
    unattributed: tuple[GuestProcess, ...]

    @classmethod
    def read(cls, found: Json) -> ReclaimReport:
        """From the supervisor's answer."""
        lists = [_processes(found, name) for name in ("killed", "kept", "remaining", "unattributed")]
        return cls(found.get("is_complete") is True, *lists)


@dataclass(frozen=True, slots=True)
class GuestStoreReading:
    """One store file as it was when it was opened.

    `prefix_sha256` is None when the file is shorter than the prefix. `tail` are the bytes from the prefix on, up to the
    bound that was asked for; `tail_is_cut` says that there are more.
    """

    length: int
    sha256: str
    prefix_sha256: str | None
    tail: bytes = field(repr=False)
    tail_is_cut: bool
    free_bytes: int

    @classmethod
    def read(cls, found: Json, tail: bytes) -> GuestStoreReading:
        """From the supervisor's answer and its payload."""
        return cls(
            number_in(found, "length"),
            text_in(found, "sha256"),
            optional_text_in(found, "prefix_sha256"),
            tail,
            found.get("tail_is_cut") is True,
            number_in(found, "free_bytes"),
        )


@dataclass(frozen=True, slots=True)
class TapReading:
    """Bytes of a tap. `is_gap`: what was asked for begins before the first byte that is left; `offset` is that byte."""

    offset: int
    data: bytes = field(repr=False)
    is_gap: bool
    start: int
    end: int
    is_ended: bool

    @classmethod
    def read(cls, found: Json, data: bytes) -> TapReading:
        """From the supervisor's answer and its payload."""
        return cls(
            number_in(found, "offset"),
            data,
            found.get("is_gap") is True,
            number_in(found, "start"),
            number_in(found, "end"),
            found.get("is_ended") is True,
        )


@dataclass(frozen=True, slots=True)
class TapState:
    """A tap's window. `exit_length`: how much had come when the process was reaped, None while it lives."""

    start: int
    end: int
    has_lost_unread: bool
    exit_length: int | None
    is_ended: bool

    @classmethod
    def read(cls, found: Json) -> TapState:
        """From the supervisor's object."""
        return cls(
            number_in(found, "start"),
            number_in(found, "end"),
            found.get("has_lost_unread") is True,
            optional_number_in(found, "exit_length"),
            found.get("is_ended") is True,
        )


@dataclass(frozen=True, slots=True)
class GuestExit:
    """How a program ended: one of the two is set."""

    code: int | None
    signal: int | None


@dataclass(frozen=True, slots=True)
class HostedProcess:
    """A program the supervisor runs or ran last in a slot."""

    slot: int
    process_generation: int
    pid: int | None
    start_time: int | None
    exit: GuestExit | None
    is_stdin_open: bool
    was_interrupted_on_loss: bool
    stdout: TapState
    stderr: TapState

    @classmethod
    def read(cls, found: Json) -> HostedProcess:
        """From the supervisor's object."""
        exited = found.get("exit")
        return cls(
            number_in(found, "slot"),
            number_in(found, "process_generation"),
            optional_number_in(found, "pid"),
            optional_number_in(found, "start_time"),
            None if not isinstance(exited, dict) else GuestExit(exited.get("code"), exited.get("signal")),
            found.get("is_stdin_open") is True,
            found.get("was_interrupted_on_loss") is True,
            TapState.read(object_in(found, "stdout")),
            TapState.read(object_in(found, "stderr")),
        )


@dataclass(frozen=True, slots=True)
class GuestSlot:
    """A slot's places, as paths inside the sandbox. `uid` is None where slots share a user."""

    slot: int
    uid: int | None
    home: str
    private: str
    state: str
    process_generation: int | None

    @classmethod
    def read(cls, found: Json) -> GuestSlot:
        """From the supervisor's object."""
        return cls(
            number_in(found, "slot"),
            optional_number_in(found, "uid"),
            text_in(found, "home"),
            text_in(found, "private"),
            text_in(found, "state"),
            optional_number_in(found, "process_generation"),
        )


@dataclass(frozen=True, slots=True)
class GuestHello:
    """What a supervisor says on every connection. `nonce` is None before the sandbox was adopted."""

    protocol: int
    boot_id: str
    nonce: str | None
    supervisor_version: str
    supervisor_digest: str
    is_isolated: bool
    workspace: str
    agents: str
    model_port: int | None
    slots: tuple[GuestSlot, ...]
    processes: tuple[HostedProcess, ...]

    @classmethod
    def read(cls, found: Json) -> GuestHello:
        """From the hello frame."""
        return cls(
            number_in(found, "protocol"),
            text_in(found, "boot_id"),
            optional_text_in(found, "nonce"),
            text_in(found, "supervisor_version"),
            text_in(found, "supervisor_digest"),
            found.get("is_isolated") is True,
            text_in(found, "workspace"),
            text_in(found, "agents"),
            optional_number_in(found, "model_port"),
            tuple(GuestSlot.read(item) for item in objects_in(found, "slots")),
            tuple(HostedProcess.read(item) for item in objects_in(found, "processes")),
        )

    def slot(self, number: int) -> GuestSlot:
        """The slot of that number. Raises GuestProtocolError if the sandbox has none."""
        for slot in self.slots:
            if slot.slot == number:
                return slot
        raise GuestProtocolError(f"this sandbox has no slot {number}", {"slot": number})


@dataclass(frozen=True, slots=True)
class SlotFile:
    """A file for the slot's own process to write before it starts. `base`: `home` or `private`."""

    base: str
    components: tuple[str, ...]
    mode: int
    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class GuestProgram:
    """What to start. `executable_sha256`: hex, checked before the start; None checks nothing.

    `must_be_unreadable`: the executable must be root's and 0711, so that nobody can trace its process.
    `is_bridged`: the executable is a server; the supervisor runs its own bridge for it, with the rest of `argv` as arguments.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    cwd: str
    files: tuple[SlotFile, ...] = ()
    executable_sha256: str | None = None
    must_be_unreadable: bool = True
    is_bridged: bool = False


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """Raw bytes of a stream. `offset` is the first byte's place in the whole stream."""

    stream: str
    offset: int
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class OutputGap:
    """Bytes [start, end) of a stream are lost: nobody was connected for longer than the tap's bound lasts."""

    stream: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class OutputEnded:
    """Nobody holds the stream open any more. It can come long after the exit, or never."""

    stream: str
    length: int


@dataclass(frozen=True, slots=True)
class ProcessExited:
    """The program was reaped. All it had printed came before this event; a child of it may still print."""

    code: int | None
    signal: int | None
    stdout_length: int
    stderr_length: int


GuestEvent = OutputChunk | OutputGap | OutputEnded | ProcessExited
