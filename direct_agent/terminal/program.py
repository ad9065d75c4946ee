"""`standfast direct`: one message and its turn, or a conversation in the terminal.

    standfast direct --model M [options] TEXT     one turn; TEXT "-" is read from stdin
    standfast direct --model M [options]          a conversation; Ctrl-C ends the turn, Ctrl-D leaves
    --json                                        events as JSON lines on stdout; needs a TEXT

Exit codes: 0 completed, 1 failed, 2 wrong usage or no session, 4 cancelled.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from direct_agent.assembly import assemble, open_session, open_transport
from direct_agent.loop.agent import Agent
from direct_agent.loop.ports import Audience
from direct_agent.loop.requests import PermissionAnswer, QuestionAnswer, RequestNotOpenError
from direct_agent.loop.turn import End, Outcome
from direct_agent.session.errors import SessionError
from direct_agent.settings import Settings, SettingsError, from_arguments, parser
from direct_agent.terminal.screen import JsonLines, Screen

EXIT_USAGE = 2
_EXITS = {Outcome.COMPLETED: 0, Outcome.FAILED: 1, Outcome.CANCELLED: 4}


class Terminal:
    """One run. Requests are answered by the person at the terminal; without one they are refused, and the model is told so."""

    def __init__(self, settings: Settings, *, is_json: bool, environment: Mapping[str, str]) -> None:
        self._settings = settings
        self._environment = environment
        self._screen = None if is_json else Screen(sys.stdout)
        self._agent: Agent | None = None
        self._asked: set[asyncio.Task[None]] = set()
        self._has_person = sys.stdin.isatty() and not is_json
        self._hearer: Audience = self._screen or JsonLines(sys.stdout, lambda: self._session_id)

    @property
    def _session_id(self) -> str | None:
        return self._agent.session.session_id if self._agent is not None else None

    def say(self, event: Mapping[str, Any]) -> None:
        """Implements Audience."""
        self._hearer.say(event)
        if event["type"] == "request":
            task = asyncio.ensure_future(self._answer(event))
            self._asked.add(task)
            task.add_done_callback(self._asked.discard)

    async def run(self, text: str | None) -> int:
        """Raises SettingsError, SessionError."""
        async with open_transport(self._settings, self._environment) as transport:
            session = await asyncio.to_thread(open_session, self._settings)
            try:
                self._agent = assemble(self._settings, session, transport, self, self._environment)
                self._say_session()
                asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._agent.cancel)
                return await (self._converse() if text is None else self._turn(text))
            finally:
                session.close()

    def _say_session(self) -> None:
        if self._screen is not None:
            self._screen.show(f"session {self._session_id} (go on with --resume {self._session_id})")
        else:
            self.say({"type": "session", "store": str(self._agent.session.path) if self._agent else None})

    async def _turn(self, text: str) -> int:
        assert self._agent is not None
        end = await self._agent.deliver(str(uuid.uuid4()), text)
        return _EXITS[end.outcome] if isinstance(end, End) else 0

    async def _converse(self) -> int:
        code = 0
        while (line := await asyncio.to_thread(_ask_line, "> ")) is not None:
            if line.strip():
                code = await self._turn(line)
        return code

    async def _answer(self, event: Mapping[str, Any]) -> None:
        assert self._agent is not None
        if event["kind"] == "permission":
            answer: PermissionAnswer | QuestionAnswer = await self._permission(event)
        else:
            answer = await self._question(event)
        # Withdrawn meanwhile: the turn was cancelled.
        with contextlib.suppress(RequestNotOpenError):
            self._agent.answer(event["request_id"], answer)

    async def _permission(self, event: Mapping[str, Any]) -> PermissionAnswer:
        if not self._has_person:
            return PermissionAnswer(allow=False, message="nobody is there to allow it")
        assert self._screen is not None
        self._screen.show(f"{event['tool']}: {', '.join(event['subjects'])}")
        said = await asyncio.to_thread(_ask_line, "allow? [y/N] ")
        return PermissionAnswer(allow=(said or "").strip().lower() in ("y", "yes"))

    async def _question(self, event: Mapping[str, Any]) -> QuestionAnswer:
        if not self._has_person:
            return QuestionAnswer(refused="nobody is there to answer")
        assert self._screen is not None
        answers = []
        for question in event["questions"]:
            self._screen.show(question["text"])
            for number, option in enumerate(question["options"], start=1):
                self._screen.show(f"  {number}. {option}")
            said = await asyncio.to_thread(_ask_line, "? ")
            if said is None:
                return QuestionAnswer(refused="the person left the question open")
            answers.append(_chosen(said, question["options"], multiple=question["multiple"]))
        return QuestionAnswer(tuple(answers))


def _chosen(said: str, options: Sequence[str], *, multiple: bool) -> tuple[str, ...]:
    """Numbers name options; anything else is the answer itself."""
    words = [word.strip() for word in said.split(",")] if multiple else [said.strip()]
    return tuple(
        options[int(word) - 1] if word.isascii() and word.isdigit() and 0 < int(word) <= len(options) else word
        for word in words
    )


def _ask_line(prompt: str) -> str | None:
    try:
        return input(prompt)
    except EOFError:
        return None


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    made = parser("standfast direct")
    made.epilog = "TEXT: one message and its turn ('-': from stdin); without it a conversation."
    made.add_argument("--json", action="store_true", help="events as JSON lines on stdout; needs a TEXT")
    made.add_argument("text", nargs="?", metavar="TEXT")
    return made.parse_args(argv)


def main(argv: Sequence[str] | None = None, environment: Mapping[str, str] | None = None) -> int:
    """Gives the exit code."""
    given = _arguments(argv)
    try:
        settings = from_arguments(given)
        if given.json and given.text is None:
            raise SettingsError("expected a TEXT with --json")
        text = sys.stdin.read() if given.text == "-" else given.text
        terminal = Terminal(
            settings, is_json=given.json, environment=os.environ if environment is None else environment
        )
        return asyncio.run(terminal.run(text))
    except (SettingsError, SessionError) as error:
        print(f"standfast direct: {error}", file=sys.stderr)
        return EXIT_USAGE
