"""The story's steps and what each must show. Pure: values in, findings out."""

from __future__ import annotations

from dataclasses import dataclass

NO_HISTORY = "-"


@dataclass(frozen=True, slots=True)
class Expected:
    """What a line must show; None leaves a thing free. `process`: "first", "same" as the step before, or "new".

    `session`, `container`: "same" as in the first step, or None. `saved`: the locator is SAVED on both sides after it.
    """

    context_state: str
    outcome: str
    process: str | None = None
    session: str | None = "same"
    container: str | None = "same"
    history: str | None = "COMPLETE"
    verdicts: tuple[str, str] | None = ("CONFIRMED", "CONFIRMED")
    disposition: str | None = None
    answer: str | None = None
    answer_quotes_step: int | None = None
    reason: str | None = None
    sent: bool = True


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the story. `before`: "stop" or "remove" the sandbox first."""

    number: int
    title: str
    message: str
    expected: Expected
    before: str | None = None
    is_new: bool = False


STORY: tuple[Step, ...] = (
    Step(
        1,
        "a fact is told",
        "remember: the word is plum",
        Expected("NEW", "COMPLETED", process="first", disposition="KEPT"),
        is_new=True,
    ),
    Step(
        2,
        "asked while the process lives",
        "what is the word?",
        Expected("LIVE", "COMPLETED", process="same", disposition="KEPT", answer="plum"),
    ),
    Step(
        3,
        "sandbox stopped, asked again",
        "what is the word?",
        Expected("RESTORED", "COMPLETED", process="new", disposition="KEPT", answer="plum"),
        before="stop",
    ),
    Step(
        4,
        "provider answers 403",
        "[[lab:status=403]] say hello",
        Expected("LIVE", "FAILED", process="same", disposition="KEPT", reason="PROVIDER_ERROR"),
    ),
    Step(
        5,
        "asked again after the failure",
        "what is the word?",
        Expected("LIVE", "COMPLETED", process="same", disposition="KEPT", answer="plum"),
    ),
    Step(
        6,
        "provider fails once inside the turn",
        "[[lab:status=529 times=1]] tell me something",
        Expected("LIVE", "COMPLETED", process="same", disposition="RETIRED"),
    ),
    Step(
        7,
        "asked about that very reply",
        "repeat your last reply",
        Expected("RESTORED", "COMPLETED", process="new", disposition="KEPT", answer_quotes_step=6),
    ),
    Step(
        8,
        "a native /clear changes the session",
        "/clear",
        Expected(
            "LIVE",
            "FAILED",
            process="same",
            history=None,
            verdicts=("CONTRADICTED", "CONTRADICTED"),
            reason="NATIVE_SESSION_MISMATCH",
        ),
    ),
    Step(
        9,
        "asked again",
        "what is the word?",
        Expected("RESTORED", "COMPLETED", process="new", answer="plum"),
    ),
    Step(
        10,
        "container removed, asked again",
        "what is the word?",
        Expected(
            "LOST",
            "REFUSED",
            session=None,
            container=None,
            history=None,
            verdicts=None,
            reason="CONTAINER_GONE",
            sent=False,
        ),
        before="remove",
    ),
)


@dataclass(frozen=True, slots=True)
class Line:
    """What one step really showed."""

    step: int
    message: str
    context_state: str
    outcome: str
    native_session_id: str
    container_id: str
    process_generation: int
    history: str
    runner_verdict: str
    manager_verdict: str
    disposition: str
    reason: str
    answer: str
    requests_sent: int

    def as_json(self) -> dict[str, object]:
        """The keys that `--json` promises."""
        return {
            "step": self.step,
            "message": self.message,
            "context_state": self.context_state,
            "outcome": self.outcome,
            "native_session_id": self.native_session_id,
            "container_id": self.container_id,
            "process_generation": self.process_generation,
            "history": self.history,
            "runner_verdict": self.runner_verdict,
            "manager_verdict": self.manager_verdict,
            "process": self.disposition,
            "reason": self.reason,
            "answer": self.answer,
        }


def differences(step: Step, line: Line, before: tuple[Line, ...]) -> list[str]:
    """What is not as it must be: one sentence each, with expected and found."""
    want = step.expected
    found: list[str] = []

    def check(name: str, expected: object, seen: object) -> None:
        if expected != seen:
            found.append(f"{name}: expected {expected}, found {seen}")

    check("context state", want.context_state, line.context_state)
    check("outcome", want.outcome, line.outcome)
    if want.process == "same":
        check("process generation", before[-1].process_generation, line.process_generation)
    elif want.process == "new" and line.process_generation <= before[-1].process_generation:
        found.append(
            f"process generation: expected one after {before[-1].process_generation}, found {line.process_generation}"
        )
    if before and want.session == "same":
        check("native session", before[0].native_session_id, line.native_session_id)
    if before and want.container == "same":
        check("container", before[0].container_id, line.container_id)
    if want.history is not None:
        check("history", want.history, line.history)
    if want.verdicts is not None:
        check("verdicts", want.verdicts, (line.runner_verdict, line.manager_verdict))
    if want.disposition is not None:
        check("process", want.disposition, line.disposition)
    if want.reason is not None:
        check("reason", want.reason, line.reason)
    if want.answer is not None and want.answer not in line.answer:
        found.append(f"answer: expected one with {want.answer!r}, found {line.answer!r}")
    if want.answer_quotes_step is not None:
        quoted = before[want.answer_quotes_step - 1].answer
        if not quoted or quoted not in line.answer:
            found.append(
                f"answer: expected one that quotes step {want.answer_quotes_step} ({quoted!r}), found {line.answer!r}"
            )
    if not want.sent and line.requests_sent:
        found.append(f"expected nothing sent, found {line.requests_sent} requests at the provider")
    return found
