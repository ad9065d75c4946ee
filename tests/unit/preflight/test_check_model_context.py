"""The preflight against a loopback provider: one that remembers, and one with each fault it must find."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.preflight.check_model_context import gateway_of, main
from deploy.preflight.key_file import KEY_FILE_VARIABLE, PreflightUsageError, read_key
from deploy.preflight.questions import GROUPS
from deploy.preflight.result import RESULT_VERSION, stale_reasons
from deploy.release.pins import load_pins
from direct_agent.core.endpoint import Wire
from standfast_lab.recovery import answers
from standfast_lab.recovery.scripted_server import Break, Heard, ScriptedServer, Step

KEY = "sk-preflight-test-key-000042"
ROOT = Path(__file__).parents[3]


@dataclass
class Run:
    code: int
    out: str
    err: str
    files: dict[str, str]
    heard: list[Heard]

    @property
    def result(self) -> dict[str, Any]:
        loaded = json.loads(self.out)
        assert isinstance(loaded, dict)
        return loaded


def words_of(heard: Heard) -> str:
    """All text that was sent, as one who remembers would tell it."""
    texts = []
    for message in json.loads(heard.body)["messages"]:
        content = message["content"]
        texts += [content] if isinstance(content, str) else [block["text"] for block in content]
    return " / ".join(texts) + " / 42"


def reply(text: str, *, thinking: bool = True, stop: str = "end_turn", **step: Any) -> Step:
    begin: list[dict[str, Any]] = [{"type": "message_start", "message": {"id": "msg_9", "usage": {"input_tokens": 5}}}]
    if thinking:
        begin += [
            {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "hm"}},
            {"type": "content_block_stop", "index": 0},
        ]
    begin += [
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": text}},
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": 3}},
        {"type": "message_stop"},
    ]
    return Step(answers.sse(*begin), headers=(("request-id", "req-77"),), **step)


def remembers(heard: Heard) -> Step:
    return reply(words_of(heard))


def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "secret" / "key"
    file.parent.mkdir()
    file.write_text(KEY + "\n")
    file.chmod(0o600)
    return file


class Preflight:
    """Runs the program in this process, in a thread of its own."""

    def __init__(self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(KEY_FILE_VARIABLE, str(key_file(tmp_path)))
        monkeypatch.setenv("COLUMNS", "200")
        self._capsys = capsys

    async def __call__(self, respond: Callable[[Heard], Step], *arguments: str) -> Run:
        async with ScriptedServer([], reply=respond) as server:
            code = await asyncio.to_thread(main, [server.base_url, *arguments])
        written = self._capsys.readouterr()
        return Run(code, written.out, written.err, {}, server.heard)


@pytest.fixture
def preflight(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Preflight:
    return Preflight(tmp_path, capsys, monkeypatch)


async def as_program(tmp_path: Path, respond: Callable[[Heard], Step], *arguments: str) -> Run:
    """Runs it as its users do, in a folder of its own."""
    work = tmp_path / "work"
    work.mkdir()
    server = ScriptedServer([], reply=respond)
    async with server:
        command = [sys.executable, "-m", "deploy.preflight.check_model_context", server.base_url, *arguments]
        environment = {**os.environ, KEY_FILE_VARIABLE: str(key_file(tmp_path)), "COLUMNS": "200"}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        process = await asyncio.create_subprocess_exec(
            *command, cwd=work, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await asyncio.wait_for(process.communicate(), 90)
    files = {str(file): file.read_text() for file in work.rglob("*") if file.is_file()}
    return Run(process.returncode or 0, out.decode(), err.decode(), files, server.heard)


async def test_a_gateway_that_remembers_passes_with_fifteen_billed_calls(preflight: Preflight) -> None:
    run = await preflight(remembers, "--json")
    assert (run.code, len(run.heard)) == (0, 15)
    assert "15 calls" in run.err
    assert "bills" in run.err
    result = run.result
    assert (result["recall_passed"], result["thinking_observed"], result["calls_with_thinking"]) == (True, True, 15)
    assert [call["group"] for call in result["calls"][:5]] == list(GROUPS)
    assert {call["request_id"] for call in result["calls"]} == {"req-77"}
    assert (result["model"], result["gateway"].startswith("http://127.0.0.1:")) == ("deepseek-v4-flash", True)
    assert result["pins"] == {name: pin.version for name, pin in load_pins().items()}
    body = json.loads(run.heard[0].body)
    assert (body["thinking"], body["output_config"]) == ({"type": "adaptive"}, {"effort": "high"})
    assert run.heard[0].headers["x-api-key"] == KEY


async def test_repetitions_do_not_repeat_their_words(preflight: Preflight) -> None:
    run = await preflight(remembers, "--json", "--repetitions", "2", "--auth", "bearer", "--model", "other")
    assert (run.code, len(run.heard)) == (0, 10)
    assert run.heard[1].body != run.heard[6].body
    assert run.heard[0].headers["authorization"] == f"Bearer {KEY}"
    assert run.result["model"] == "other"


def only(group: int, fault: Callable[[Heard], Step]) -> Callable[[Heard], Step]:
    """Remembers, except for one call."""
    asked = 0

    def respond(heard: Heard) -> Step:
        nonlocal asked
        asked += 1
        return fault(heard) if asked == group + 1 else remembers(heard)

    return respond


FAULTS: dict[str, tuple[Callable[[Heard], Step], str]] = {
    "not a 200": (lambda _heard: answers.refusal(503, {"message": "x"}), "error"),
    "refused key": (lambda _heard: answers.refusal(401, {"message": f"bad key {KEY}"}), "error"),
    "stream error": (lambda _heard: Step(answers.stream_error(Wire.MESSAGES, "overloaded_error")), "error"),
    "cut stream": (lambda heard: reply(words_of(heard), cut_at=300, broken=Break.CLOSE), "error"),
    "truncated": (lambda heard: reply(words_of(heard), stop="max_tokens"), "error"),
    "empty": (lambda _heard: Step(answers.empty(Wire.MESSAGES)), "error"),
    "malformed": (lambda _heard: Step(answers.MALFORMED), "error"),
    "missing fact": (lambda _heard: reply("Hello there!"), "missing_facts"),
    "lost, English": (lambda heard: reply("I cannot see our earlier messages. " + words_of(heard)), "lost_sentence"),
    "lost, Chinese": (lambda heard: reply("我看不到之前的对话。" + words_of(heard)), "lost_sentence"),
    "silence": (lambda heard: reply(words_of(heard), cut_at=10, broken=Break.HOLD), "error"),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_each_fault_in_one_call_fails_the_preflight(preflight: Preflight, name: str) -> None:
    fault, field = FAULTS[name]
    run = await preflight(only(3, fault), "--json", "--repetitions", "1", "--call-timeout", "3")
    assert (run.code, len(run.heard)) == (1, 5)
    result = run.result
    assert not result["recall_passed"]
    assert [call["recalled"] for call in result["calls"]] == [True, True, True, False, True]
    assert result["calls"][3][field]
    assert KEY not in run.out + run.err
    if field == "lost_sentence":
        assert any("person must look" in note for note in result["notes"])


async def test_absent_thinking_alone_is_exit_3_and_keeps_the_answers(preflight: Preflight) -> None:
    run = await preflight(lambda heard: reply(words_of(heard), thinking=False), "--json", "--repetitions", "1")
    assert run.code == 3
    assert (run.result["recall_passed"], run.result["thinking_observed"]) == (True, False)
    assert all(call["answer"] for call in run.result["calls"])
    assert any("does not prove that history was lost" in note for note in run.result["notes"])


async def test_absent_thinking_and_lost_recall_is_exit_1(preflight: Preflight) -> None:
    run = await preflight(lambda _heard: reply("Hello!", thinking=False), "--json", "--repetitions", "1")
    assert run.code == 1


async def test_a_gateway_without_history_passes_only_the_question_that_needs_none(preflight: Preflight) -> None:
    def forgets(heard: Heard) -> Step:
        last = json.loads(heard.body)["messages"][-1]["content"]
        return reply(last + " 42" if isinstance(last, str) else "42")

    run = await preflight(forgets, "--json", "--repetitions", "1")
    assert run.code == 1
    recalled = {call["group"] for call in run.result["calls"] if call["recalled"]}
    assert recalled == {"no history"}


@pytest.mark.parametrize("arguments", [("--json",), ()])
async def test_nothing_it_writes_holds_the_key(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    packed = base64.b64encode(f"user:{KEY}".encode()).decode()

    def echoes(heard: Heard) -> Step:
        return reply(f"{words_of(heard)} {heard.headers['x-api-key']} {packed}")

    saved = tmp_path / "work" / "result.json"
    run = await as_program(tmp_path, echoes, *arguments, "--repetitions", "1", "--result", str(saved))
    assert run.code == 0
    written = run.out + run.err + "".join(run.files.values())
    assert saved.name in "".join(run.files)
    for form in (KEY, packed, KEY.encode().hex(), base64.b64encode(KEY.encode()).decode()[:20]):
        assert form not in written
    assert "x-api-key" not in run.err
    assert "[masked:key]" in written


async def test_the_table_and_summary_are_for_people(preflight: Preflight) -> None:
    run = await preflight(remembers, "--repetitions", "1")
    assert run.code == 0
    for text in ("recall_passed: yes", "thinking_observed: yes", "request req-77", "repeated question", "cannot show"):
        assert text in run.out


def test_a_saved_result_is_stale_when_gateway_model_or_a_pin_has_changed() -> None:
    saved = {"version": RESULT_VERSION, "gateway": "https://g", "model": "m", "pins": {"claude-code": "1"}}
    assert stale_reasons(saved, "https://g", "m", {"claude-code": "1"}) == []
    assert len(stale_reasons(saved, "https://h", "n", {"claude-code": "2", "codex": "1"})) == 4
    assert stale_reasons({**saved, "version": 9}, "https://g", "m", {"claude-code": "1"})
    assert stale_reasons({}, "https://g", "m", {})


@pytest.mark.parametrize(
    "url",
    [
        "http://gateway.example.com",
        "https://user:secret@h",
        "https://h?key=x",
        "ftp://h",
        "h",
        "https://h:99999999",
        "http://127.0.0.1.example.com",
    ],
)
def test_an_address_that_a_key_must_not_go_to_is_refused(url: str) -> None:
    with pytest.raises(PreflightUsageError) as raised:
        gateway_of(url)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "gateway"), [("https://h/v1", "https://h"), ("http://127.0.0.1:81/x", "http://127.0.0.1:81")]
)
def test_the_gateway_is_named_without_its_path(url: str, gateway: str) -> None:
    assert gateway_of(url) == gateway


@pytest.mark.parametrize(
    ("content", "mode"),
    [("", 0o600), ("short", 0o600), ("two words-here", 0o600), ("schlüssel-lang", 0o600), (KEY, 0o644)],
)
def test_an_unusable_key_file_is_refused_without_showing_it(tmp_path: Path, content: str, mode: int) -> None:
    file = tmp_path / "key"
    file.write_text(content)
    file.chmod(mode)
    with pytest.raises(PreflightUsageError) as raised:
        read_key({KEY_FILE_VARIABLE: str(file)})
    assert not content or content not in str(raised.value)


def test_a_missing_key_file_is_refused(tmp_path: Path) -> None:
    for environment in ({}, {KEY_FILE_VARIABLE: str(tmp_path / "none")}, {KEY_FILE_VARIABLE: str(tmp_path)}):
        with pytest.raises(PreflightUsageError):
            read_key(environment)
