"""One settled-looking turn, as the manager expects it and as the host agent saw it: tests change one thing in it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import Any

from sandbox_manager.agents.port import GateContext
from sandbox_manager.agents.registry import agent_named
from sandbox_manager.core.context import ExpectedContainer, ExpectedMember, Presence, RecordedProcess
from sandbox_manager.core.values import (
    ActivationReport,
    Census,
    ContainerFacts,
    Generations,
    NativeLocator,
    Observation,
    ProcessDisposition,
    RelayFindings,
    SlotProcess,
    StoreReading,
    StoreRecord,
    TapFindings,
)
from sandbox_manager.core.verdict import Expected

SESSION = "aaaaaaaa-0000-4000-8000-000000000001"
OTHER_SESSION = "bbbbbbbb-0000-4000-8000-000000000002"
MESSAGE = "remember: plum"
MESSAGE_ID = "11111111-0000-4000-8000-000000000001"
AGENT = agent_named("claude-code")
LOCATOR: NativeLocator = AGENT.locator(SESSION, "/workspace")
CONTEXT = GateContext("/workspace", "auto", None, (), LOCATOR, resumes=False)
CLI = SlotProcess(pid=42, started_ticks=9000)


def digest(text: str | bytes) -> str:
    return hashlib.sha256(text if isinstance(text, bytes) else text.encode()).hexdigest()


def jsonl(*records: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records)


# --- a transcript --------------------------------------------------------------------------------------------------------------------
def user(uuid: str, parent: str | None, text: str, **more: Any) -> dict[str, Any]:
    message = {"role": "user", "content": [{"type": "text", "text": text}]}
    return {"type": "user", "uuid": uuid, "parentUuid": parent, "sessionId": SESSION, "message": message, **more}


def assistant(uuid: str, parent: str | None, text: str, *, model: str = "m", **more: Any) -> dict[str, Any]:
    message = {"id": f"msg-{uuid}", "role": "assistant", "model": model, "content": [{"type": "text", "text": text}]}
    return {"type": "assistant", "uuid": uuid, "parentUuid": parent, "sessionId": SESSION, "message": message, **more}


def tool_use(uuid: str, parent: str | None) -> dict[str, Any]:
    block = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {}}
    message = {"id": f"msg-{uuid}", "role": "assistant", "model": "m", "content": [block]}
    return {"type": "assistant", "uuid": uuid, "parentUuid": parent, "sessionId": SESSION, "message": message}


def tool_result(uuid: str, parent: str | None) -> dict[str, Any]:
    message = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "ok"}]}
    return {"type": "user", "uuid": uuid, "parentUuid": parent, "sessionId": SESSION, "message": message}


def bookkeeping(kind: str = "queue-operation") -> dict[str, Any]:
    return {"type": kind, "sessionId": SESSION}


def system(uuid: str, parent: str | None, subtype: str) -> dict[str, Any]:
    return {"type": "system", "subtype": subtype, "uuid": uuid, "parentUuid": parent, "sessionId": SESSION}


SETTLED = jsonl(bookkeeping(), user("u0", None, "hello"), assistant("a0", "u0", "hi"), bookkeeping("last-prompt"))
NEW_PART = jsonl(bookkeeping(), user(MESSAGE_ID, "a0", MESSAGE), assistant("a1", MESSAGE_ID, "noted"))
FIRST_PART = jsonl(bookkeeping(), user(MESSAGE_ID, None, MESSAGE), assistant("a1", MESSAGE_ID, "noted"))


def read(data: bytes, record: StoreRecord | None = None, *, error: str | None = None) -> StoreReading:
    """What the supervisor would report of these bytes, read against a record."""
    if error is not None:
        return StoreReading(error, None, None, record.length if record else 0, None, None)
    start = record.length if record else 0
    return StoreReading(
        error=None,
        length=len(data),
        digest=digest(data),
        prefix_length=start,
        prefix_digest=digest(data[:start]) if len(data) >= start else None,
        segment=AGENT.read_segment(data[start:], from_start=start == 0),
    )


def record_of(data: bytes, **more: Any) -> StoreRecord:
    """The record that a settlement of these bytes leaves."""
    hanging = AGENT.read_segment(data, from_start=True).hanging
    return StoreRecord(len(data), digest(data), hanging, **more)


# --- a tap ---------------------------------------------------------------------------------------------------------------------------
def printed(
    session: str = SESSION, *, text: str | None = "noted", uuid: str = "a1", is_error: bool = False, **result: Any
) -> bytes:
    """A turn as the CLI prints it. `text` None: the model said nothing."""
    mark = {"type": "command_lifecycle", "command_uuid": MESSAGE_ID, "session_id": session}
    events: list[dict[str, Any]] = [
        {**mark, "state": "queued"},
        {**mark, "state": "started"},
        {"type": "system", "subtype": "init", "session_id": session, "claude_code_version": "2.1.220"},
    ]
    if text is not None:
        message = {"model": "m", "content": [{"type": "text", "text": text}]}
        events.append({"type": "assistant", "uuid": uuid, "session_id": session, "message": message})
    end = {"type": "result", "subtype": "success", "is_error": is_error, "session_id": session}
    events.append({**end, "terminal_reason": "api_error" if is_error else "completed", **result})
    events.append({**mark, "state": "cancelled" if is_error else "completed"})
    return jsonl(*events)


def findings(tap: bytes, message_id: str | None = MESSAGE_ID) -> TapFindings:
    reader = AGENT.tap_reader(message_id=message_id, start_offset=0)
    reader.feed(tap)
    return reader.findings()


@dataclass(frozen=True)
class Turn:
    """What the manager expects and what the host agent saw, both whole. `but` changes fields of either."""

    expected: Expected
    observation: Observation

    def but(self, **changes: Any) -> Turn:
        seen = {field.name for field in dataclasses.fields(Observation)}
        return Turn(
            dataclasses.replace(self.expected, **{k: v for k, v in changes.items() if k not in seen}),
            dataclasses.replace(self.observation, **{k: v for k, v in changes.items() if k in seen}),
        )


def whole_turn(*, first: bool = False) -> Turn:
    record = None if first else record_of(SETTLED)
    container = ContainerFacts("c1", "image-1", "nonce-1", "2026-11-30T10:00:00Z")
    generations = Generations(1, 2, 3)
    expected = Expected(
        activation_id="act-1",
        turn_id="turn-1",
        group_id="g-1",
        member_id="m-1",
        generations=generations,
        container_id="c1",
        image_id="image-1",
        nonce="nonce-1",
        locator=LOCATOR,
        message_id=MESSAGE_ID,
        message_digest=digest(MESSAGE),
        message_length=len(MESSAGE),
        store=record,
        agent_version="2.1.220",
    )
    tap = findings(printed())
    observation = Observation(
        activation_id="act-1",
        turn_id="turn-1",
        group_id="g-1",
        member_id="m-1",
        generations=generations,
        container=container,
        locator=LOCATOR,
        message_id=MESSAGE_ID,
        message_digest=digest(MESSAGE),
        message_length=len(MESSAGE),
        forwarded=True,
        process_was_new=False,
        process_alive=True,
        exit_code=None,
        tap_from=0,
        tap_to=1000,
        tap_gap=False,
        tap=tap,
        store=read(FIRST_PART) if first else read(SETTLED + NEW_PART, record),
        census=Census(complete=True, kept=(CLI,), killed=0, remaining=(), unattributed=0),
        relay=RelayFindings(requests=1, delivered_text_digests=(digest("noted"),), unread=False, statuses=(200,)),
        disposition=ProcessDisposition.KEPT,
        disposition_reason="ALL_IN_ORDER",
        interrupted_by=None,
    )
    return Turn(expected, observation)


# --- before the prompt ---------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Before:
    """What the manager recorded of member and container, and what the host agent reported."""

    report: ActivationReport
    member: ExpectedMember
    container: ExpectedContainer

    def but(
        self,
        report: dict[str, Any] | None = None,
        member: dict[str, Any] | None = None,
        container: dict[str, Any] | None = None,
    ) -> Before:
        return Before(
            dataclasses.replace(self.report, **(report or {})),
            dataclasses.replace(self.member, **(member or {})),
            dataclasses.replace(self.container, **(container or {})),
        )


def whole_report(state: str) -> Before:
    """`state` is LIVE, RESTORED or NEW: what everything in it speaks for."""
    record = None if state == "NEW" else record_of(SETTLED)
    generations = Generations(1, 2, 3)
    report = ActivationReport(
        activation_id="act-1",
        turn_id="turn-1",
        group_id="g-1",
        member_id="m-1",
        generations=generations,
        container=ContainerFacts("c1", "image-1", "nonce-1", "2026-11-30T10:00:00Z"),
        agent="claude-code",
        agent_version="2.1.220",
        settings_digest="settings-1",
        locator=LOCATOR,
        process_was_running=state == "LIVE",
        tap_gap=False,
        written_outside=False,
        handshake=None if state == "LIVE" else "OK",
        observed_session_id=None,
        store=read(b"", error="ABSENT") if record is None else read(SETTLED, record),
        process=CLI,
    )
    kept = RecordedProcess(CLI, 2, "2026-11-30T10:00:00Z", "settings-1", "2.1.220")
    member = ExpectedMember(
        activation_id="act-1",
        turn_id="turn-1",
        group_id="g-1",
        member_id="m-1",
        generations=generations,
        locator=LOCATOR,
        settings_digest="settings-1",
        settled_turns=0 if record is None else 1,
        store=record,
        agent_version="2.1.220",
        kept=kept if state == "LIVE" else None,
    )
    container = ExpectedContainer(Presence.PRESENT, "c1", "image-1", "nonce-1", ("image-1", "image-0"))
    return Before(report, member, container)
