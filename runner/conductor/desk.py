"""What is known of one running turn, shared by the parts that work on it. One task writes it: the turn's own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from runner.adapters.wire import event_to_wire
from runner.conductor.attached import AttachedReader
from runner.conductor.feed import TurnFeed
from runner.conductor.negotiation import Grant, Negotiation
from runner.conductor.parts import Parts, TurnRequest
from runner.conductor.standing import Standing
from runner.core.events import Warned
from runner.core.turn import TurnMachine
from runner.core.values import NativeLocator, TurnKey
from runner.drivers.registry import AgentEntry
from standfast.runner.v1 import runner_pb2


@dataclass
class Desk:
    """One turn. `request` None: it was found unresolved after a restart, and nothing of it is sent any more."""

    parts: Parts
    key: TurnKey
    agent: AgentEntry
    feed: TurnFeed
    standing: Standing
    request: TurnRequest | None
    talk: Negotiation
    machine: TurnMachine = field(default_factory=TurnMachine)
    grant: Grant | None = None
    reader: AttachedReader | None = None
    process_is_new: bool = False
    report_jws: str = ""
    admission_jws: str = ""

    def snapshot(self) -> runner_pb2.Turn:
        """The turn as it stands."""
        return self.standing.snapshot(self.machine.state, self.feed.recorded_sequence)

    def take_locator(self, locator: NativeLocator) -> None:
        """The locator that the message is admitted for."""
        assert self.grant is not None
        self.grant = replace(self.grant, locator=locator)
        self.standing.take_grant(self.grant)

    def warn(self, code: str, message: str) -> None:
        """Tells the client something that does not end the turn."""
        self.feed.publish(event_to_wire(Warned(code, message)))
