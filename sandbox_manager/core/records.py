"""What the sandbox manager keeps, one frozen record a thing. Rows of a store, and nothing of how they are stored.

Every record carries a `revision`: a change names the revision it was decided on, and is refused when another change came first. So no
decision is ever written over facts that it did not see. Generations live beside it: they are what other processes are fenced with.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sandbox_manager.core.context import RecordedProcess
from sandbox_manager.core.store_check import AdmittedTurn
from sandbox_manager.core.values import (
    ContextState,
    Generations,
    NativeLocator,
    ProcessDisposition,
    SlotProcess,
    StoreRecord,
    Verdict,
)


class TurnState(Enum):
    """How far a turn came, as the manager knows it."""

    CLAIMED = "CLAIMED"
    PREPARED = "PREPARED"
    ADMITTED = "ADMITTED"
    SETTLED = "SETTLED"
    ABANDONED = "ABANDONED"
    REFUSED = "REFUSED"

    @property
    def is_open(self) -> bool:
        """Whether the turn still has to be settled or given up."""
        return self in (TurnState.CLAIMED, TurnState.PREPARED, TurnState.ADMITTED)


class ActivationState(Enum):
    """A grant is used once: GRANTED, then ADMITTED, then ENDED; or ENDED at once."""

    GRANTED = "GRANTED"
    ADMITTED = "ADMITTED"
    ENDED = "ENDED"


@dataclass(frozen=True, slots=True)
class ConversationRef:
    """The key of a conversation: tenant and the client's own id."""

    tenant: str
    conversation_id: str

    @property
    def label(self) -> str:
        """As containers are labelled: "tenant/conversation_id"."""
        return f"{self.tenant}/{self.conversation_id}"


@dataclass(frozen=True, slots=True)
class Mark:
    """One thing that a verdict, or a refusal, rests on. `code` is a name of ErrorReason where there is one."""

    code: str
    expected: str
    observed: str


@dataclass(frozen=True, slots=True)
class Marks:
    """Several of them."""

    items: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True)
class Names:
    """A list of words, in order."""

    items: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Permissions:
    """What a conversation's agent may do with nobody asked. `mode` is auto, ask or deny; rules are in the agent's notation."""

    mode: str = "auto"
    allow_rules: tuple[str, ...] = ()
    deny_rules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SaidSettings:
    """What a turn says of its settings. What it does not say, the conversation keeps."""

    model: str | None = None
    permissions: Permissions | None = None
    options: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """What a member's processes are started with. `digest` is over the canonical JSON of the others."""

    model: str | None
    permissions: Permissions
    options: tuple[tuple[str, str], ...]
    digest: str


@dataclass(frozen=True, slots=True)
class HostRecord:
    """A host as it registered. Its lease is elapsed time and lives in memory only.

    `attested_by` is the digest of what its evidence was compared with: with other pins it must attest anew.
    """

    host_id: str
    state: str
    public_key_jwk: str
    address: str
    engine: str
    release_sha: str
    image_id: str
    boot_id: str
    agents: Names
    lease_generation: int
    attested_by: str
    findings: Marks = Marks()
    revision: int = 0


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """One container and its workspace. `container_id` and `image_id` are None until the engine has said them.

    `stopped_*` are the clean stop: container id, StartedAt and FinishedAt of the stopped container as inspected. They are
    emptied, durably, before the container is started again. `released` says that a removed group's container is gone from its host.
    """

    group_id: str
    tenant: str
    conversation_id: str
    host_id: str
    state: str
    container_generation: int
    nonce: str
    container_id: str | None = None
    image_id: str | None = None
    workspace: str | None = None
    started_at: str | None = None
    stopped_container_id: str | None = None
    stopped_started_at: str | None = None
    stopped_finished_at: str | None = None
    released: bool = False
    revision: int = 0


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """A conversation's execution identity. `process_generation` is the newest one that was ever handed out."""

    tenant: str
    conversation_id: str
    member_id: str
    group_id: str
    slot: int
    agent: str
    last_settled_turn: str | None = None
    settled_turns: int = 0
    activation_generation: int = 0
    process_generation: int = 0
    kept: RecordedProcess | None = None
    disposition: ProcessDisposition | None = None
    disposition_reason: str | None = None
    interrupted_turn: str | None = None
    settings: ProcessSettings | None = None  # the newest granted ones: what a turn does not say is kept
    revision: int = 0

    @property
    def ref(self) -> ConversationRef:
        """Its conversation."""
        return ConversationRef(self.tenant, self.conversation_id)


@dataclass(frozen=True, slots=True)
class LocatorRecord:
    """The saved locator: what the newest settled turn proved. One native session of a group belongs to one member."""

    tenant: str
    conversation_id: str
    group_id: str
    member_id: str
    native_session_id: str
    locator: NativeLocator
    turn_id: str
    revision: int = 0


@dataclass(frozen=True, slots=True)
class StoreRecordRow:
    """What the native store held at the newest settlement."""

    tenant: str
    conversation_id: str
    turn_id: str
    length: int
    digest: str
    record: StoreRecord
    revision: int = 0


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """A claimed turn. `ordinal` counts the conversation's turns as they were claimed, from 1."""

    tenant: str
    conversation_id: str
    turn_id: str
    ordinal: int
    agent: str
    message_digest: str
    message_length: int
    state: TurnState
    runner_id: str
    runner_address: str
    activation_id: str | None = None
    outcome: str | None = None
    reason: str | None = None
    cause: str | None = None
    context_state: ContextState | None = None
    context_reason: str | None = None
    revision: int = 0

    @property
    def ref(self) -> ConversationRef:
        """Its conversation."""
        return ConversationRef(self.tenant, self.conversation_id)


@dataclass(frozen=True, slots=True)
class ActivationRecord:
    """A grant: one prompt may be admitted to one member in it. `process_generation` is the one a new process must get.

    `kept` is what was recorded of the member's process then; `may_reuse` whether the grant lets this turn use it.
    `container_started` says that the container was stopped, and was started for this grant.
    """

    activation_id: str
    tenant: str
    conversation_id: str
    turn_id: str
    member_id: str
    group_id: str
    host_id: str
    runner_id: str
    state: ActivationState
    container_id: str
    container_generation: int
    process_generation: int
    activation_generation: int
    locator: NativeLocator
    message_id: str
    resumes: bool
    first_turn: bool
    settings: ProcessSettings
    kept: RecordedProcess | None
    may_reuse: bool
    container_started: bool
    token: str
    revision: int = 0

    @property
    def generations(self) -> Generations:
        """As granted."""
        return Generations(self.container_generation, self.process_generation, self.activation_generation)


@dataclass(frozen=True, slots=True)
class AdmissionRecord:
    """The permission to send one message once, and the process it was given for."""

    activation_id: str
    tenant: str
    conversation_id: str
    turn_id: str
    message_digest: str
    message_length: int
    message_id: str
    context_state: ContextState
    context_reason: str
    process_generation: int
    process: SlotProcess | None
    agent_version: str | None
    container_started_at: str
    report_digest: str
    admission_jws: str
    revision: int = 0


@dataclass(frozen=True, slots=True)
class LeftoverRecord:
    """What an admitted turn may have left in the native store, until a later settlement covers it.

    Written with the admission, filled in from the observation when the turn is given up or not saved.
    """

    activation_id: str
    tenant: str
    conversation_id: str
    turn_id: str
    native_session_id: str
    admitted: AdmittedTurn
    revision: int = 0


@dataclass(frozen=True, slots=True)
class SettlementRecord:
    """That a native turn is over, on whose evidence, with both verdicts."""

    activation_id: str
    request_id: str
    tenant: str
    conversation_id: str
    turn_id: str
    saved: bool
    outcome: str
    manager_verdict: Verdict
    store_verdict: str
    runner_verdict: Verdict | None
    findings: Marks
    process_disposition: ProcessDisposition
    process_reason: str
    locator: NativeLocator | None
    generations: Generations
    container_id: str
    end_evidence_digest: str
    end_reason: str
    observation_digest: str
    revision: int = 0


@dataclass(frozen=True, slots=True)
class TombstoneRecord:
    """A removed conversation. Its id is not used again."""

    tenant: str
    conversation_id: str
    group_id: str
    revision: int = 0


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A public key that was seen: `owner` is "manager" or "host:<host id>"."""

    key_id: str
    owner: str
    jwk: str
    revision: int = 0
