"""kill -9 at every await point of a turn, between system calls, and in the middle of a record: nothing happens twice, nothing is
claimed that did not happen.

The processes are real and so are the files; each case works on a fresh folder, is killed once or several times, and then works on
until its turn is completed.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import pytest

from direct_agent.intents.pending import unresolved_calls
from direct_agent.intents.record import decode
from direct_agent.session.records import Record
from direct_agent.session.records import decode as decode_record
from direct_agent.session.session import SessionFolder
from direct_agent.transcript import AssistantMessage, RunState, ToolResult, Transcript, UserMessage
from tests.unit.direct_loop.house import SESSION_ID
from tests.unit.direct_loop.kill_server import GOALS
from tests.unit.direct_loop.scripted_model import Goal, results_of

REPO = Path(__file__).parents[3]
KILLED = 9
RANDOM_PLACES = 1000
SHELL_LEDGERS = ("shell.ledger", "second.ledger")


class KillServer:
    """One process that forks the lives of a case."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.unit.direct_loop.kill_server"],
            cwd=REPO,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def play(self, root: Path, lives: Sequence[int]) -> list[dict[str, Any]]:
        (root / "work").mkdir(parents=True)
        (root / "work" / "b.txt").write_text("x\n")
        _pipe(self._process.stdin).write(json.dumps({"root": str(root), "lives": list(lives)}) + "\n")
        _pipe(self._process.stdin).flush()
        found: list[dict[str, Any]] = json.loads(_pipe(self._process.stdout).readline())
        return found

    def close(self) -> None:
        _pipe(self._process.stdin).close()
        assert self._process.wait(20) == 0
        _pipe(self._process.stdout).close()


def _pipe(stream: Any) -> TextIO:
    assert stream is not None
    found: TextIO = stream
    return found


@pytest.fixture(scope="module")
def server() -> Iterator[KillServer]:
    made = KillServer()
    yield made
    made.close()


@pytest.fixture(scope="module")
def instants(server: KillServer, tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many instants an undisturbed turn has."""
    root = tmp_path_factory.mktemp("undisturbed")
    (life,) = server.play(root, [0])
    judge(root)
    found = life["instants"]
    assert isinstance(found, int)
    assert found > 200
    return found


def judge(root: Path) -> None:
    """Reads what is on disk after the last life and compares it with what was said and stored."""
    session = SessionFolder(root / "home").open(SESSION_ID)
    transcript, turns = session.history.transcript, session.history.turns
    lines = session.path.read_bytes()
    session.close()
    assert lines.endswith(b"\n")
    assert session.history.last_turn is not None
    assert session.history.last_turn.outcome == "completed"
    assert unresolved_calls(transcript) == (), "every call has its one result"
    _nothing_twice(root, lines)
    _nothing_claimed(root, transcript)
    _what_was_said_is_stored(root, lines, turns)


def _nothing_twice(root: Path, lines: bytes) -> None:
    for name in SHELL_LEDGERS:
        ledger = root / "work" / name
        assert not ledger.exists() or len(ledger.read_text().splitlines()) == 1, f"{name}: a command ran twice"
    writes = Counter(_lines(root / "write.ledger"))
    assert all(count == 1 for count in writes.values()), f"a write was done twice: {writes}"
    people = Counter(
        record.id
        for record in _records(lines)
        if record.kind == "message" and isinstance(record.message, UserMessage) and not record.message.is_host
    )
    assert all(count == 1 for count in people.values()), "a message was delivered twice"


def _nothing_claimed(root: Path, transcript: Transcript) -> None:
    puts = set(_lines(root / "write.ledger"))
    for goal in (goal for group in GOALS for goal in group):
        results = results_of(transcript, goal)
        is_done = any(each.state is RunState.COMPLETED and not each.is_error for each in results)
        may_be = any(each.state is RunState.UNKNOWN for each in results)
        if goal.tool == "shell":
            ledger = root / "work" / str(json.loads(goal.arguments)["command"].split()[-1])
            assert not is_done or ledger.exists(), "a command is claimed that did not run"
            assert is_done or may_be or not ledger.exists(), "a command ran of which it is said that it did not"
        elif goal.tool in ("write", "multi_edit"):
            intended = _intended(transcript, goal)
            assert not is_done or intended, "a write is claimed that was never intended"
            assert not is_done or intended <= puts, "a write is claimed that did not happen"
            assert is_done or may_be or not (intended & puts), "a write happened of which it is said that it did not"


def _intended(transcript: Transcript, goal: Goal) -> set[str]:
    raws = [
        raw
        for message in transcript
        if isinstance(message, AssistantMessage)
        for call in message.tool_calls
        if (call.name, call.arguments) == (goal.tool, goal.arguments)
        for raw in call.intents
    ]
    intents = [decode(raw) for raw in raws]
    return {f"{intent.path} {intent.after}" for intent in intents if intent is not None}


def _what_was_said_is_stored(root: Path, lines: bytes, turns: dict[str, Any]) -> None:
    records = _records(lines)
    ids = {record.id for record in records}
    stored = Counter(
        (message.call_id, message.output, message.state)
        for record in records
        if record.kind == "message" and isinstance(message := record.message, ToolResult)
    )
    for line in _lines(root / "said.jsonl"):
        said = json.loads(line)
        match said["type"]:
            case "accepted":
                assert said["message_id"] in turns
            case "assistant":
                assert said["uuid"] in ids
            case "tool_result":
                assert (said["call_id"], said["text"], RunState(said["state"])) in stored
            case "turn_end":
                assert turns[said["message_id"]].outcome == said["outcome"]


def _records(lines: bytes) -> list[Record]:
    decoded = [decode_record(line, 0) for line in lines.split(b"\n")[:-1]]
    assert all(isinstance(one, Record) for one in decoded), "half a record is left in the file"
    return [one for one in decoded if isinstance(one, Record)]


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _play_and_judge(server: KillServer, root: Path, lives: Sequence[int]) -> list[bool]:
    """Gives for each life whether it was killed."""
    answers = server.play(root, [*lives, 0])
    assert all(answer["status"] in (0, KILLED) for answer in answers), answers
    assert answers[-1]["status"] == 0
    try:
        judge(root)
    except AssertionError as error:
        raise AssertionError(f"killed at {list(lives)}: {error}") from error
    return [answer["status"] == KILLED for answer in answers[:-1]]


@pytest.mark.timeout(900)
def test_killed_at_every_instant_of_a_turn_nothing_happens_twice_and_nothing_is_claimed(
    server: KillServer, instants: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    step = 1 if request.config.getoption("--full") else 4
    killed = [
        _play_and_judge(server, tmp_path / str(instant), [instant])[0] for instant in range(1, instants + 1, step)
    ]
    assert sum(killed) > 0.9 * len(killed)


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_killed_in_a_thousand_random_places_and_again_while_it_goes_on(
    server: KillServer, instants: int, tmp_path: Path
) -> None:
    places = random.Random(20260905)
    killed = 0
    for number in range(RANDOM_PLACES):
        lives = [places.randint(1, instants) for _ in range(places.choice((1, 1, 2, 3)))]
        killed += sum(_play_and_judge(server, tmp_path / str(number), lives))
    assert killed >= RANDOM_PLACES
