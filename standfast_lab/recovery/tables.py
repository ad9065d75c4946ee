"""The fault tables: one user turn or two, for every protocol, with what must be counted. The clock is turned by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from direct_agent.core.endpoint import EndpointKind, Wire
from direct_agent.recovery.policy import Policy, RoundRole
from direct_agent.transcript import Transcript, UserMessage
from standfast_lab.recovery import answers
from standfast_lab.recovery.scripted_server import Break, Framing, Step
from standfast_lab.recovery.story import (
    Check,
    Story,
    Told,
    fault_class,
    holds,
    lacks,
    no_waiting,
    only_messages_differ,
    same_bodies,
)
from standfast_lab.recovery.turn_runner import Conversation

QUICK = (2, 4, 8)
STRICT, GATEWAY = EndpointKind.STRICT_DEEPSEEK, EndpointKind.UNKNOWN_GATEWAY


def comparison() -> list[Story]:
    """The three rows 3 / 1 / 4."""
    return [
        row
        for wire in Wire
        for row in (
            _story(wire, "503, 503, then text", [_503(), _503(), _text(wire)], 3, 0, gaps=(2, 4), unknown=True),
            _story(wire, "quota", [answers.quota()], 1, 0, "failed", checks=[fault_class("quota")]),
            _story(
                wire, "stream cut in the text, always", [answers.cut_text(wire)], 4, 0, "failed", gaps=QUICK,
                checks=[no_waiting, same_bodies(1, 2, 3, 4), fault_class("stream")],
            ),
        )
    ]  # fmt: skip


def alike() -> list[Story]:
    """What all protocols have in common."""
    return [row for wire in Wire for row in _alike(wire)]


def _alike(wire: Wire) -> list[Story]:
    text, tool = _text(wire), Step(answers.tool(wire))
    replay = answers.replay_refusal(wire)
    rows = [
        _story(
            wire, "cut inside JSON after a complete tool call, then text", [answers.cut_after_tool(wire), text], 2, 0,
            gaps=(2,), checks=[same_bodies(1, 2)],
        ),
        _story(
            wire, "empty answer, always", [Step(answers.empty(wire))], 4, 0, "failed", gaps=QUICK,
            checks=[no_waiting, fault_class("empty")],
        ),
        _story(wire, "connection closed before headers once, then text", [_gone(), text], 2, 0, gaps=(2,)),
        _story(
            wire, "503, cut, 503, cut", [_503(), answers.cut_text(wire), _503(), answers.cut_text(wire)], 4, 0, "failed",
            gaps=QUICK, checks=[no_waiting],
        ),
        _story(
            wire, "tool round; follow-up 503 twice, then text", [tool, _503(), _503(), text], 4, 1, gaps=(0, 2, 4),
            checks=[same_bodies(2, 3, 4)],
        ),
        _story(
            wire, "tool round; follow-up replay 400; then text", [tool, replay, text], 3, 1, gaps=(0, 0),
            checks=[
                only_messages_differ(2, 3), lacks(3, "I should list", "tool_use", "function_call", "tool_calls\\\":"),
                holds(3, "interrupted-turn-recovery", "completed-tool-results", "echoed: hi", "call_1"),
            ],
        ),
        _story(
            wire, "tool round; follow-up replay 400; repaired request rejected too", [tool, replay, replay], 3, 1, "failed",
            gaps=(0, 0), checks=[fault_class("protocol")],
        ),
        _story(
            wire, "tool round; follow-up cut twice, then text",
            [tool, answers.cut_text(wire), answers.cut_text(wire), text], 4, 1, gaps=(0, 2, 4),
        ),
        _story(wire, "replay 400 on a history with nothing to strip", [replay], 1, 0, "failed"),
        _story(
            wire, "400 with a reason but no pass-back demand, after a tool round",
            [tool, answers.refusal(400, {"message": "content[].thinking is not supported by this model"})], 2, 1, "failed",
        ),
        _story(
            wire, "error event inside the stream, not temporary", [Step(answers.stream_error(wire, "invalid_request"))],
            1, 0, "failed", checks=[fault_class("unknown")],
        ),
        _story(
            wire, "temporary error event before any content, twice, then text",
            [Step(answers.stream_error(wire, "overloaded_error"))] * 2 + [text], 3, 0, gaps=(2, 4),
        ),
        _story(
            wire, "temporary error event after content",
            [Step(answers.stream_error(wire, "overloaded_error", after_text=True))], 1, 0, "failed",
        ),
        _story(
            wire, "quota inside the stream",
            [Step(answers.stream_error(wire, "insufficient_quota"))], 1, 0, "failed", checks=[fault_class("quota")],
        ),
        _story(
            wire, "tool, 400, repaired tool call, 400, text",
            [tool, replay, Step(answers.tool(wire, "call_2", said="ho")), replay, text], 5, 2, gaps=(0, 0, 0, 0),
            checks=[holds(5, "call_1", "call_2", "echoed: hi")],
        ),
        _story(
            wire, "repair, then a second turn", [tool, replay, text, text], 4, 1, turns=("first", "second"),
            checks=[lacks(4, "tool_use", "function_call", "I should list"), holds(4, "echoed: hi", "second")],
        ),
        _story(
            wire, "repair, then a repeated user text", [tool, replay, text, text], 4, 1, turns=("continue", "continue"),
            checks=[_facts_once],
        ),
        _story(
            wire, "fault during the second tool round",
            [tool, Step(answers.tool(wire, "call_2")), _503(), text], 4, 2, gaps=(0, 0, 2),
        ),
        _story(
            wire, "a page that is no stream", [Step(b"<html>welcome</html>", headers=(("content-type", "text/html"),))],
            4, 0, "failed", gaps=QUICK, checks=[no_waiting],
        ),
        _story(
            wire, "Retry-After of 120 s", [answers.refusal(429, {"code": "rate_limit"}, retry_after="120"), text], 2, 0,
            gaps=(120,),
        ),
        _story(
            wire, "x-should-retry: false", [answers.unavailable(x_should_retry="false")], 1, 0, "failed", gaps=(),
        ),
        _story(
            wire, "503 after a repair: the backoff index is the attempt", [tool, replay, _503(), text], 4, 1,
            gaps=(0, 0, 4),
        ),
        _story(
            wire, "connection reset in the text, then text", [answers.cut_text(wire, Break.RESET), text], 2, 0, gaps=(2,),
        ),
        _story(
            wire, "short body after the end of the answer",
            [replace(text, framing=Framing.LENGTH, body=text.body + b" " * 99, cut_at=len(text.body), broken=Break.CLOSE)],
            1, 0, gaps=(),
        ),
        _story(wire, "repair record cannot be saved", [tool, replay, text], 2, 1, "failed", prepare=_unsaveable,
               checks=[fault_class("persist")]),
        _story(wire, "task budget spent between attempts", [_503(), text], 1, 0, "stopped", prepare=_spent),
        _story(wire, "cancel during backoff", [_503(), text], 1, 0, "cancelled", prepare=_cancel_on("retrying", 1)),
        _story(wire, "cancel as the complete tool answer arrives", _cancel_at_end(wire), 1, 0, "cancelled"),
        _story(wire, "transport retries off: 503", [_503(), text], 1, 0, "failed", policy=Policy(transport_retries=False)),
        _story(
            wire, "transport retries off: replay 400 is still repaired", [tool, replay, text], 3, 1,
            policy=Policy(transport_retries=False),
        ),
    ]  # fmt: skip
    rows.extend(
        _story(wire, f"status {status}, always", [answers.refusal(status, {"message": "no"})], 1, 0, "failed", gaps=())
        for status in (401, 403, 404, 422)
    )
    rows.append(_story(wire, "opaque 400, empty", [tool, answers.refusal(400, None)], 2, 1, "failed"))
    opaque = Step(b'{"model":"deepseek-v4-flash"}', 400, framing=Framing.LENGTH)
    rows.append(_story(wire, "opaque 400, the model's name alone", [tool, opaque], 2, 1, "failed"))
    rows.extend(
        _story(wire, f"{status} once, then text", [answers.refusal(status, {"message": "busy"}), text], 2, 0, gaps=(2,))
        for status in (408, 429, 529)
    )
    return rows


def different() -> list[Story]:
    """Where protocols and kinds of endpoint differ."""
    rows: list[Story] = []
    for wire, kind in (
        (Wire.CHAT, STRICT),
        (Wire.RESPONSES, STRICT),
        (Wire.MESSAGES, STRICT),
        (Wire.MESSAGES, GATEWAY),
    ):
        text, tool = _text(wire), Step(answers.tool(wire))
        bare = Step(answers.tool(wire, reasoning=None))
        is_strict_messages = wire is Wire.MESSAGES and kind is STRICT
        is_responses = wire is Wire.RESPONSES
        malformed = Step(answers.MALFORMED)
        length = Step(answers.tool(wire, finish=_length(wire)))
        rows.append(
            _story(
                wire,
                "tool turn without reasoning, then text",
                [bare, text],
                2,
                0 if is_strict_messages else 1,
                kind=kind,
            )
        )
        if is_strict_messages:
            rows.append(
                _story(
                    wire,
                    "tool turn without reasoning, regenerated with it, then text",
                    [bare, tool, text],
                    3,
                    1,
                    kind=kind,
                )
            )
            rows.append(
                _story(
                    wire, "tool turn without reasoning, always", [bare], 2, 0, "failed", kind=kind,
                    checks=[fault_class("reasoning"), same_bodies(1, 2)],
                )
            )  # fmt: skip
        else:
            rows.append(_story(wire, "tool turn without reasoning, always, then text", [bare, text], 2, 1, kind=kind))
        rows.append(
            _story(wire, "complete malformed event", [malformed, text], 2, 0, kind=kind, gaps=(2,))
            if is_responses
            else _story(
                wire, "complete malformed event", [malformed, text], 1, 0, "failed", kind=kind,
                checks=[fault_class("malformed_event")],
            )
        )  # fmt: skip
        rows.append(
            _story(wire, "length with a tool call", [length, text], 1, 0, "failed", kind=kind)
            if is_responses
            else _story(wire, "length with a tool call", [length, text], 2, 0, kind=kind)
        )
        if wire is Wire.MESSAGES:
            open_block = Step(answers.tool(wire, closes_thinking=False))
            rows.append(
                _story(
                    wire, "thinking block never closed, then tool", [open_block, tool, text], 3, 1, kind=kind,
                    checks=[same_bodies(1, 2)],
                )
            )  # fmt: skip
            rows.append(
                _story(
                    wire,
                    "replay rejection of unsigned history",
                    [tool, answers.replay_refusal(wire), text],
                    3,
                    1,
                    kind=kind,
                )
            )
    rows.append(
        _story(
            Wire.RESPONSES, "incomplete with text only", [Step(_incomplete_text())], 1, 0,
            checks=[lambda told: None if told.outcomes[-1].message and told.outcomes[-1].message.finish.value == "length"
                    else "the text was not accepted with finish length"],
        )
    )  # fmt: skip
    return rows


def waiting() -> list[Story]:
    """The waiting phase, its conditions and its budget."""
    rows: list[Story] = []
    for wire in Wire:
        rows += [
            _story(
                wire, "main, 503 for ever, cancelled in the first wait", [_503()], 4, 0, "cancelled", gaps=QUICK,
                prepare=_cancel_on("retrying", 4), checks=[_waits_on_the_fourth],
            ),
            _story(wire, "main, 503 for ever, for 85 s", [_503()], 5, 0, "cancelled", gaps=(2, 4, 8, 63),
                   prepare=_cancel_after(85)),
            _story(wire, "main, no connection for ever, for 85 s", [_gone()], 5, 0, "cancelled", gaps=(2, 4, 8, 63),
                   prepare=_cancel_after(85)),
            _story(wire, "main, 503 eight times, then text", [_503()] * 8 + [_text(wire)], 9, 0,
                   gaps=(2, 4, 8, 63, 63, 63, 63, 63)),
            _story(wire, "subagent, 503 for ever", [_503()], 4, 0, "failed", gaps=QUICK, role=RoundRole(subagent_depth=1)),
            _story(wire, "planner, 503 for ever", [_503()], 4, 0, "failed", gaps=QUICK, role=RoundRole(is_planner=True)),
            _story(wire, "grace round, 503 for ever", [_503()], 4, 0, "failed", gaps=QUICK, role=RoundRole(is_grace=True)),
            _story(wire, "a pending unknown outcome, 503 for ever", [_503()], 4, 0, "failed", gaps=QUICK,
                   role=RoundRole(has_pending_unknown=True)),
            _story(wire, "409 for ever", [answers.refusal(409, {"message": "conflict"})], 4, 0, "failed", gaps=QUICK,
                   checks=[no_waiting]),
            _story(wire, "a cut and then 503 for ever", [answers.cut_text(wire), _503()], 4, 0, "failed", gaps=QUICK,
                   checks=[no_waiting]),
            _story(wire, "waiting ends with an error that may not wait",
                   [_503()] * 4 + [answers.refusal(401, {"message": "no"})], 5, 0, "failed", gaps=(2, 4, 8, 63),
                   checks=[fault_class("auth")]),
            _story(wire, "waiting ends at the turn's own time limit", [_503()], 5, 0, "stopped", gaps=(2, 4, 8, 63),
                   prepare=_time_limit(100)),
            _story(wire, "wait budget of 3 minutes", [_503()], 6, 0, "failed", gaps=(2, 4, 8, 63, 63),
                   policy=Policy(wait_budget_s=180), checks=[fault_class("unreachable")]),
            _story(wire, "wait budget off", [_503()], 4, 0, "failed", gaps=QUICK, policy=Policy(wait_budget_s=0),
                   checks=[no_waiting]),
            _story(wire, "Retry-After of an hour under a wait budget of 10 minutes",
                   [_503(), _503(), _503(), answers.unavailable(retry_after="3600")], 4, 0, "failed", gaps=QUICK,
                   policy=Policy(wait_budget_s=600), checks=[fault_class("unreachable")]),
        ]  # fmt: skip
    return rows


def limits() -> list[Story]:
    """Refusals over a limit, repaired once and without delay."""
    rows: list[Story] = []
    ceiling = "max_tokens is too large: 9000. This model supports at most 4096 completion tokens."
    window = (
        "This model's maximum context length is 8000 tokens. However, you requested 12000 tokens "
        "(3000 in the messages, 9000 in the completion). Please reduce the length."
    )
    full = "prompt is too long: 9500 tokens > 8000 maximum"
    summed = (
        "input length and `max_tokens` exceed context limit: 3000 + 9000 > 8000, decrease input length or `max_tokens`"
    )
    for wire in Wire:
        text = _text(wire)
        for name, message, left in (
            ("output ceiling", ceiling, 4096),
            ("window overflow, output lowered", window, 5000),
            ("sum over the window, output lowered", summed, 5000),
        ):
            rows.append(
                _story(
                    wire,
                    name,
                    [_400(message), text],
                    2,
                    0,
                    gaps=(0,),
                    prepare=_asks_for(9000),
                    checks=[_output_is(left)],
                )
            )
        rows += [
            _story(wire, "output ceiling twice", [_400(ceiling), _400(ceiling)], 2, 0, "failed", gaps=(0,),
                   prepare=_asks_for(9000)),
            _story(wire, "prompt too long, compacted once", [_400(full), text], 2, 0, gaps=(0,), prepare=_compacts,
                   checks=[holds(2, "a summary")]),
            _story(wire, "no numbers, compacted once, refused again", [_400("Prompt exceeds max length")], 2, 0, "failed",
                   gaps=(0,), prepare=_compacts, checks=[fault_class("limit")]),
            _story(wire, "prompt too long and nothing to compact", [_400(full)], 1, 0, "failed", prepare=_asks_for(9000)),
            _story(wire, "limit repair, then the backoff of attempt 2", [_400(ceiling), _503(), text], 3, 0, gaps=(0, 4),
                   prepare=_asks_for(9000)),
            _story(wire, "numbers that contradict each other",
                   [_400(window.replace("9000 in", "1 in"))], 1, 0, "failed", prepare=_asks_for(9000)),
        ]  # fmt: skip
    return rows


def all_tables() -> list[Story]:
    return [*comparison(), *alike(), *different(), *waiting(), *limits()]


def _story(
    wire: Wire,
    name: str,
    steps: Sequence[Step] | Callable[[Conversation], Sequence[Step]],
    requests: int,
    executions: int,
    outcome: str = "completed",
    *,
    gaps: Sequence[float] | None = None,
    kind: EndpointKind = STRICT,
    checks: Sequence[Check] = (),
    turns: Sequence[str] = ("please echo hi",),
    role: RoundRole | None = None,
    policy: Policy | None = None,
    prepare: Callable[[Conversation], None] | None = None,
    unknown: bool | None = None,
) -> Story:
    scripted = steps if callable(steps) else lambda _conversation: steps
    return Story(
        name,
        wire,
        scripted,
        requests,
        executions,
        outcome,
        gaps,
        kind,
        turns=turns,
        role=role or RoundRole(),
        policy=policy or Policy(),
        prepare=prepare,
        checks=checks,
        usage_unknown=unknown,
    )


def _400(message: str) -> Step:
    return answers.refusal(400, {"message": message, "type": "invalid_request_error"})


def _asks_for(max_tokens: int) -> Callable[[Conversation], None]:
    def prepare(conversation: Conversation) -> None:
        conversation.settings = replace(conversation.settings, max_tokens=max_tokens)

    return prepare


class _Summary:
    async def compact(self, view: Transcript) -> Transcript | None:
        return (UserMessage("a summary", is_host=True), view[-1])


def _compacts(conversation: Conversation) -> None:
    conversation.settings = replace(conversation.settings, max_tokens=1000)
    conversation.compactor = _Summary()


def _output_is(expected: int) -> Check:
    def check(told: Told) -> str | None:
        body = json.loads(told.bodies[-1])
        found = body.get("max_tokens", body.get("max_output_tokens"))
        return None if found == expected else f"output limit: expected {expected}, found {found}"

    return check


def _text(wire: Wire) -> Step:
    return Step(answers.text(wire))


def _503() -> Step:
    return answers.unavailable()


def _gone() -> Step:
    return Step(broken=Break.BEFORE_HEADERS)


def _length(wire: Wire) -> str:
    return {Wire.CHAT: "length", Wire.RESPONSES: "max_output_tokens", Wire.MESSAGES: "max_tokens"}[wire]


def _incomplete_text() -> bytes:
    response = {"id": "r", "incomplete_details": {"reason": "max_output_tokens"}}
    return answers.sse(
        {"type": "response.output_text.delta", "item_id": "m", "content_index": 0, "delta": "as far as"},
        {"type": "response.incomplete", "response": response | {"usage": {"input_tokens": 1, "output_tokens": 2}}},
    )


def _unsaveable(conversation: Conversation) -> None:
    conversation.log.fails = True


def _spent(conversation: Conversation) -> None:
    conversation.budget.limit = "tokens"


def _cancel_on(name: str, times: int) -> Callable[[Conversation], None]:
    def prepare(conversation: Conversation) -> None:
        def heard(_event: object) -> None:
            if len(conversation.events.named(name)) >= times:
                conversation.cancel.set()

        conversation.events.heard = heard

    return prepare


def _cancel_after(seconds: float) -> Callable[[Conversation], None]:
    def prepare(conversation: Conversation) -> None:
        conversation.clock.on_sleep = lambda now_s: conversation.cancel.set() if now_s >= seconds else None

    return prepare


def _time_limit(seconds: float) -> Callable[[Conversation], None]:
    def prepare(conversation: Conversation) -> None:
        conversation.budget.ends_at_s = seconds

    return prepare


def _cancel_at_end(wire: Wire) -> Callable[[Conversation], Sequence[Step]]:
    def steps(conversation: Conversation) -> Sequence[Step]:
        begin, end = answers.tool_pieces(wire)
        return [Step(begin + end, cut_at=len(begin), broken=Break.HOLD, told=conversation.cancel.set)]

    return steps


def _waits_on_the_fourth(told: Told) -> str | None:
    flags = [event["waiting"] for event in told.conversation.events.named("retrying")]
    delays = [event["delay_s"] for event in told.conversation.events.named("retrying")]
    is_right = flags == [False, False, False, True] and isinstance(delays[3], float) and delays[3] >= 60
    return None if is_right else f"retrying events: {flags}, {delays}"


def _facts_once(told: Told) -> str | None:
    if len(told.bodies) < 4:
        return "request 4 is missing"
    body = told.bodies[3].decode()
    if body.count("<completed-tool-results>") != 1:
        return "the facts are not there once"
    first, last = body.index("<completed-tool-results>"), body.rindex("continue")
    return None if first < last else "the facts moved to the repeated text"
