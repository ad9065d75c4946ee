"""What holds for each protocol of the lab provider alike: its faults on the wire, its reading of requests, the oracle on them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from standfast_lab.oracle import Turn, judge_request, judge_roots, rows_of_talk
from standfast_lab.provider import LabProvider

Said = tuple[str, str]


@dataclass(frozen=True)
class Spoken:
    """One protocol as a plain client speaks it. `end` stands in no stream that did not end."""

    path: str
    history: str
    end: bytes
    text_type: dict[str, str]

    def body(self, said: list[Said], *, stream: bool = False, **more: object) -> dict[str, object]:
        messages = [{"role": role, "content": text} for role, text in said]
        return {"model": "m", "max_tokens": 9, "stream": stream, self.history: messages, **more}

    def reply(self, answer: Any) -> str:
        match self.path:
            case "/v1/messages":
                return "".join(str(block["text"]) for block in answer["content"])
            case "/v1/chat/completions":
                return str(answer["choices"][0]["message"]["content"])
            case _:
                return "".join(str(part["text"]) for item in answer["output"] for part in item["content"])


SPOKEN = {
    "messages": Spoken("/v1/messages", "messages", b"message_stop", {"user": "text", "assistant": "text"}),
    "chat": Spoken("/v1/chat/completions", "messages", b"[DONE]", {"user": "text", "assistant": "text"}),
    "responses": Spoken(
        "/v1/responses", "input", b"response.completed", {"user": "input_text", "assistant": "output_text"}
    ),
}


@pytest.fixture(params=SPOKEN)
def spoken(request: pytest.FixtureRequest) -> Spoken:
    return SPOKEN[request.param]


@pytest.fixture
async def lab() -> AsyncIterator[LabProvider]:
    async with LabProvider(clock=lambda: 1.0) as provider:
        yield provider
        assert provider.failures == ()


@pytest.fixture
async def client(lab: LabProvider) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=lab.base_url, timeout=10) as one:
        yield one


async def raw(lab: LabProvider, spoken: Spoken, text: str, *, stream: bool = True) -> tuple[bytes, bool]:
    """(all bytes of the answer, whether the connection was reset)"""
    payload = json.dumps(spoken.body([("user", text)], stream=stream)).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", lab.port)
    head = f"POST {spoken.path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(payload)}\r\n\r\n"
    writer.write(head.encode() + payload)
    data, is_reset = b"", False
    try:
        async with asyncio.timeout(10):
            while piece := await reader.read(65536):
                data += piece
    except ConnectionResetError:
        is_reset = True
    writer.close()
    return data, is_reset


# --- faults -----------------------------------------------------------------------------------------------------------

PLACES = ["before-head", "after-head", "mid-text", "mid-event", "mid-chunk", "before-stop"]


@pytest.mark.parametrize("how", ["cut", "reset"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("where", PLACES)
async def test_a_cut_breaks_the_tcp_stream(
    lab: LabProvider, spoken: Spoken, where: str, how: str, stream: bool
) -> None:
    data, is_reset = await raw(lab, spoken, f"x [[lab:{how}={where} pause=20ms]]", stream=stream)
    assert is_reset == (how == "reset")
    assert not data.endswith(b"0\r\n\r\n")
    assert spoken.end not in data
    assert (data == b"") == (where == "before-head")
    if stream and where in ("mid-event", "mid-chunk"):
        assert not data.rstrip(b"\r\n").endswith(b"}"), "the last event is cut inside"


@pytest.mark.parametrize("where", ["after-head", "mid-text", "mid-event", "before-stop"])
@pytest.mark.parametrize("reply", ["one reply", "x"])
async def test_an_orderly_end_without_the_protocols_own(
    lab: LabProvider, spoken: Spoken, where: str, reply: str
) -> None:
    data, _ = await raw(lab, spoken, f"x [[lab:say {reply}]] [[lab:end={where}]]")
    assert data.endswith(b"0\r\n\r\n")
    assert spoken.end not in data


@pytest.mark.parametrize("where", ["before-head", "after-head", "mid-text", "mid-event", "before-stop"])
@pytest.mark.parametrize("reply", ["one reply", "x"])
async def test_an_answer_that_hung_is_the_same_when_it_goes_on(
    lab: LabProvider, client: httpx2.AsyncClient, spoken: Spoken, where: str, reply: str
) -> None:
    text = f"x [[lab:say {reply}]] [[lab:hang={where}]]"
    hung = asyncio.create_task(client.post(spoken.path, json=spoken.body([("user", text)], stream=True)))
    await lab.log.wait_for(lambda rows: bool(rows) and rows[-1]["state"] == "HOLDING")
    lab.release()
    answered = (await asyncio.wait_for(hung, 10)).content
    lab.reset()
    plain = text.replace(f"hang={where}", "latency=0s")
    whole = (await client.post(spoken.path, json=spoken.body([("user", plain)], stream=True))).content
    assert shapes(answered) == shapes(whole)


def shapes(stream: bytes) -> list[bytes]:
    """The events of a stream without what the request's own bytes decide: ids and counts."""
    return [re.sub(rb"lab[-_][0-9a-f]{14}|_tokens\":\d+", b"", line) for line in stream.splitlines()]


async def test_the_same_requests_give_the_same_bytes_in_every_run(spoken: Spoken) -> None:
    seen = []
    for _ in range(2):
        async with LabProvider() as lab:
            texts = ("a", "a", "b [[lab:tool=X {}]]", "[[lab:think=hm]]")
            seen.append([(await raw(lab, spoken, text))[0] for text in texts])
    assert seen[0] == seen[1]
    assert seen[0][0] != seen[0][1], "ids differ from request to request"


async def test_a_slow_stream_has_its_number_of_deltas(client: httpx2.AsyncClient, spoken: Spoken) -> None:
    asked = spoken.body([("user", "[[lab:say 0123456789]] [[lab:slow=10x2ms]]")], stream=True)
    streamed = (await client.post(spoken.path, json=asked)).text
    assert [streamed.count(f'"{digit}"') for digit in "0123456789"] == [1] * 10


# --- requests ---------------------------------------------------------------------------------------------------------

SAID: list[Said] = [
    ("user", "remember: the word is plum"),
    ("assistant", "noted: plum"),
    ("user", "again"),
    ("assistant", "looking"),
    ("assistant", "echo 2"),
    ("user", "again"),
    ("assistant", "echo 3"),
    ("user", "and now?"),
]
TURNS = (
    Turn("remember: the word is plum", ("noted: plum",)),
    Turn("again", ("looking", "echo 2")),
    Turn("again", ("echo 3",)),
)
AGENTS = {"messages": "claude-code", "chat": "pi", "responses": "codex"}


async def judged(client: httpx2.AsyncClient, lab: LabProvider, name: str, said: list[Said]) -> str:
    spoken = SPOKEN[name]
    assert (await client.post(spoken.path, json=spoken.body(said))).status_code == 200
    return str(judge_request(lab.log.rows()[-1], TURNS, Turn("and now?"), agent=AGENTS[name]))


@pytest.mark.parametrize("name", SPOKEN)
async def test_the_oracle_finds_each_way_to_spoil_a_history(
    client: httpx2.AsyncClient, lab: LabProvider, name: str
) -> None:
    async def told(said: list[Said]) -> str:
        return await judged(client, lab, name, said)

    assert await told(SAID) == "COMPLETE"
    assert (await told(SAID[:1] + SAID[2:])).startswith("MISSING{1}")
    assert (await told([*SAID[:2], SAID[0], *SAID[2:]])).startswith("CHANGED{1}: DOUBLED turn 1 user")
    assert (await told([*SAID[:5], *SAID[7:]])).startswith("MISSING{3}"), "a repeat that is missing is no repeat"
    assert "SWAPPED" in await told([*SAID[:3], SAID[4], SAID[3], *SAID[5:]])
    assert "ROLE_CHANGED" in await told([("assistant", SAID[0][1]), *SAID[1:]])
    assert "TEXT_CHANGED" in await told([*SAID[:4], ("assistant", "echo two"), *SAID[5:]])
    assert "UNEXPECTED" in await told([*SAID[:2], ("user", "never said"), *SAID[2:]])


async def test_texts_in_parts_are_read_as_texts(client: httpx2.AsyncClient, lab: LabProvider, spoken: Spoken) -> None:
    said = [{"role": role, "content": [{"type": spoken.text_type[role], "text": text}]} for role, text in SAID]
    asked = spoken.body([]) | {spoken.history: said}
    assert spoken.reply((await client.post(spoken.path, json=asked)).json()).startswith("echo 4")
    assert [(m["role"], m["texts"]) for m in lab.log.rows()[-1]["messages"]] == [(r, [t]) for r, t in SAID]


async def test_a_conversation_without_a_session_is_known_by_its_first_text(
    client: httpx2.AsyncClient, lab: LabProvider, spoken: Spoken
) -> None:
    for mark in ("one", "two"):
        await client.post(spoken.path, json=spoken.body([("user", f"talk {mark}")]))
        said = [("user", f"talk {mark}"), ("assistant", "r"), ("user", "on")]
        await client.post(spoken.path, json=spoken.body(said))
    rows = rows_of_talk(lab.log.rows(), "talk two")
    assert [row["n"] for row in rows] == [3, 4]
    assert judge_roots(rows, [Turn("talk two", ("r",)), Turn("on")]).is_complete


async def test_the_environment_details_of_kilo_are_no_text_of_the_user(
    client: httpx2.AsyncClient, lab: LabProvider
) -> None:
    details = "\n\n<environment_details>\nMessage time: now\n</environment_details>"

    def user(text: str) -> dict[str, object]:
        return {"role": "user", "content": [{"type": "text", "text": text}, {"type": "text", "text": details}]}

    messages = [
        user("remember: the word is plum"),
        {"role": "assistant", "content": "noted: plum"},
        user("what is the word?"),
    ]
    answer = await client.post("/v1/chat/completions", json={"model": "m", "messages": messages})
    assert SPOKEN["chat"].reply(answer.json()) == "the word is plum"
    row = lab.log.rows()[-1]
    turns = [Turn("remember: the word is plum", ("noted: plum",))]
    assert judge_request(row, turns, Turn("what is the word?"), agent="kilo").is_complete
    alone = {"model": "m", "messages": [{"role": "user", "content": details}]}
    await client.post("/v1/chat/completions", json=alone)
    assert lab.log.rows()[-1]["messages"][0]["texts"] == [details], "alone it is what the user typed"


async def test_what_codex_writes_around_its_words_is_set_apart(client: httpx2.AsyncClient, lab: LabProvider) -> None:
    said = [
        ("developer", "<permissions>"),
        ("user", "<environment_context>\n  <cwd>/w</cwd>\n</environment_context>"),
        ("user", "remember: the word is plum"),
        ("assistant", "noted: plum"),
        ("user", "<turn_aborted>\nby the user\n</turn_aborted>"),
        ("user", "<skill>mine</skill>"),
    ]
    headers = {"thread-id": "t1"}
    tools = [{"type": "function", "name": "exec_command"}]
    body = {"model": "m", "tools": tools, "input": [{"type": "message", "role": r, "content": t} for r, t in said]}
    await client.post("/v1/responses", json=body, headers=headers)
    (row,) = lab.log.rows(session_id="t1")
    assert row["is_root"]
    turns = [Turn("remember: the word is plum", ("noted: plum",))]
    assert judge_request(row, turns, Turn("<skill>mine</skill>"), agent="codex").is_complete


@pytest.mark.parametrize(
    ("headers", "tools", "kind"),
    [
        ({"thread-id": "t1"}, True, "root"),
        ({"thread-id": "t1"}, False, "side"),
        ({"thread-id": "t2", "x-openai-subagent": "collab_spawn"}, True, "subagent"),
        ({}, False, "root"),
    ],
)
async def test_requests_of_codex_are_told_apart(
    client: httpx2.AsyncClient, lab: LabProvider, headers: dict[str, str], tools: bool, kind: str
) -> None:
    offered = {"tools": [{"type": "function", "name": "exec_command"}]} if tools else {}
    await client.post("/v1/responses", json={"model": "m", "input": "x", **offered}, headers=headers)
    assert [row["kind"] for row in lab.log.rows()] == [kind]


async def test_a_tool_in_a_namespace_is_called_in_it(client: httpx2.AsyncClient) -> None:
    tools = [{"type": "namespace", "name": "many", "tools": [{"type": "function", "name": "spawn_agent"}]}]
    asked = {"model": "m", "input": "[[lab:task count]]", "tools": tools}
    (call,) = (await client.post("/v1/responses", json=asked)).json()["output"]
    assert (call["name"], call["namespace"], json.loads(call["arguments"])) == (
        "spawn_agent",
        "many",
        {"message": "count"},
    )


CALL = {"id": "c1", "type": "function", "function": {"name": "X", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("path", "body", "complaint"),
    [
        ("chat/completions", {"model": "m"}, "messages"),
        ("chat/completions", {"messages": [{"role": "user", "content": "x"}]}, "model"),
        ("chat/completions", {"model": "m", "messages": [{"role": "boss", "content": "x"}]}, "role"),
        (
            "chat/completions",
            {"model": "m", "messages": [{"role": "tool", "tool_call_id": "c1", "content": "x"}]},
            "must be a response",
        ),
        (
            "chat/completions",
            {
                "model": "m",
                "messages": [{"role": "assistant", "tool_calls": [CALL]}, {"role": "user", "content": "x"}],
            },
            "must be followed by tool messages",
        ),
        ("responses", {"model": "m"}, "input"),
        ("responses", {"model": "m", "input": "x", "previous_response_id": "r"}, "previous response"),
        (
            "responses",
            {"model": "m", "input": [{"type": "function_call", "call_id": "c", "name": "X", "arguments": "{}"}]},
            "no tool output",
        ),
        (
            "responses",
            {"model": "m", "input": [{"type": "function_call_output", "call_id": "c", "output": ""}]},
            "no tool call",
        ),
    ],
)
async def test_a_request_that_breaks_the_protocol_gets_400_and_a_row(
    client: httpx2.AsyncClient, lab: LabProvider, path: str, body: dict[str, object], complaint: str
) -> None:
    answer = await client.post(f"/v1/{path}", json=body)
    assert answer.status_code == 400
    assert complaint in answer.json()["error"]["message"]
    assert [(row["kind"], row["status"]) for row in lab.log.rows()] == [("invalid", 400)]


async def test_words_wear_out_and_scripts_work_in_each_protocol(
    client: httpx2.AsyncClient, lab: LabProvider, spoken: Spoken
) -> None:
    lab.script({"root": 3, "do": "say scripted"})
    asked = spoken.body([("user", "x [[lab:status=529 times=1]]")])
    codes = [(await client.post(spoken.path, json=asked)).status_code for _ in range(2)]
    assert codes == [529, 200]
    assert spoken.reply((await client.post(spoken.path, json=asked)).json()) == "scripted"
