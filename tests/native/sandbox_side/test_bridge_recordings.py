"""Recorded turns of OpenCode and Kilo, as the supervisor keeps them, through the sandbox side's tap reader and grammar."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from sandbox_manager.agents.bridged.messages import text_digest
from sandbox_manager.agents.port import (
    AnswerFrame,
    ForbiddenFrame,
    GateContext,
    HandshakeFrame,
    InterruptFrame,
    UserFrame,
)
from sandbox_manager.agents.registry import agent_named
from sandbox_manager.core.values import NativeLocator, TapFindings
from tests.native.bridge_replay import OWN_ID, Played, play

AGENT = agent_named("opencode")
SESSION = "ses_dd3bc005fffe7nbrFeU2EETInc"
WORKSPACE = "/srv/box/app"


def read(data: bytes, cut_every: int | None = None, start_offset: int = 0) -> TapFindings:
    reader = AGENT.tap_reader(message_id=OWN_ID, start_offset=start_offset)
    step = cut_every or max(len(data), 1)
    for start in range(0, len(data), step):
        reader.feed(data[start : start + step])
    return reader.findings()


@dataclass(frozen=True)
class Row:
    """`end` is (is_error, reason, status, cancelled); `printed` the messages that the store must come to hold."""

    recording: str
    index: int = 0
    end: tuple[bool, str | None, int | None, bool] = (False, "stop", None, False)
    texts: int = 1
    printed: int = 1
    rule: str | None = None
    retry: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.recording}-{self.index}"


def of_both(name: str, **row: Any) -> list[Row]:
    return [Row(f"{agent}/{name}", **row) for agent in ("opencode", "kilo")]


ABORTED: dict[str, Any] = {"end": (True, "MessageAbortedError", None, True), "rule": "CANCELLED"}
ROWS = [
    *of_both("two-turns"),
    *of_both("two-turns", index=1, texts=2, printed=2),
    *of_both("abort", **ABORTED),
    *of_both("abort", index=1),
    Row("opencode/abort-pending-permission", **ABORTED),
    Row("kilo/abort-pending-permission", texts=0, printed=0, **ABORTED),
    *of_both("error-401", end=(True, "APIError", 401, False), texts=0, printed=0),
    Row("opencode/error-midstream", end=(True, "no answer", None, True), rule="CANCELLED", retry=True),
    Row("kilo/error-midstream", end=(True, "UnknownError", None, False)),
    *of_both("permission-child-session", texts=2, printed=2),
    *of_both("permission-rejected", end=(True, "tool-calls", None, False)),
    *of_both("question", texts=2, printed=2, options={"answers": ((("B",),),)}),
    *of_both("resume"),
    *of_both("retry-then-success", retry=True),
    Row("kilo/stream-cut", end=(True, "other", None, False)),
]


@pytest.mark.parametrize("cut_every", [None, 11])
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_recorded_turn_is_read_from_the_servers_own_traffic(row: Row, cut_every: int | None) -> None:
    played = play(row.recording, row.index, **row.options)
    found = read(bytes(played.tap), cut_every)
    assert found.end is not None
    assert (found.end.is_error, found.end.reason, found.end.status, found.end.cancelled) == row.end
    assert found.end.tap_offset == len(played.tap)
    assert found.session_ids == (played.session,)
    assert found.message_printed_as == played.turn.native_id
    assert found.message_started
    assert found.identity_before_output or not found.assistant
    assert len(found.assistant) == row.texts
    assert len(found.printed) == row.printed
    assert {text.text_digest for text in found.assistant} == {text_digest(text) for text in played.root_texts}
    assert found.retry_seen is row.retry
    assert found.noise_lines == 0
    assert found.open_requests == ()
    assert AGENT.must_retire(found) == row.rule


def wire_lines(played: Played) -> list[bytes]:
    return [line for line in bytes(played.tap).splitlines(keepends=True) if line.startswith(b'{"wire":')]


def bridge_lines(played: Played) -> list[bytes]:
    return [line for line in bytes(played.tap).splitlines(keepends=True) if not line.startswith(b'{"wire":')]


def test_the_bridges_word_alone_proves_nothing() -> None:
    played = play("opencode/two-turns")
    found = read(b"".join(bridge_lines(played)))
    assert (found.end, found.session_ids, found.assistant, found.message_started) == (None, (), (), False)


def test_the_servers_traffic_alone_ends_nothing() -> None:
    """What it keeps is known, but not that no more of the turn will be asked for."""
    found = read(b"".join(wire_lines(play("opencode/two-turns"))))
    assert found.end is None
    assert len(found.assistant) == 1


def test_a_bridge_that_settles_a_session_which_works_proves_no_end() -> None:
    played = play("opencode/two-turns")
    busy = json.dumps({played.session: {"type": "busy"}}).encode()
    idle = b"{}"
    tap = b""
    for line in bytes(played.tap).splitlines(keepends=True):
        value = json.loads(line)
        if value.get("at") == "server":
            data = base64.b64decode(value["bytes"])
            if data.endswith(b"\r\n\r\n" + idle):
                data = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(busy), busy)
                value["bytes"] = base64.b64encode(data).decode()
                line = json.dumps(value, separators=(",", ":")).encode() + b"\n"
        tap += line
    assert tap != bytes(played.tap)
    assert read(tap).end is None


def test_another_message_that_is_settled_ends_nothing() -> None:
    played = play("opencode/two-turns")
    assert read(bytes(played.tap).replace(OWN_ID.encode(), b"another-message")).end is None


def exchange(number: int, method: str, path: str, status: int, body: Any) -> bytes:
    content = json.dumps(body).encode()
    asked = f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: *\r\n\r\n".encode()
    told = (
        f"HTTP/1.1 {status} X\r\nTransfer-Encoding: chunked\r\n\r\n{len(content):x}\r\n".encode()
        + content
        + b"\r\n0\r\n\r\n"
    )
    lines: list[dict[str, Any]] = [
        {"wire": number, "at": "open", "port": 1},
        {"wire": number, "at": "bridge", "bytes": base64.b64encode(asked).decode()},
        {"wire": number, "at": "server", "bytes": base64.b64encode(told).decode()},
        {"wire": number, "at": "closed"},
    ]
    return b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)


def opened(session: str) -> bytes:
    return json.dumps({"v": 4, "ev": "opened", "id": "open", "session": session}).encode() + b"\n"


@pytest.mark.parametrize(("method", "path"), [("POST", "/session?directory=%2Fws"), ("GET", f"/session/{SESSION}")])
def test_the_handshake_is_the_servers_and_the_bridges_word_together(method: str, path: str) -> None:
    health = exchange(1, "GET", "/global/health", 200, {"healthy": True, "version": "1.18.33"})
    made = exchange(2, method, path, 200, {"id": SESSION, "directory": WORKSPACE})
    found = read(health + made + opened(SESSION))
    assert (found.handshake, found.handshake_session_id, found.session_ids) == ("OK", SESSION, (SESSION,))
    assert found.agent_version == "1.18.33"
    assert read(health + opened(SESSION)).handshake == "UNPROVEN"
    assert read(made + opened("ses_another")).handshake == "UNPROVEN"
    assert read(made).handshake is None


def test_a_session_that_the_server_does_not_know_is_a_refusal() -> None:
    gone = exchange(1, "GET", f"/session/{SESSION}", 404, {"name": "NotFoundError"})
    refused = (
        json.dumps({"v": 4, "ev": "refused", "id": "open", "cause": "NO_SUCH_SESSION", "detail": ""}).encode() + b"\n"
    )
    found = read(gone + refused)
    assert (found.handshake, found.handshake_session_id, found.session_ids) == ("NO_SUCH_SESSION", None, ())


def context(**changes: Any) -> GateContext:
    given: dict[str, Any] = {
        "workspace": WORKSPACE,
        "permission_mode": "auto",
        "model": "m",
        "options": (),
        "locator": NativeLocator("opencode", SESSION, WORKSPACE, ".local/share/opencode/opencode.db"),
        "resumes": True,
    }
    return GateContext(**{**given, **changes})


NEW = {"locator": None, "resumes": False}


def frame(**fields: Any) -> bytes:
    return json.dumps({"v": 4, **fields}).encode() + b"\n"


def test_the_gate_lets_the_granted_handshake_pass_and_no_other() -> None:
    resume = frame(op="open", id="open", session=SESSION, directory=WORKSPACE)
    fresh = frame(op="open", id="open", session=None, directory=WORKSPACE)
    assert AGENT.classify(resume, context()) == HandshakeFrame("open")
    assert AGENT.classify(fresh, context(**NEW)) == HandshakeFrame("open")
    for line, granted in [
        (resume, context(**NEW)),
        (fresh, context()),
        (frame(op="open", id="open", session="ses_other", directory=WORKSPACE), context()),
        (frame(op="open", id="open", session=SESSION, directory="/elsewhere"), context()),
        (frame(op="open", id="open", session=SESSION, directory=WORKSPACE, mode="auto"), context()),
    ]:
        assert isinstance(AGENT.classify(line, granted), ForbiddenFrame), line


def test_the_gate_reads_messages_answers_and_aborts() -> None:
    text = "/init \u2028 \U0001f389\r\n"
    assert AGENT.classify(frame(op="prompt", id="m1", text=text), context()) == UserFrame(text.encode(), "m1")
    for answer in (
        frame(op="permission", id="per_1", allow=True, message=""),
        frame(op="answers", id="per_1", answers=[["A"], ["B", "C"]]),
        frame(op="reject", id="per_1", message=""),
    ):
        assert AGENT.classify(answer, context()) == AnswerFrame("per_1")
    assert AGENT.classify(AGENT.interrupt_frame("int-1"), context()) == InterruptFrame("int-1")


@pytest.mark.parametrize(
    "line",
    [
        b'{"v":3,"op":"abort","id":"x"}\n',
        b'{"v":4.0,"op":"abort","id":"x"}\n',
        b'{"v":true,"op":"abort","id":"x"}\n',
        b'{"v":4,"op":"abort","id":"x","more":1}\n',
        b'{"v":4,"op":"abort","op":"open","id":"x"}\n',
        b'{"v":4,"op":"shell","id":"x"}\n',
        b'{"v":4,"op":"prompt","id":"x","text":"a","agent":"plan"}\n',
        b'{"v":4,"op":"permission","id":"x","allow":"always","message":""}\n',
        b'{"v":4,"op":"answers","id":"x","answers":["A"]}\n',
        b'{"v":4,"op":"prompt","id":"x","text":"a"}\n{"v":4,"op":"abort","id":"x"}\n',
        b'{"v":4,"op":"prompt","id":"x","text":"\\ud800"}\n',
    ],
)
def test_everything_else_is_forbidden(line: bytes) -> None:
    assert isinstance(AGENT.classify(line, context()), ForbiddenFrame)
