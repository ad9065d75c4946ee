"""Decides each answer: script steps first, then the words in the user text, then the grammar.

The only memory is how often a step or a word has worked. The conversation itself is read from each request anew.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from standfast_lab.provider.answer import Answer, Stop, Text, ToolCall
from standfast_lab.provider.directives import (
    Directive,
    DirectiveError,
    apply_directives,
    find_directives,
    parse_directive,
)
from standfast_lab.provider.grammar import default_reply, last_user_text
from standfast_lab.provider.heard import BlockKind, Heard, Kind, Message

# Claude Code's two names, OpenCode's and Kilo's, Codex's.
_SUBAGENT_TOOLS = ("Agent", "Task", "task", "spawn_agent")
_STEP_KEYS = {"root", "text", "session", "kind", "times", "do"}


@dataclass
class Step:
    """One scripted answer. All conditions that are given must hold. `left` None means that it never wears out.

    `root` is the number of the root request, from 1: of the session when `session` is given, else of the provider.
    """

    do: tuple[Directive, ...]
    root: int | None = None
    text: str | None = None
    session: str | None = None
    kind: Kind | None = None
    left: int | None = 1

    @classmethod
    def from_json(cls, value: object) -> Step:
        """Reads `{"root": 2, "text": "substring", "session": "...", "kind": "root", "times": 1, "do": ["status=403"]}`.

        `times` 0 means always.
        """
        if not isinstance(value, Mapping):
            raise DirectiveError(f"script step: expected an object, found {value!r}")
        if unknown := set(value) - _STEP_KEYS:
            raise DirectiveError(f"script step: unknown keys {sorted(unknown)}; known are {sorted(_STEP_KEYS)}")
        words = value.get("do")
        words = [words] if isinstance(words, str) else words
        if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
            raise DirectiveError(f"script step: `do` must be a lab word or a list of them, found {value.get('do')!r}")
        times, root, kind = value.get("times", 1), value.get("root"), value.get("kind")
        text, session = value.get("text"), value.get("session")
        if not isinstance(times, int) or times < 0:
            raise DirectiveError(f"script step: `times` must be a whole number, found {times!r}")
        if not (root is None or isinstance(root, int)) or not all(
            x is None or isinstance(x, str) for x in (text, session, kind)
        ):
            raise DirectiveError(
                f"script step: `root` is a number, `text`, `session` and `kind` are texts, found {dict(value)!r}"
            )
        if kind is not None and kind not in list(Kind):
            raise DirectiveError(f"script step: `kind` must be one of {', '.join(Kind)}, found {kind!r}")
        return cls(
            tuple(parse_directive(word) for word in words),
            root,
            text,
            session,
            None if kind is None else Kind(kind),
            times or None,
        )


class Script:
    """Steps and counters of one provider."""

    def __init__(self) -> None:
        self._steps: list[Step] = []
        self._worked: Counter[tuple[str, str, int]] = Counter()
        self._roots: Counter[str | None] = Counter()

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps that have not worn out."""
        return tuple(self._steps)

    def add(self, steps: Sequence[object]) -> None:
        """Appends steps (`Step` or its JSON form). One bad step adds none."""
        self._steps.extend([step if isinstance(step, Step) else Step.from_json(step) for step in steps])

    def clear(self) -> None:
        """Forgets all steps and counters."""
        self._steps.clear()
        self._worked.clear()
        self._roots.clear()

    def decide(self, heard: Heard) -> Answer:
        """Returns the answer to a request and counts what was used up."""
        if heard.is_root:
            self._roots[heard.session_id] += 1
        asked = last_user_text(heard.messages) or ""
        words = self._take_step(heard, asked)
        if words is None:
            words = self._take_words(heard, asked)
        answer = Answer("grammar", (Text(default_reply(heard.messages)),))
        if call := _tool_due(words, heard):
            answer = Answer("tool", (call,), Stop.TOOL_USE)
        return apply_directives(answer, words)

    def _take_step(self, heard: Heard, asked: str) -> list[Directive] | None:
        for step in self._steps:
            number = self._roots[heard.session_id] if step.session is not None else sum(self._roots.values())
            if (
                (step.root is None or (heard.is_root and step.root == number))
                and (step.text is None or step.text in asked)
                and (step.session is None or step.session == heard.session_id)
                and (step.kind is None or step.kind is heard.kind)
            ):
                if step.left is not None:
                    step.left -= 1
                    if not step.left:
                        self._steps.remove(step)
                return list(step.do)
        return None

    def _take_words(self, heard: Heard, asked: str) -> list[Directive]:
        taken = []
        for place, word in enumerate(find_directives(asked)):
            if word.times is not None:
                # Claude appends a line feed to a text that it joins with a later one.
                key = (heard.session_id or "", asked.rstrip("\n"), place)
                if self._worked[key] >= word.times:
                    continue
                self._worked[key] += 1
            taken.append(word)
        return taken


def _tool_due(words: Sequence[Directive], heard: Heard) -> ToolCall | None:
    """Returns the tool call whose turn it is: as many are behind us as tool calls stand after the last user text."""
    calls = [word for word in words if word.name in ("tool", "task")]
    done = _calls_since_asked(heard.messages)
    if done >= len(calls):
        return None
    word = calls[done]
    if word.name == "tool":
        return ToolCall(word.value, word.options["input"])
    name = next((name for name in _SUBAGENT_TOOLS if name in heard.tools), _SUBAGENT_TOOLS[0])
    return ToolCall(name, _subagent_input(name, word.value))


def _subagent_input(tool: str, prompt: str) -> str:
    if tool == "spawn_agent":
        return json.dumps({"message": prompt})
    kind = "general" if tool == "task" else "general-purpose"
    return json.dumps({"description": "lab sub-agent", "prompt": prompt, "subagent_type": kind})


def _calls_since_asked(messages: Sequence[Message]) -> int:
    calls = 0
    for message in reversed(messages):
        if message.role == "user" and last_user_text([message]) is not None:
            break
        calls += sum(1 for block in message.blocks if block.kind is BlockKind.TOOL_USE)
    return calls
