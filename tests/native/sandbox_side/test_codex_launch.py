"""The command line, environment and places of a Codex app-server."""

from __future__ import annotations

import dataclasses
import tomllib

import pytest

from sandbox_manager.agents.errors import AgentLocatorError, AgentSettingError
from sandbox_manager.agents.registry import agent_named
from sandbox_manager.core.values import LaunchSettings, LaunchSpec, NativeLocator, StoreLocation, TapFindings
from tests.native.sandbox_side.codex_recording import AGENT

SECRET = "slot-secret-0000"
THREAD = "01a22c47-c491-7d72-901c-a1f013b7b44d"
HOME = "/members/1/home"
STORE = f".codex/sessions/2026/11/30/rollout-2026-11-30T11-47-10-{THREAD}.jsonl"
SETTINGS = LaunchSettings(
    agent="codex",
    native_session_id="",
    resume=False,
    home=HOME,
    tmp="/run/slots/1",
    workspace="/workspace",
    executable="/opt/codex/codex",
    model_base_url="http://127.0.0.1:9",
    slot_secret=SECRET,
    model="some-model",
)


def launch(**changes: object) -> LaunchSpec:
    return AGENT.launch(dataclasses.replace(SETTINGS, **changes))  # type: ignore[arg-type]  # names of one dataclass


def configuration(spec: LaunchSpec) -> dict[str, object]:
    """The settings on the command line, read as what they are: TOML."""
    pairs = [spec.argv[at + 1] for at, word in enumerate(spec.argv) if word == "-c"]
    found: dict[str, object] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        assert name not in found
        found[name] = tomllib.loads(f"x = {value}")["x"]
    return found


def test_it_is_listed() -> None:
    assert agent_named("codex").version == "0.171.0"


def test_one_command_serves_a_start_and_a_resume() -> None:
    spec = launch()
    assert spec.argv[0] == "/opt/codex/codex"
    assert spec.argv[-1] == "app-server"
    assert spec == launch(resume=True, native_session_id=THREAD, store=STORE)
    assert (spec.cwd, spec.files) == ("/workspace", ())


def test_the_secret_is_in_the_environment_only() -> None:
    spec = launch()
    variable = configuration(spec)["model_providers.standfast.env_key"]
    assert dict(spec.env)[str(variable)] == SECRET
    assert not any(SECRET in word for word in spec.argv)
    assert SECRET not in repr(spec)


def test_the_model_is_asked_over_the_slots_own_port() -> None:
    found = configuration(launch())
    assert found["model_provider"] == "standfast"
    assert found["model_providers.standfast.base_url"] == "http://127.0.0.1:9/v1"
    assert found["model_providers.standfast.wire_api"] == "responses"
    assert found["model"] == "some-model"
    assert configuration(launch(model=None))["model"] == "gpt-6.2-sol"


@pytest.mark.parametrize(
    "name",
    [
        "features.goals",
        "agents.enabled",
        "features.plugins",
        "features.apps",
        "features.hooks",
        "features.memories",
        "features.unbounded_connection_retries",
        "features.local_thread_store_compression",
        "features.background_paginated_rollout_migration",
        "features.enable_request_compression",
        "skills.bundled.enabled",
        "check_for_update_on_startup",
        "analytics.enabled",
        "model_providers.standfast.supports_websockets",
    ],
)
def test_what_would_break_one_prompt_one_turn_or_call_others_is_off(name: str) -> None:
    assert configuration(launch())[name] is False


def test_its_keeps_pinned() -> None:
    assert AGENT.keeps_pinned(launch())
    assert not AGENT.keeps_pinned(LaunchSpec(argv=("codex", "app-server"), env=(), cwd="/"))


@pytest.mark.parametrize("model", ["a b", 'q"uote', "back\\slash", "-c", "ünï", "new\nline"])
def test_any_model_name_stays_one_value(model: str) -> None:
    assert configuration(launch(model=model))["model"] == model


def test_retries_are_set_for_requests_and_streams() -> None:
    found = configuration(launch(options=(("max_retries", "0"),)))
    assert found["model_providers.standfast.request_max_retries"] == 0
    assert found["model_providers.standfast.stream_max_retries"] == 0


@pytest.mark.parametrize(
    "change",
    [
        {"permission_mode": "root"},
        {"allow_rules": ("shell",)},
        {"deny_rules": ("shell",)},
        {"options": (("config", "x"),)},
        {"options": (("max_retries", "101"),)},
        {"options": (("max_retries", "-1"),)},
        {"options": (("max_retries", "²"),)},
    ],
)
def test_other_settings_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(AgentSettingError):
        launch(**change)


@pytest.mark.parametrize("mode", ["auto", "ask", "deny"])
def test_every_permission_mode_starts_the_same_process(mode: str) -> None:
    assert launch(permission_mode=mode) == launch()


# --- places ------------------------------------------------------------------------------------------------------------------------
def findings(session_id: str | None, store: str | None) -> TapFindings:
    return dataclasses.replace(
        AGENT.tap_reader(message_id=None, start_offset=0).findings(),
        handshake_session_id=session_id,
        handshake_store=store,
    )


def test_a_thread_that_begins_is_named_by_the_cli() -> None:
    granted = AGENT.locator("ignored", "/workspace")
    assert (granted.native_session_id, granted.store) == ("", "")
    named = AGENT.named_locator(granted, findings(THREAD, f"{HOME}/{STORE}"), home=HOME)
    assert named == NativeLocator("codex", THREAD, "/workspace", STORE)
    assert AGENT.store_location(named) == StoreLocation("home", tuple(STORE.split("/")))


@pytest.mark.parametrize(
    ("session_id", "store"),
    [
        (None, f"{HOME}/{STORE}"),
        (THREAD, None),
        (THREAD, f"/members/2/home/{STORE}"),
        (THREAD, f"{HOME}/../../2/home/{STORE}"),
        (THREAD, f"{HOME}/.codex/sessions/x/{STORE.rsplit('/', 1)[1]}"),
        (THREAD, f"{HOME}/{STORE}".replace(THREAD, "01a22c47-0000-7d72-901c-a1f013b7b44d")),
        (THREAD, f"{HOME}/.bashrc"),
        ("../../etc", f"{HOME}/{STORE}"),
        (THREAD.upper(), f"{HOME}/{STORE}".replace(THREAD, THREAD.upper())),
    ],
)
def test_nothing_else_is_a_place_of_this_cli(session_id: str | None, store: str | None) -> None:
    with pytest.raises(AgentLocatorError):
        AGENT.named_locator(AGENT.locator("", "/workspace"), findings(session_id, store), home=HOME)


def test_a_locator_of_another_agent_has_no_store_here() -> None:
    with pytest.raises(AgentLocatorError):
        AGENT.store_location(NativeLocator("claude-code", THREAD, "/workspace", STORE))
