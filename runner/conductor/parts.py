"""What the tasks of the conductor share, and the limits of their waits."""

from __future__ import annotations

from dataclasses import dataclass

from runner.adapters.event_store import EventStore
from runner.adapters.host_client import HostClients
from runner.adapters.manager_client import ManagerClient
from runner.adapters.turn_store import TurnStore
from runner.core.requests import Message
from runner.core.values import NativeLocator
from runner.drivers.registry import AgentEntry
from runner.policy import RunnerPolicy
from standfast.runner.v1 import runner_pb2
from standfast.types.v1 import types_pb2
from standfast_chassis.tracing import Tracing


@dataclass(frozen=True, slots=True)
class Limits:
    """Waits in seconds. `turn_limit_s` 0: no limit.

    The host agent bounds the same things more tightly; the runner's own bounds only matter when it does not answer.
    """

    turn_limit_s: float = 0.0
    silence_limit_s: float = 600.0
    handshake_timeout_s: float = 45.0
    interrupt_wait_s: float = 10.0
    quiesce_timeout_s: float = 45.0
    request_expiry_s: float = 600.0  # how long a native request waits for its answer
    queue_max: int = 32  # messages of one conversation that may wait
    manager_wait_s: float = 5.0  # for claim and prepare, when the manager is away
    admit_wait_s: float = 30.0
    former_wait_s: float = 15.0  # for a former turn that must be resolved first
    give_up_wait_s: float = 10.0  # for telling the manager that a turn was not sent
    replay_timeout_s: float = 60.0
    retry_first_s: float = 0.1
    retry_max_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Parts:
    """The runner's own identity, and its neighbours."""

    runner_id: str
    runner_address: str
    store: TurnStore
    events: EventStore
    manager: ManagerClient
    hosts: HostClients
    tracing: Tracing
    limits: Limits
    policy: RunnerPolicy


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """A checked request to run a turn. A limit that is None: the runner's setting. `source` is the request as it came: a
    message that waits is kept as that.
    """

    message: Message
    agent: AgentEntry
    settings: types_pb2.AgentSettings
    expect: types_pb2.Expect.ValueType
    locator: NativeLocator | None
    turn_limit_s: float | None
    silence_limit_s: float | None
    request_expiry_s: float | None
    when_busy: str
    source: runner_pb2.StartTurnRequest
