"""Six user turns with one save and load: nothing is retried, and history, tools and settings stay byte for byte.

Also here because it is no round: what an auxiliary call does.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

from direct_agent.adapters.http_transport import HttpTransport
from direct_agent.conductors.auxiliary import ask
from direct_agent.conductors.round import RoundEnd, Surroundings
from direct_agent.core.endpoint import Endpoint, EndpointKind, Thinking, Wire
from direct_agent.core.request_settings import RequestSettings
from direct_agent.recovery.memory import RepairMemory
from direct_agent.transcript import UserMessage
from direct_agent.transcript_json import from_json, to_json
from standfast_lab.recovery import answers
from standfast_lab.recovery.matrix import MODELS
from standfast_lab.recovery.scripted_server import ScriptedServer, Step
from standfast_lab.recovery.story import Row
from standfast_lab.recovery.turn_runner import Conversation

TURNS = 6


async def continuity() -> list[Row]:
    """One row a pair of model and protocol: 12 requests, 6 executions, no retry."""
    return [await _continuity(model, wire) for model in MODELS for wire in Wire]


async def _continuity(model: str, wire: Wire) -> Row:
    endpoint = Endpoint(wire, EndpointKind.STRICT_DEEPSEEK, "http://127.0.0.1", model, Thinking.ON, name="lab")
    steps = [
        Step(body)
        for turn in range(TURNS)
        for body in (answers.tool(wire, f"call_{turn}"), answers.text(wire, f"answer {turn}"))
    ]
    conversation = Conversation(endpoint)
    problems: list[str] = []
    executions = 0
    async with ScriptedServer(steps, conversation.clock.monotonic) as server:
        conversation.endpoint = replace(endpoint, base_url=server.base_url)
        for turn in range(TURNS):
            if turn == TURNS // 2:
                executions += conversation.executions
                conversation = _reloaded(conversation)
            outcome = await conversation.turn(f"question {turn}")
            if outcome.end is not RoundEnd.COMMITTED:
                problems.append(f"turn {turn} ended {outcome.end.value}")
        executions += conversation.executions
        retried = len(conversation.events.named("retrying"))
    bodies = [json.loads(heard.body) for heard in server.heard]
    if retried:
        problems.append(f"{retried} retries")
    if (len(bodies), executions) != (2 * TURNS, TURNS):
        problems.append(f"expected {2 * TURNS} requests and {TURNS} executions")
    problems.extend(_unstable(wire, bodies))
    return Row(wire.value, f"continuity: {TURNS} turns, one save and load", len(bodies), executions,
               "completed" if not problems else "failed", not problems, tuple(problems), model)  # fmt: skip


def _reloaded(old: Conversation) -> Conversation:
    """The conversation as a new process finds it: from what was saved, as JSON text."""
    saved = json.dumps([to_json(message) for message in old.transcript])
    new = Conversation(old.endpoint)
    new.transcript = [from_json(value) for value in json.loads(saved)]
    new.memory = RepairMemory.restored(new.endpoint, old.log.records, new.history())
    return new


def _unstable(wire: Wire, bodies: list[dict[str, object]]) -> list[str]:
    """What of a request is not the earlier one's, continued."""
    name = "input" if wire is Wire.RESPONSES else "messages"
    problems = []
    for number, (before, after) in enumerate(pairwise(bodies), start=2):
        old, new = before[name], after[name]
        if not isinstance(old, list) or not isinstance(new, list) or new[: len(old)] != old:
            problems.append(f"request {number} does not begin with the history of the one before")
        if {key: value for key, value in before.items() if key != name} != {
            key: value for key, value in after.items() if key != name
        }:
            problems.append(f"request {number} has other settings or tools")
    return problems


async def auxiliary() -> list[Row]:
    """503 three times, then text; and for ever: finite, buffered, counted apart."""
    rows = []
    for wire in Wire:
        good = [*[answers.unavailable()] * 3, Step(answers.text(wire, "a summary"))]
        rows.append(await _auxiliary(wire, "auxiliary: 503 three times, then text", good, 4, RoundEnd.COMMITTED))
        cut = [answers.cut_text(wire)]
        rows.append(await _auxiliary(wire, "auxiliary: cut always, no partial text", cut, 4, RoundEnd.FAILED))
    return rows


async def _auxiliary(wire: Wire, name: str, steps: list[Step], requests: int, end: RoundEnd) -> Row:
    conversation = Conversation(Endpoint(wire, EndpointKind.STRICT_DEEPSEEK, "http://127.0.0.1", "m", name="lab"))
    clock = conversation.clock
    async with (
        ScriptedServer(steps, clock.monotonic) as server,
        HttpTransport(None, conversation.timeouts) as transport,
    ):
        endpoint = replace(conversation.endpoint, base_url=server.base_url)
        around = Surroundings(transport, clock, conversation.log, conversation.events)
        view = (UserMessage("sum up"),)
        outcome = await ask(endpoint, view, RequestSettings(), around, conversation.cancel, conversation.budget)
    problems = []
    if outcome.end is not end or len(server.heard) != requests or outcome.usage.request_count != requests:
        problems.append(f"expected {requests} requests and {end.value}, found {outcome.usage} {outcome.end.value}")
    if clock.sleeps != [2.0, 4.0, 8.0]:
        problems.append(f"delays {clock.sleeps}")
    if (outcome.text is not None) != (end is RoundEnd.COMMITTED) or not outcome.usage.is_unknown:
        problems.append(f"text {outcome.text!r}, usage {outcome.usage}")
    word = "completed" if outcome.end is RoundEnd.COMMITTED else outcome.end.value
    return Row(wire.value, name, len(server.heard), 0, word, not problems, tuple(problems), "m")
