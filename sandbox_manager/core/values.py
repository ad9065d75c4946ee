"""The value types that the manager, the host agent and the agent files share.

Everything here is frozen data: no clock, no I/O, no stub. Digests are lower-case sha256 hex of bytes; a text's digest is over its UTF-8
bytes. Unknown is `None`. The protos of `standfast.host.v1` and `standfast.sandbox.v1` carry the same facts over the wire; the mapping is
at the edges (`services/`, `host/service.py`), never here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Verdict(Enum):
    """What a witness says. Only CONFIRMED lets anything be saved."""

    CONFIRMED = "CONFIRMED"
    CONTRADICTED = "CONTRADICTED"
    UNPROVEN = "UNPROVEN"


class ContextState(Enum):
    """How a turn's context was kept (design chapter 3)."""

    NEW = "NEW"
    LIVE = "LIVE"
    RESTORED = "RESTORED"
    LOST = "LOST"


class ProcessDisposition(Enum):
    """What becomes of the CLI process after a turn (design chapter 5)."""

    KEPT = "KEPT"
    RETIRED = "RETIRED"
    RECLAIM_FIRST = "RECLAIM_FIRST"


@dataclass(frozen=True, slots=True)
class NativeLocator:
    """What a native resume needs. `store` names the native store relative to the member's home, '/'-separated.

    In the grant of a session that begins, `native_session_id` or `store` is empty where the CLI itself is to name it in its
    handshake; from the admission on a locator is whole.
    """

    agent: str
    native_session_id: str
    cwd: str
    store: str

    @property
    def is_whole(self) -> bool:
        """Whether nothing of it is left for the CLI to name."""
        return bool(self.native_session_id and self.store)


@dataclass(frozen=True, slots=True)
class Generations:
    """Fencing numbers. Each rises by one at each new container, process, activation; an older one is refused everywhere."""

    container: int
    process: int
    activation: int


class StoreKind(Enum):
    """How a native store becomes the bytes that are measured."""

    FILE = "FILE"  # they are the file's
    DATABASE = "DATABASE"  # the session is rendered from a copy of the database, one line per lasting message


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """Where a native store lies: `base` is `home` (the member's home) or `workspace`; components never hold '/' or '..'.

    Of a DATABASE they name its file, `session_id` the session in it and `renderer` how that is rendered; None of a FILE.
    """

    base: str
    components: tuple[str, ...]
    kind: StoreKind = StoreKind.FILE
    session_id: str | None = None
    renderer: str | None = None


class RecordKind(Enum):
    """What a record in a native store is, as its agent file reads it."""

    USER = "USER"  # a user's prompt text
    ASSISTANT = "ASSISTANT"  # a model's text, not synthetic
    TOOL = "TOOL"  # tool calls, tool results, and what else belongs to a turn and is no text of user or assistant
    BOOKKEEPING = "BOOKKEEPING"  # kinds the agent file lists: may appear at any time
    NEW_BASE = "NEW_BASE"  # a native compaction boundary
    FOREIGN = "FOREIGN"  # anything else: explained by nothing


@dataclass(frozen=True, slots=True)
class StoreRecordLine:
    """One record of a native store's segment. Line numbers are 1-based within the segment."""

    line: int
    kind: RecordKind
    uuid: str | None
    parent: str | None
    text_digests: tuple[str, ...]  # one per text block, in order
    session_id: str | None
    printed_as: str | None = None  # the id under which the tap reader knows it, where the CLI does not print its uuid


@dataclass(frozen=True, slots=True)
class StoreSegment:
    """What a store holds from a byte offset on. `leaf` is the record a resume would start from; `None` if the segment has none.

    `chain` are the uuids walked from the leaf through the segment, newest first; `chain_exit` is the parent at which the walk left
    the segment (a uuid of the part before it), `None` where the chain began in the segment. `dangling` is a parent that is in
    neither part (only known when the segment starts at 0). `hanging` are the uuids of the segment whose ancestry within it
    leads to the leaf or below it, for the next segment's exit.
    """

    records: tuple[StoreRecordLine, ...]
    bad_lines: tuple[int, ...]  # complete lines that are no record: glued or damaged
    torn_tail: bool  # the last line has no line end
    leaf: str | None
    chain: tuple[str, ...]
    chain_exit: str | None
    dangling: str | None
    hanging: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoreReading:
    """One read of a native store by the supervisor. `error` is `None` or one of ABSENT, NOT_REGULAR, SYMLINK, OWNER, NLINK,
    UNREADABLE, NO_SPACE, UNWRITABLE, TOO_LARGE; the other fields are `None` then."""

    error: str | None
    length: int | None
    digest: str | None
    prefix_length: int
    prefix_digest: str | None  # of the first prefix_length bytes; None when the store is shorter
    segment: StoreSegment | None  # from prefix_length on


@dataclass(frozen=True, slots=True)
class StoreRecord:
    """What the native store held at a settlement: the next proof starts from it.

    `anchors` are the uuids from which the next segment's chain may hang: the newest lasting record and what hangs below it.
    `promised` are uuids of the turn's message and assistant texts that were not on disk when the wait ran out: the next proof must
    find them. `late` are other printed uuids that were not on disk then: they may still come, and are explained if they do.
    """

    length: int
    digest: str
    anchors: tuple[str, ...]
    promised: tuple[str, ...] = ()
    late: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NativeEnd:
    """A native turn's own end evidence (design chapter 5). `is_error` is read from the field that the agent's file names."""

    is_error: bool
    reason: str | None  # the CLI's own word, e.g. "completed", "api_error"
    status: int | None  # provider status, when the CLI says one
    tap_offset: int  # byte offset just after the line that is the evidence
    evidence_digest: str  # of that raw line
    cancelled: bool = False  # the end of an interrupted turn


@dataclass(frozen=True, slots=True)
class AssistantText:
    """One root assistant text block as printed: the native record's uuid and the digest of its text.

    `aborted`: an interrupt cut the block short, so the relay never delivered it as a whole and its digest proves nothing.
    """

    uuid: str | None
    text_digest: str
    aborted: bool = False


@dataclass(frozen=True, slots=True)
class TapFindings:
    """What the raw tap of one activation says, read by the agent file from root events only."""

    session_ids: tuple[str, ...]  # distinct, in order of first sight, root events only
    reset_to: str | None  # a native id change announced by the CLI itself
    identity_before_output: bool  # an identity event came before the first content of our message
    handshake: str | None  # None (no answer yet), "OK", or the CLI's own refusal in short, e.g. "NO_SUCH_SESSION"
    message_started: bool  # our message's id was acknowledged as started
    end: NativeEnd | None
    assistant: tuple[AssistantText, ...]  # non-synthetic root texts of this turn
    retry_seen: bool
    background_pending: bool
    lifecycle_closed: bool  # the message's own completed/cancelled mark came
    noise_lines: int
    open_requests: tuple[str, ...]  # native request ids not answered
    agent_version: str | None  # as the CLI printed it
    printed: tuple[
        str, ...
    ] = ()  # native uuids of all root records of this turn as printed: the store must come to hold them
    bases: tuple[str, ...] = ()  # native uuids of the compactions that the CLI printed in this activation
    message_printed_as: str | None = None  # our message's record, where the CLI gives it another id than we sent
    handshake_session_id: str | None = None  # the session that the CLI itself named in its handshake
    handshake_store: str | None = None  # the absolute path of its store, where the CLI names it there
    retire_reason: str | None = (
        None  # why the process should serve no other turn, where something in the output says so
    )


@dataclass(frozen=True, slots=True)
class SlotProcess:
    """One process of a slot. `started_ticks` is field 22 of /proc/PID/stat: with the pid it is an identity."""

    pid: int
    started_ticks: int


@dataclass(frozen=True, slots=True)
class Census:
    """The slot's processes after clean-up. `complete` is False when a process that should be gone could not be proved gone."""

    complete: bool
    kept: tuple[SlotProcess, ...]
    killed: int
    remaining: tuple[SlotProcess, ...]
    unattributed: int  # `local` only: reported, not killed


@dataclass(frozen=True, slots=True)
class ContainerFacts:
    """The engine's inspect, and the nonce as the supervisor read it from the writable layer."""

    container_id: str
    image_id: str
    nonce: str
    started_at: str


@dataclass(frozen=True, slots=True)
class RelayFindings:
    """What passed the relay during one activation. Digests of whole assistant text blocks handed to the CLI."""

    requests: int
    delivered_text_digests: tuple[str, ...]
    unread: bool  # some response could not be read by the observer; it explains an absent text and excuses none
    statuses: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Observation:
    """What the host agent saw of one activation: taken once at the native end (or at its failing), journalled outside the sandbox."""

    activation_id: str
    turn_id: str
    group_id: str
    member_id: str
    generations: Generations
    container: ContainerFacts
    locator: NativeLocator
    message_id: str
    message_digest: str | None  # of what was really forwarded; None when nothing was
    message_length: int | None
    forwarded: bool
    process_was_new: bool
    process_alive: bool
    exit_code: int | None
    tap_from: int
    tap_to: int
    tap_gap: bool
    tap: TapFindings
    store: StoreReading | None
    census: Census | None
    relay: RelayFindings | None
    disposition: ProcessDisposition  # what the host agent did or will do with the process
    disposition_reason: str
    interrupted_by: (
        str | None
    )  # None, or ATTACH_LOST, CANCEL, TIMEOUT, SUPERVISOR_LOST, HOST_RESTART, HOST_FAULT, CLI_EXIT,
    # UNANSWERED_QUESTION, or the reason of a refused frame


@dataclass(frozen=True, slots=True)
class ActivationReport:
    """What the host agent found when a slot was made ready, before the prompt is admitted. The state is decided on it."""

    activation_id: str
    turn_id: str
    group_id: str
    member_id: str
    generations: Generations
    container: ContainerFacts
    agent: str
    agent_version: str | None
    settings_digest: str
    locator: NativeLocator
    process_was_running: bool  # the recorded process was found alive and is used
    tap_gap: bool
    written_outside: bool  # something was written to it outside an activation
    handshake: str | None  # "OK", or the CLI's refusal in short; None where a running process needs none
    observed_session_id: str | None  # None where the CLI tells it only with its first event (Claude Code)
    store: StoreReading | None  # read before the handshake; None only for a NEW session
    process: SlotProcess | None
    observed_store: str | None = None  # the store that the CLI named, relative to the home where it lies there


@dataclass(frozen=True, slots=True)
class LaunchSettings:
    """What a launch spec is made from. A runner cannot name a command: only these."""

    agent: str
    native_session_id: str
    resume: bool
    home: str
    tmp: str
    workspace: str
    executable: str
    model_base_url: str
    slot_secret: str = field(repr=False)
    model: str | None = None
    permission_mode: str = "auto"
    options: tuple[tuple[str, str], ...] = ()
    isolated: bool = True  # False on `local`
    store: str = ""  # the locator's, relative to `home`; empty where the CLI is to name it
    allow_rules: tuple[str, ...] = ()
    deny_rules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """One CLI process: what to run, in what environment, and which lines may leave it before a prompt."""

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = field(repr=False)
    cwd: str
    files: tuple[tuple[str, int, bytes], ...] = ()  # (path, mode, content), written by a process of the slot
    is_bridged: bool = False  # argv[0] is a server; the supervisor runs its bridge for it, with the rest as arguments
