"""A client's StartTurnRequest, checked. The same check holds for a message that comes out of the queue after a restart."""

from __future__ import annotations

from runner.adapters.wire import locator_from_wire
from runner.conductor.parts import TurnRequest
from runner.core.errors import RequestInvalidError
from runner.core.requests import (
    Takes,
    check_agent,
    check_message,
    check_not_negative,
    check_rules,
    check_settings,
    check_when_busy,
)
from runner.core.values import NativeLocator
from runner.drivers.registry import agent_names, find_agent
from standfast.runner.v1 import runner_pb2 as pb


def turn_request(request: pb.StartTurnRequest) -> TurnRequest:
    """The request, checked. Nothing has happened when it raises."""
    agent = find_agent(check_agent(request.agent, agent_names()))
    assert agent is not None
    when_busy = _when_busy_name(request.when_busy)
    check_when_busy(when_busy, steer=dict(agent.capabilities).get("steer", "no"))
    settings = request.settings
    takes = Takes(agent.permission_modes, agent.rule_tools, agent.options)
    check_settings(settings.model, settings.permission_mode, settings.options, takes)
    check_rules("settings.allow_rules", settings.allow_rules, takes)
    check_rules("settings.deny_rules", settings.deny_rules, takes)
    return TurnRequest(
        message=check_message(request.message),
        agent=agent,
        settings=settings,
        expect=request.expect,
        locator=_requested_locator(request),
        turn_limit_s=_seconds("turn_limit_ms", request.turn_limit_ms),
        silence_limit_s=_seconds("silence_limit_ms", request.silence_limit_ms),
        request_expiry_s=_seconds("request_expiry_ms", request.request_expiry_ms),
        when_busy=when_busy,
        source=request,
    )


def _seconds(field: str, value_ms: int) -> float | None:
    return check_not_negative(field, value_ms) / 1000 if value_ms else None


def _requested_locator(request: pb.StartTurnRequest) -> NativeLocator | None:
    if not request.HasField("locator"):
        return None
    locator = locator_from_wire(request.locator)
    if locator is None:
        raise RequestInvalidError(
            "locator.native_session_id: expected the id of a native session, found nothing. Leave `locator` out to use "
            "the saved one.",
            {"field": "locator.native_session_id"},
        )
    return locator


def _when_busy_name(number: pb.WhenBusy.ValueType) -> str:
    if number == pb.WHEN_BUSY_UNSPECIFIED:
        return ""
    known = pb.WhenBusy.values()
    return pb.WhenBusy.Name(number).removeprefix("WHEN_BUSY_") if number in known else str(number)
