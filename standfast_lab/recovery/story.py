"""One scenario: a script for the provider, the user turns, and what must be counted. And how it is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from direct_agent.conductors.round import RoundEnd, RoundOutcome
from direct_agent.core.endpoint import Endpoint, EndpointKind, Thinking, Wire
from direct_agent.recovery.policy import Policy, RoundRole
from standfast_lab.recovery.scripted_server import Heard, ScriptedServer, Step
from standfast_lab.recovery.turn_runner import Conversation

MODEL = "deepseek-v4-flash"


@dataclass(frozen=True, slots=True)
class Told:
    """What was seen of a story."""

    conversation: Conversation
    heard: Sequence[Heard]
    outcomes: Sequence[RoundOutcome]

    @property
    def end(self) -> str:
        """How the last turn ended: completed, failed, cancelled, stopped; refused is a failure too."""
        last = self.outcomes[-1].end
        return "completed" if last is RoundEnd.COMMITTED else last.value

    @property
    def gaps_s(self) -> list[float]:
        """Seconds between requests, by the hand clock."""
        return [round(b.at_s - a.at_s, 3) for a, b in zip(self.heard, self.heard[1:], strict=False)]

    @property
    def bodies(self) -> list[bytes]:
        return [each.body for each in self.heard]


Check = Callable[[Told], str | None]
"""A further claim about a story: None when it holds, else what is wrong."""

Prepare = Callable[[Conversation], None]


@dataclass(frozen=True, slots=True)
class Story:
    """`gaps_s` None: not looked at. `prepare` may set cancels and budgets. `steps` may need the conversation."""

    name: str
    wire: Wire
    steps: Callable[[Conversation], Sequence[Step]]
    requests: int
    executions: int
    outcome: str
    gaps_s: Sequence[float] | None = None
    kind: EndpointKind = EndpointKind.STRICT_DEEPSEEK
    model: str = MODEL
    thinking: Thinking = Thinking.ON
    effort: str | None = None
    turns: Sequence[str] = ("please echo hi",)
    role: RoundRole = field(default_factory=RoundRole)
    policy: Policy = field(default_factory=Policy)
    prepare: Prepare | None = None
    checks: Sequence[Check] = ()
    usage_unknown: bool | None = None

    @property
    def protocol(self) -> str:
        """As rows name it: the wire, and for Messages the kind of endpoint."""
        if self.wire is not Wire.MESSAGES:
            return self.wire.value
        names = {
            EndpointKind.STRICT_DEEPSEEK: "messages strict",
            EndpointKind.UNKNOWN_GATEWAY: "messages gateway",
            EndpointKind.NATIVE_CLAUDE: "messages native",
        }
        return names[self.kind]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the report."""

    protocol: str
    scenario: str
    requests: int
    executions: int
    outcome: str
    passed: bool
    problems: tuple[str, ...] = ()
    model: str = MODEL


async def tell(story: Story) -> Told:
    """Runs a story over a loopback connection, with the clock turned by hand."""
    endpoint = Endpoint(
        story.wire,
        story.kind,
        "http://127.0.0.1",
        story.model,
        story.thinking,
        story.effort,
        name="lab",
        key_variable="LAB_API_KEY",
    )
    conversation = Conversation(endpoint, policy=story.policy, role=story.role)
    conversation.budget.clock = conversation.clock
    if story.prepare is not None:
        story.prepare(conversation)
    server = ScriptedServer(story.steps(conversation), conversation.clock.monotonic)
    outcomes = []
    async with server:
        conversation.endpoint = replace(endpoint, base_url=server.base_url)
        for text in story.turns:
            outcomes.append(await conversation.turn(text))
    return Told(conversation, server.heard, outcomes)


def judged(story: Story, told: Told) -> Row:
    """The row of a story, with everything that is not as it must be."""
    problems: list[str] = []

    def expect(what: str, expected: object, found: object) -> None:
        if expected != found:
            problems.append(f"{what}: expected {expected}, found {found}")

    expect("requests", story.requests, len(told.heard))
    expect("executions", story.executions, told.conversation.executions)
    expect("outcome", story.outcome, told.end)
    expect("usage request count", story.requests, told.conversation.usage.request_count)
    if story.gaps_s is not None:
        expect("gaps", [float(gap) for gap in story.gaps_s], told.gaps_s)
    if story.usage_unknown is not None:
        expect("usage unknown", story.usage_unknown, told.conversation.usage.is_unknown)
    problems.extend(problem for check in story.checks if (problem := check(told)) is not None)
    return Row(
        story.protocol,
        story.name,
        len(told.heard),
        told.conversation.executions,
        told.end,
        not problems,
        tuple(problems),
        story.model,
    )


# --- claims that several stories share


def same_bodies(*numbers: int) -> Check:
    """The requests of these numbers (from 1) are byte for byte the same."""

    def check(told: Told) -> str | None:
        bodies = {told.bodies[number - 1] for number in numbers if number <= len(told.bodies)}
        return None if len(bodies) == 1 else f"requests {numbers} differ"

    return check


def only_messages_differ(first: int, second: int) -> Check:
    """A repaired request keeps every field but the message list."""

    def check(told: Told) -> str | None:
        if len(told.bodies) < max(first, second):
            return f"request {second} is missing"
        a, b = (json.loads(told.bodies[number - 1]) for number in (first, second))
        changed = {key for key in a.keys() | b.keys() if a.get(key) != b.get(key)}
        return None if changed and changed <= {"messages", "input"} else f"changed: {sorted(changed)}"

    return check


def holds(number: int, *texts: str) -> Check:
    """The request holds each text."""

    def check(told: Told) -> str | None:
        if len(told.bodies) < number:
            return f"request {number} is missing"
        missing = [text for text in texts if text not in told.bodies[number - 1].decode()]
        return f"request {number} lacks {missing}" if missing else None

    return check


def lacks(number: int, *texts: str) -> Check:
    """The request holds none of the texts."""

    def check(told: Told) -> str | None:
        if len(told.bodies) < number:
            return f"request {number} is missing"
        found = [text for text in texts if text in told.bodies[number - 1].decode()]
        return f"request {number} holds {found}" if found else None

    return check


def no_waiting(told: Told) -> str | None:
    """The waiting phase was never entered."""
    waited = [event for event in told.conversation.events.named("retrying") if event["waiting"]]
    return "it waited" if waited else None


def fault_class(word: str) -> Check:
    """The last round failed with this class."""

    def check(told: Told) -> str | None:
        fault = told.outcomes[-1].fault
        found = fault.fault_class.value if fault is not None else None
        return None if found == word else f"class: expected {word}, found {found}"

    return check
