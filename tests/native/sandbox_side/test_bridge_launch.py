"""How OpenCode and Kilo are started, and where their sessions lie."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from sandbox_manager.agents.errors import AgentLocatorError, AgentSettingError
from sandbox_manager.agents.registry import agent_named
from sandbox_manager.core.values import LaunchSettings, LaunchSpec, NativeEnd, NativeLocator, StoreKind, TapFindings

SECRET = "slot-secret-0000"
SETTINGS = LaunchSettings(
    agent="opencode",
    native_session_id="",
    resume=False,
    home="/members/1/home",
    tmp="/run/slots/1",
    workspace="/workspace",
    executable="/opt/standfast/agents/opencode/opencode",
    model_base_url="http://127.0.0.1:8377",
    slot_secret=SECRET,
    model="some/model-1",
)
AGENTS = pytest.mark.parametrize("name", ["opencode", "kilo"])


def spec_of(name: str, **changes: Any) -> LaunchSpec:
    return agent_named(name).launch(replace(SETTINGS, agent=name, **changes))


def config_of(name: str, **changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(dict(spec_of(name, **changes).env)[f"{name.upper()}_CONFIG_CONTENT"])
    return found


@AGENTS
def test_the_supervisor_runs_its_bridge_for_the_server_and_no_secret_is_on_the_command_line(name: str) -> None:
    spec = spec_of(name)
    assert spec.is_bridged
    assert spec.argv[0] == SETTINGS.executable
    assert spec.argv[1:5] == ("--flavour", name, "--directory", "/workspace")
    assert not any(SECRET in word for word in spec.argv)
    assert spec.files == ()


@AGENTS
def test_the_key_is_in_the_environment_by_its_name_only(name: str) -> None:
    env = dict(spec_of(name).env)
    assert [key for key, value in env.items() if SECRET in value] == ["STANDFAST_MODEL_KEY"]
    options = config_of(name)["provider"]["standfast"]["options"]
    assert options == {"baseURL": "http://127.0.0.1:8377/v1", "apiKey": "{env:STANDFAST_MODEL_KEY}"}


@AGENTS
def test_one_prompt_is_one_turn_and_nothing_but_the_model_is_called(name: str) -> None:
    env, config, prefix = dict(spec_of(name).env), config_of(name), name.upper()
    for off in (
        "AUTOUPDATE",
        "MODELS_FETCH",
        "SHARE",
        "DEFAULT_PLUGINS",
        "LSP_DOWNLOAD",
        "PROJECT_CONFIG",
        "AUTOCOMPACT",
    ):
        assert env[f"{prefix}_DISABLE_{off}"] == "1"
    assert env[f"{prefix}_PURE"] == "1"
    assert (config["autoupdate"], config["share"], config["compaction"]["auto"]) == (False, "disabled", False)
    assert config["enabled_providers"] == ["standfast"]
    assert agent_named(name).keeps_pinned(spec_of(name))
    without = tuple(pair for pair in spec_of(name).env if "AUTOUPDATE" not in pair[0])
    assert not agent_named(name).keeps_pinned(replace(spec_of(name), env=without))


@AGENTS
@pytest.mark.parametrize("mode", ["auto", "ask", "deny"])
def test_what_acts_asks_in_every_mode_and_the_bridge_gets_the_mode(name: str, mode: str) -> None:
    permission = config_of(name, permission_mode=mode)["permission"]
    assert [permission[tool] for tool in ("bash", "edit", "webfetch", "external_directory")] == ["ask"] * 4
    argv = spec_of(name, permission_mode=mode).argv
    assert argv[argv.index("--mode") + 1] == mode


@AGENTS
def test_rules_are_the_servers_own_and_a_denial_is_stronger(name: str) -> None:
    allowed, denied = ("bash(git *)", "read", "edit"), ("bash(git push *)", "edit", "task")
    permission = config_of(name, allow_rules=allowed, deny_rules=denied)["permission"]
    assert list(permission["bash"].items()) == [("*", "ask"), ("git *", "allow"), ("git push *", "deny")]
    assert [permission[tool] for tool in ("read", "edit", "task")] == ["allow", "deny", "deny"]


def test_kilos_tools_that_begin_work_by_themselves_are_not_offered() -> None:
    permission = config_of("kilo")["permission"]
    for tool in ("schedule_wakeup", "cancel_wakeup", "suggest", "background_process", "board_post", "board_read"):
        assert permission[tool] == "deny"


@AGENTS
@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"permission_mode": "yolo"}, "permission_mode"),
        ({"model": None}, "model"),
        ({"allow_rules": ("Bash",)}, "allow_rules"),
        ({"deny_rules": ("bash(a)(b)",)}, "deny_rules"),
        ({"deny_rules": ("webfetch(https://a/*)",)}, "deny_rules"),
        ({"options": (("unknown", "1"),)}, "unknown"),
        ({"options": (("max_retries", "-1"),)}, "max_retries"),
        ({"options": (("context_window", "99999999"),)}, "context_window"),
    ],
)
def test_a_setting_that_it_does_not_have_is_refused_by_name(name: str, changes: dict[str, Any], setting: str) -> None:
    with pytest.raises(AgentSettingError) as refused:
        spec_of(name, **changes)
    assert refused.value.metadata["setting"] == setting


@AGENTS
def test_options_reach_the_server_and_the_bridge(name: str) -> None:
    options = (("max_retries", "1"), ("context_window", "5000"), ("max_output_tokens", "77"))
    argv = spec_of(name, options=options).argv
    assert argv[argv.index("--retries-max") + 1] == "1"
    (model,) = config_of(name, options=options)["provider"]["standfast"]["models"].values()
    assert model["limit"] == {"context": 5000, "output": 77}


@AGENTS
def test_the_session_lies_in_the_databases_of_its_home(name: str) -> None:
    agent = agent_named(name)
    granted = agent.locator("", "/workspace")
    assert (granted.native_session_id, granted.is_whole) == ("", False)
    named = agent.named_locator(granted, findings("ses_AbC123"), home="/members/1/home")
    assert named == NativeLocator(name, "ses_AbC123", "/workspace", f".local/share/{name}/{name}.db")
    place = agent.store_location(named)
    assert (place.base, place.components) == ("home", (".local", "share", name, f"{name}.db"))
    assert (place.kind, place.session_id, place.renderer) == (StoreKind.DATABASE, "ses_AbC123", "opencode")


@AGENTS
@pytest.mark.parametrize("session", ["", "msg_1", "ses_../x", "ses_\u00e9", "../ses_1"])
def test_a_name_that_is_no_session_is_no_locator(name: str, session: str) -> None:
    agent = agent_named(name)
    with pytest.raises(AgentLocatorError):
        agent.named_locator(agent.locator("", "/workspace"), findings(session), home="/members/1/home")
    with pytest.raises(AgentLocatorError):
        agent.store_location(agent.locator(session, "/workspace"))


def test_a_locator_of_the_other_one_is_refused() -> None:
    with pytest.raises(AgentLocatorError):
        agent_named("kilo").store_location(agent_named("opencode").locator("ses_1", "/workspace"))


def findings(session: str | None, **more: Any) -> TapFindings:
    given: dict[str, Any] = {
        "session_ids": (session,) if session else (),
        "reset_to": None,
        "identity_before_output": True,
        "handshake": "OK",
        "message_started": True,
        "end": NativeEnd(False, "stop", None, 1, "d"),
        "assistant": (),
        "retry_seen": False,
        "background_pending": False,
        "lifecycle_closed": True,
        "noise_lines": 0,
        "open_requests": (),
        "agent_version": None,
        "handshake_session_id": session or None,
    }
    return TapFindings(**{**given, **more})


@pytest.mark.parametrize(
    ("more", "rule"),
    [
        ({}, None),
        ({"retry_seen": True}, None),
        ({"background_pending": True}, "WAKEUP_PENDING"),
        ({"retire_reason": "FOREIGN_PROMPT"}, "FOREIGN_PROMPT"),
        ({"session_ids": ("ses_1", "ses_2")}, "SESSION_CHANGED"),
        ({"end": None}, "NO_NATIVE_END"),
        ({"end": NativeEnd(True, "MessageAbortedError", None, 1, "d", cancelled=True)}, "CANCELLED"),
    ],
)
def test_what_retires_a_process(more: dict[str, Any], rule: str | None) -> None:
    assert agent_named("opencode").must_retire(findings("ses_1", **more)) == rule
