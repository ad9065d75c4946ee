"""`local` isolates nothing: against a provider that is not on this machine it runs no CLI, unless it is told to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.scenarios.stage import Stage
from tests.stub_cli.tool_folder import ToolFolder

pytestmark = pytest.mark.engine("local")

# A documentation address: nothing answers there, and nothing is to be asked.
_ELSEWHERE = "http://192.0.2.1:9"


async def test_local_refuses_a_real_provider_before_a_cli_is_started(
    short_folder: Callable[[], Path], stub_tools: ToolFolder
) -> None:
    async with Stage(short_folder(), stub_tools, settings={"host-agent": {"provider_url": _ELSEWHERE}}) as stage:
        told = await stage.begin("c")
        assert told.refusal is not None
        assert told.refusal.reason == "ISOLATION_REQUIRED"
        assert (told.outcome, told.state) == ("REFUSED", "UNSPECIFIED")
        assert stage.rows("host", "select state from activations") == []


async def test_local_runs_against_a_real_provider_when_it_is_told_to(
    short_folder: Callable[[], Path], stub_tools: ToolFolder
) -> None:
    settings = {"host-agent": {"provider_url": _ELSEWHERE, "allow_unisolated": True}}
    async with Stage(short_folder(), stub_tools, settings=settings) as stage:
        told = await stage.begin("c", "hello [[stub:exit=3 at=init]]")
        assert told.outcome == "INTERRUPTED"
        assert told.reason == "CLI_DIED"
