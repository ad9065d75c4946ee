"""The provider over a real socket: bytes, faults, log and control."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from standfast_lab.provider import LabProvider, read_log

SESSION = "5e551011-0000-4000-8000-000000000001"


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[LabProvider]:
    async with LabProvider(log_path=tmp_path / "log.jsonl", clock=lambda: 1.0) as provider:
        yield provider
        assert provider.failures == ()


@pytest.fixture
async def client(lab: LabProvider) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=lab.base_url, timeout=10) as one:
        yield one


def body(*texts: str, stream: bool = False, **more: object) -> dict[str, object]:
    messages = [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(texts)]
    return {"model": "m", "max_tokens": 9, "stream": stream, "messages": messages, **more}


async def post(client: httpx2.AsyncClient, *texts: str, stream: bool = False) -> httpx2.Response:
    return await client.post("/v1/messages?beta=true", json=body(*texts, stream=stream))


def events(text: str) -> list[dict[str, Any]]:
    blocks = [block.split("\n") for block in text.split("\n\n") if block]
    assert all(len(lines) == 2 and lines[0] == f"event: {json.loads(lines[1][6:])['type']}" for lines in blocks)
    return [json.loads(lines[1].removeprefix("data: ")) for lines in blocks]


def text_of(response: httpx2.Response) -> str:
    return "".join(e["delta"].get("text", "") for e in events(response.text) if e["type"] == "content_block_delta")


@dataclass
class Raw:
    """What a bare socket received until the other side ended."""

    data: bytes
    is_reset: bool

    @property
    def body(self) -> bytes:
        return self.data.partition(b"\r\n\r\n")[2]

    @property
    def is_terminated(self) -> bool:
        return self.data.endswith(b"0\r\n\r\n")


async def raw(lab: LabProvider, *texts: str, stream: bool = True) -> Raw:
    payload = json.dumps(body(*texts, stream=stream)).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", lab.port)
    head = f"POST /v1/messages HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(payload)}\r\n\r\n"
    writer.write(head.encode() + payload)
    data, is_reset = b"", False
    try:
        async with asyncio.timeout(10):
            while piece := await reader.read(65536):
                data += piece
    except ConnectionResetError:
        is_reset = True
    writer.close()
    return Raw(data, is_reset)


async def test_a_stream_is_the_protocols_events_in_order(client: httpx2.AsyncClient) -> None:
    response = await post(client, "remember: the word is plum", stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    kinds = [event["type"] for event in events(response.text)]
    assert kinds == [
        "message_start", "ping", "content_block_start", "content_block_delta", "content_block_delta",
        "content_block_delta", "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    assert text_of(response) == "noted: plum"
    assert events(response.text)[-2]["delta"]["stop_reason"] == "end_turn"


async def test_the_same_answer_comes_whole_without_streaming(client: httpx2.AsyncClient) -> None:
    answer = (await post(client, "remember: the word is plum")).json()
    assert answer["content"] == [{"type": "text", "text": "noted: plum"}]
    assert (answer["role"], answer["stop_reason"]) == ("assistant", "end_turn")
    assert answer["usage"]["input_tokens"] > 0


async def test_the_same_requests_give_the_same_bytes_in_every_run() -> None:
    seen = []
    for _ in range(2):
        async with LabProvider() as lab:
            seen.append([(await raw(lab, *texts)).data for texts in (("a",), ("a",), ("b [[lab:tool=X {}]]",))])
    assert seen[0] == seen[1]
    assert seen[0][0] != seen[0][1], "ids differ from request to request"


async def test_any_text_survives(client: httpx2.AsyncClient) -> None:
    text = 'q" \\ \u2028 \U0001f600 \r\n\t\x00 \u200b'
    assert text_of(await post(client, f"x [[lab:say {text}]]", stream=True)) == text
    assert (await post(client, f"x [[lab:say {text}]]")).json()["content"][0]["text"] == text


async def test_a_tool_call_carries_its_input_and_an_id_of_its_own(client: httpx2.AsyncClient) -> None:
    text = 'x [[lab:tool=Bash {"command":"echo hi"}]]'
    streamed = events((await post(client, text, stream=True)).text)
    pieces = [e["delta"]["partial_json"] for e in streamed if e["type"] == "content_block_delta"]
    assert json.loads("".join(pieces)) == {"command": "echo hi"}
    whole = (await post(client, text)).json()
    assert whole["stop_reason"] == "tool_use"
    start = next(e for e in streamed if e["type"] == "content_block_start")["content_block"]
    assert whole["content"][0]["id"] != start["id"]


async def test_a_status_is_an_error_body_of_the_protocol(client: httpx2.AsyncClient) -> None:
    response = await post(client, "x [[lab:retry-after=2]]", stream=True)
    assert (response.status_code, response.headers["retry-after"]) == (429, "2")
    assert response.json()["error"] == {"type": "rate_limit_error", "message": "lab: status 429"}


@pytest.mark.parametrize("how", ["cut", "reset"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("where", ["before-head", "after-head", "mid-text", "mid-event", "mid-chunk", "before-stop"])
async def test_a_cut_really_breaks_the_tcp_stream(lab: LabProvider, where: str, how: str, stream: bool) -> None:
    broken = await raw(lab, f"x [[lab:{how}={where} pause=20ms]]", stream=stream)
    assert broken.is_reset == (how == "reset")
    assert not broken.is_terminated
    assert b"message_stop" not in broken.data
    assert (broken.data == b"") == (where == "before-head")
    row = (await lab.log.wait_for(lambda rows: rows[-1]["state"] == "ENDED"))[-1]
    assert (row["is_cut"], row["status"]) == (True, None if where == "before-head" else 200)
    if stream and where in ("mid-event", "mid-chunk"):
        assert not broken.data.rstrip(b"\r\n").endswith(b"}"), "the last event is cut inside"
    if not stream and where != "before-head":
        announced = int(broken.data.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        assert len(broken.body) < announced


async def test_a_cut_in_mid_chunk_breaks_the_announced_chunk(lab: LabProvider) -> None:
    broken = await raw(lab, "x [[lab:cut=mid-chunk]]")
    head, _, half = broken.body.rpartition(b"event: ")
    assert int(head.rstrip(b"\r\n").rpartition(b"\r\n")[2], 16) > len(half) + len(b"event: ")


async def test_an_orderly_end_in_mid_event_has_its_terminator_but_half_an_event(lab: LabProvider) -> None:
    ended = await raw(lab, "x [[lab:end=mid-event]]")
    assert ended.is_terminated
    assert b"message_stop" not in ended.data
    whole = await raw(lab, "x [[lab:end=mid-event]]", stream=False)
    with pytest.raises(json.JSONDecodeError):
        json.loads(whole.body)


async def test_an_error_event_comes_inside_a_200(client: httpx2.AsyncClient) -> None:
    response = await post(client, "x [[lab:error-event=api_error]]", stream=True)
    assert response.status_code == 200
    assert events(response.text)[-1]["error"]["type"] == "api_error"
    assert text_of(response) != ""


async def test_a_slow_stream_has_its_number_of_deltas_and_takes_its_time(client: httpx2.AsyncClient) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    response = await post(client, "x [[lab:slow=10x20ms]]", stream=True)
    assert loop.time() - began >= 0.2
    assert [e["type"] for e in events(response.text)].count("content_block_delta") == 10


async def test_a_long_reply_arrives_whole(client: httpx2.AsyncClient) -> None:
    assert len(text_of(await post(client, "x [[lab:long=8MiB]]", stream=True))) == 8 * 1024 * 1024


async def test_a_held_answer_is_seen_in_the_log_and_goes_on_when_released(
    lab: LabProvider, client: httpx2.AsyncClient
) -> None:
    asked = asyncio.create_task(post(client, "x [[lab:hang=mid-text]]", stream=True))
    rows = await lab.log.wait_for(lambda rows: bool(rows) and rows[-1]["state"] == "HOLDING")
    assert rows[-1]["status"] == 200
    assert rows[-1]["response_bytes"] > 0
    assert (await client.post("/lab/release")).status_code == 200
    response = await asyncio.wait_for(asked, 10)
    assert text_of(response).startswith("echo 1")
    assert lab.log.rows()[-1]["state"] == "ENDED"


async def test_a_client_that_leaves_ends_a_held_answer(lab: LabProvider) -> None:
    async with httpx2.AsyncClient(base_url=lab.base_url) as short:
        with pytest.raises(httpx2.ReadTimeout):
            await short.post("/v1/messages", json=body("x [[lab:hang]]", stream=True), timeout=0.2)
    row = (await lab.log.wait_for(lambda rows: rows[-1]["state"] == "ENDED"))[-1]
    assert (row["is_peer_gone"], row["is_cut"], row["status"]) == (True, False, None)


async def test_leaving_the_provider_ends_what_still_hangs() -> None:
    async with asyncio.timeout(5):
        async with LabProvider() as lab:
            _, writer = await asyncio.open_connection("127.0.0.1", lab.port)
            payload = json.dumps(body("x [[lab:hang]]")).encode()
            writer.write(
                b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(payload) + payload
            )
            await lab.log.wait_for(lambda rows: bool(rows) and rows[-1]["state"] == "HOLDING")
        writer.close()


async def test_an_error_of_the_user_leaves_the_provider_as_it_is() -> None:
    with pytest.raises(KeyError):
        async with LabProvider():
            raise KeyError("mine")


async def test_the_log_keeps_digests_of_both_bodies_and_no_key(lab: LabProvider, tmp_path: Path) -> None:
    sent = json.dumps(body("hello", stream=True)).encode()
    async with httpx2.AsyncClient(base_url=lab.base_url) as client:
        headers = {"x-api-key": "a-secret", "x-claude-code-session-id": SESSION, "x-api": "another"}
        response = await client.post("/v1/messages?beta=true", content=sent, headers=headers)
    (row,) = lab.log.rows()
    assert row["request_sha256"] == hashlib.sha256(sent).hexdigest()
    assert row["response_sha256"] == hashlib.sha256(response.content).hexdigest()
    assert (row["request_bytes"], row["response_bytes"]) == (len(sent), len(response.content))
    assert row["key_sha256"] == hashlib.sha256(b"a-secret").hexdigest()
    assert (row["n"], row["time"], row["session_id"], row["path"]) == (1, 1.0, SESSION, "/v1/messages?beta=true")
    written = (tmp_path / "log.jsonl").read_text()
    assert "a-secret" not in written
    assert "another" not in written
    assert read_log(written.splitlines()) == [row]


async def test_rows_are_numbered_by_arrival_and_written_by_end(
    lab: LabProvider, client: httpx2.AsyncClient, tmp_path: Path
) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(post(client, "first [[lab:hang]]"))
        await lab.log.wait_for(lambda rows: bool(rows) and rows[-1]["state"] == "HOLDING")
        await post(client, "second")
        lab.release()
    await lab.log.wait_for(lambda rows: all(row["state"] == "ENDED" for row in rows))
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["n"] for line in lines] == [2, 1]
    assert [row["messages"][0]["texts"][0] for row in read_log(lines)] == ["first [[lab:hang]]", "second"]


CLAUDE = {"x-claude-code-session-id": SESSION}
TOOLS = [{"name": "Bash", "input_schema": {}}]
BILLING = "x-anthropic-billing-header: cc_version=2.1.220.0ce; cc_entrypoint=sdk-cli;"


@pytest.mark.parametrize(
    ("headers", "more", "kind"),
    [
        (CLAUDE, {"tools": TOOLS, "system": [{"type": "text", "text": BILLING}]}, "root"),
        (CLAUDE, {"tools": TOOLS, "system": [{"type": "text", "text": BILLING + " cc_is_subagent=true;"}]}, "subagent"),
        ({**CLAUDE, "x-claude-code-agent-id": "a1"}, {"tools": TOOLS}, "subagent"),
        (CLAUDE, {"system": "Write a title"}, "side"),
        ({}, {}, "root"),
    ],
)
async def test_root_requests_are_told_from_sub_agents_and_side_requests(
    lab: LabProvider, client: httpx2.AsyncClient, headers: dict[str, str], more: dict[str, object], kind: str
) -> None:
    await client.post("/v1/messages", json=body("x") | more, headers=headers)
    (row,) = lab.log.rows()
    assert (row["kind"], row["is_root"]) == (kind, kind == "root")


async def test_the_session_is_read_from_the_metadata_where_the_header_is_missing(
    lab: LabProvider, client: httpx2.AsyncClient
) -> None:
    for user_id in (json.dumps({"session_id": SESSION}), "plain", json.dumps([1])):
        await client.post("/v1/messages", json=body("x", metadata={"user_id": user_id}))
    assert [row["session_id"] for row in lab.log.rows()] == [SESSION, None, None]


async def test_reminders_are_set_apart_but_a_users_look_alike_is_the_users_text(
    lab: LabProvider, client: httpx2.AsyncClient
) -> None:
    reminder = {"type": "text", "text": "<system-reminder>\nx\n</system-reminder>"}
    for content in ([reminder, {"type": "text", "text": "hi"}, reminder], [reminder, reminder]):
        await client.post("/v1/messages", json=body("x") | {"messages": [{"role": "user", "content": content}]})
    first, second = (row["messages"][0] for row in lab.log.rows())
    assert (first["texts"], len(first["reminders"])) == (["hi"], 2)
    assert first["blocks"] == [["reminder", 0], ["text", 0], ["reminder", 1]]
    assert (second["texts"], len(second["reminders"])) == ([reminder["text"]], 1)


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [
        (b"{", "not JSON"),
        (b"[]", "must be a JSON object"),
        (b'{"model":"m","messages":[]}', "at least one message"),
        (b'{"messages":[{"role":"user","content":"x"}]}', "model"),
        (b'{"model":"m","messages":[{"role":"boss","content":"x"}]}', "role"),
        (b'{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":""}]}]}', "must be non-empty"),
        (
            b'{"model":"m","messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t"}]}]}',
            "without a tool_use",
        ),
        (json.dumps(body("x [[lab:nonsense]]")).encode(), "no such word"),
    ],
)
async def test_a_request_that_breaks_the_protocol_gets_400_and_a_row(
    lab: LabProvider, client: httpx2.AsyncClient, payload: bytes, complaint: str
) -> None:
    response = await client.post("/v1/messages", content=payload)
    assert response.status_code == 400
    assert complaint in response.json()["error"]["message"]
    assert [(row["kind"], row["status"]) for row in lab.log.rows()] == [("invalid", 400)]


async def test_only_a_known_key_is_answered_where_keys_are_given() -> None:
    async with LabProvider(api_keys=["right"]) as lab, httpx2.AsyncClient(base_url=lab.base_url) as client:
        given: list[dict[str, str]] = [
            {},
            {"x-api-key": "wrong"},
            {"x-api-key": "right"},
            {"authorization": "Bearer right"},
        ]
        codes = [(await client.post("/v1/messages", json=body("x"), headers=headers)).status_code for headers in given]
        assert codes == [401, 401, 200, 200]
        assert lab.log.roots() == lab.log.rows()[2:]


async def test_the_other_paths_of_the_protocol(lab: LabProvider, client: httpx2.AsyncClient) -> None:
    assert (await client.head("/api/hello")).status_code == 200
    counted = await client.post("/v1/messages/count_tokens", json=body("x" * 400))
    assert counted.json() == {"input_tokens": 110}
    assert (await client.get("/v1/models")).status_code == 404
    assert [row["kind"] for row in lab.log.rows()] == ["hello", "count_tokens", "unknown"]


async def test_the_control_paths_script_read_and_reset(lab: LabProvider, client: httpx2.AsyncClient) -> None:
    scripted = await client.post("/lab/script", json=[{"root": 1, "do": "status=403"}, {"text": "b", "do": "say B"}])
    assert scripted.json() == {"steps": 2}
    assert (await client.post("/lab/script", json=[{"do": "nonsense"}])).status_code == 400
    assert (await client.post("/lab/script", content=b"{}")).status_code == 400
    assert [(await post(client, text)).status_code for text in ("a", "b")] == [403, 200]
    waited = (await client.get("/lab/log", params={"after": 1, "wait_s": 5})).json()["rows"]
    assert [(row["n"], row["answer"]) for row in waited] == [(2, "say")]
    assert (await client.get("/lab/log", params={"session": "none", "wait_s": 0.05})).json() == {"rows": []}
    assert (await client.get("/lab/log", params={"after": "x"})).status_code == 400
    assert (await client.get("/lab/health")).json() == {"ok": True, "failures": []}
    await client.post("/lab/reset")
    assert lab.log.rows() == []


async def test_one_connection_carries_many_requests(lab: LabProvider) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", lab.port)
    for number in range(3):
        payload = json.dumps(body(f"[[lab:say r{number}]]")).encode()
        writer.write(b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(payload) + payload)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        answer = json.loads(await asyncio.wait_for(reader.readexactly(length), 5))
        assert answer["content"][0]["text"] == f"r{number}"
    writer.close()


async def test_it_runs_as_a_process_of_its_own_and_leaves_in_order(tmp_path: Path) -> None:
    script, ready, log = tmp_path / "script.json", tmp_path / "ready.json", tmp_path / "log.jsonl"
    script.write_text(json.dumps([{"root": 1, "do": "say scripted"}]))
    argv = ["--port", "0", "--log", str(log), "--script", str(script), "--ready-file", str(ready)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "standfast_lab.provider", *argv, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        told = json.loads(await asyncio.wait_for(process.stdout.readline(), 20))
        assert json.loads(ready.read_text()) == told
        assert told["pid"] == process.pid
        async with httpx2.AsyncClient(base_url=told["base_url"]) as client:
            assert (await post(client, "x")).json()["content"][0]["text"] == "scripted"
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 10) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert [row["answer"] for row in read_log(log.read_text().splitlines())] == ["say"]


@pytest.mark.parametrize("fault", ["script", "port"])
async def test_a_bad_script_or_a_port_in_use_is_a_clear_error(lab: LabProvider, tmp_path: Path, fault: str) -> None:
    script = tmp_path / "script.json"
    script.write_text('[{"do": "nonsense"}]' if fault == "script" else "[]")
    argv = ["--script", str(script), "--port", str(lab.port if fault == "port" else 0)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "standfast_lab.provider", *argv,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(), 20)
    assert (process.returncode, out) == (2, b"")
    assert {"script": b"no such word", "port": b"address already in use"}[fault] in err
