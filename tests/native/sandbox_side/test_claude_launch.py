"""The command line, environment and places of a Claude Code process."""

from __future__ import annotations

import dataclasses
import json

import pytest

from sandbox_manager.agents.claude_code.agent import ClaudeCode
from sandbox_manager.agents.errors import AgentLocatorError, AgentSettingError, UnknownAgentError
from sandbox_manager.agents.registry import AGENTS, agent_named
from sandbox_manager.core.values import LaunchSettings, LaunchSpec, NativeLocator, StoreLocation

AGENT = agent_named("claude-code")
SECRET = "slot-secret-0000"
SETTINGS = LaunchSettings(
    agent="claude-code",
    native_session_id="aaaaaaaa-0000-4000-8000-000000000001",
    resume=False,
    home="/members/1/home",
    tmp="/run/slots/1",
    workspace="/workspace",
    executable="/opt/claude-code/claude",
    model_base_url="http://127.0.0.1:9",
    slot_secret=SECRET,
    model="some-model",
)


def launch(**changes: object) -> LaunchSpec:
    return AGENT.launch(dataclasses.replace(SETTINGS, **changes))  # type: ignore[arg-type]  # names of one dataclass


def test_a_session_begins_with_its_id_and_is_resumed_with_its_id() -> None:
    assert launch().argv[-2:] == ("--session-id", SETTINGS.native_session_id)
    assert launch(resume=True).argv[-2:] == ("--resume", SETTINGS.native_session_id)


def test_the_secret_is_in_the_environment_only() -> None:
    spec = launch()
    assert dict(spec.env)["ANTHROPIC_API_KEY"] == SECRET
    assert not any(SECRET in word for word in spec.argv)
    assert SECRET not in repr(spec)
    assert SECRET not in repr(SETTINGS)


def test_the_switches_that_make_one_prompt_one_turn_are_on() -> None:
    spec = launch()
    env = dict(spec.env)
    for name in (
        "DISABLE_TELEMETRY",
        "DISABLE_ERROR_REPORTING",
        "DISABLE_AUTOUPDATER",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
        "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS",
        "CLAUDE_CODE_DISABLE_CRON",
    ):
        assert env[name] == "1"
    disallowed = spec.argv[spec.argv.index("--disallowedTools") + 1].split(",")
    assert {"CronCreate", "ScheduleWakeup", "Workflow", "EnterWorktree"} <= set(disallowed)
    assert "--include-partial-messages" in spec.argv
    assert spec.argv[spec.argv.index("--permission-mode") + 1] == "bypassPermissions"
    assert {"EnterPlanMode", "ExitPlanMode"} <= set(disallowed)


@pytest.mark.parametrize(("mode", "native"), [("auto", "bypassPermissions"), ("ask", "default"), ("deny", "dontAsk")])
def test_each_permission_mode_is_a_native_one_and_questions_come_in_all_of_them(mode: str, native: str) -> None:
    argv = launch(permission_mode=mode).argv
    assert argv[argv.index("--permission-mode") + 1] == native
    assert argv[argv.index("--permission-prompt-tool") + 1] == "stdio"


def test_what_must_be_asked_for_is_said_on_the_command_line_where_no_settings_file_outdoes_it() -> None:
    assert "--settings" not in launch().argv
    argv = launch(permission_mode="ask", allow_rules=("Bash(git *)",)).argv
    asked = json.loads(argv[argv.index("--settings") + 1])["permissions"]["ask"]
    assert asked == ["Edit", "NotebookEdit", "WebFetch", "WebSearch", "Write"]


def test_rules_are_the_clis_own_and_a_denying_one_stands_beside_what_is_always_denied() -> None:
    argv = launch(allow_rules=("Bash(git *)", "Read"), deny_rules=("WebFetch", "WebFetch")).argv
    assert argv[argv.index("--allowedTools") + 1] == "Bash(git *),Read"
    denied = argv[argv.index("--disallowedTools") + 1].split(",")
    assert denied.count("WebFetch") == 1
    assert "CronCreate" in denied


def test_the_environment_is_whole_and_nothing_else() -> None:
    spec = launch()
    env = dict(spec.env)
    assert (env["HOME"], env["TMPDIR"], spec.cwd) == ("/members/1/home", "/run/slots/1", "/workspace")
    assert "IS_SANDBOX" not in env
    assert dict(launch(isolated=False).env)["IS_SANDBOX"] == "1"
    assert len(env) == len(spec.env)


def test_a_model_that_looks_like_an_option_stays_a_value() -> None:
    assert "--model=--resume" in launch(model="--resume").argv


def test_the_model_is_always_said_so_that_no_settings_file_chooses_it() -> None:
    assert "--model=default" in launch(model=None).argv


def test_retries_are_set_by_an_option() -> None:
    assert dict(launch(options=(("max_retries", "0"),)).env)["CLAUDE_CODE_MAX_RETRIES"] == "0"
    assert "CLAUDE_CODE_MAX_RETRIES" not in dict(launch().env)


@pytest.mark.parametrize(
    "changes",
    [
        {"permission_mode": "plan"},
        {"permission_mode": ""},
        {"allow_rules": ("Bash,Edit",)},
        {"allow_rules": ("Bash(a)(b)",)},
        {"allow_rules": ("bash",)},
        {"deny_rules": ("CronCreate(x",)},
        {"deny_rules": ("--model=x",)},
        {"deny_rules": ("Bash(a\nb)",)},
        {"allow_rules": tuple(f"Bash(a{n})" for n in range(101))},
        {"options": (("max_retries", "-1"),)},
        {"options": (("max_retries", "٣"),)},
        {"options": (("max_retries", "1000"),)},
        {"options": (("LD_PRELOAD", "x"),)},
    ],
)
def test_unknown_settings_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(AgentSettingError) as refused:
        launch(**changes)
    assert refused.value.metadata["setting"]


@pytest.mark.parametrize(
    ("workspace", "slug"),
    [
        ("/workspace", "-workspace"),
        ("/srv/box.1/app_x", "-srv-box-1-app-x"),
        ("/é/a", "---a"),
        ("/🎉", "---"),
        ("/a" + "b" * 198, "-a" + "b" * 198),
    ],
)
def test_the_store_lies_below_the_slug_of_the_workspace(workspace: str, slug: str) -> None:
    locator = AGENT.locator("s-1", workspace)
    assert locator.store == f".claude/projects/{slug}/s-1.jsonl"
    assert AGENT.store_location(locator) == StoreLocation("home", (".claude", "projects", slug, "s-1.jsonl"))


def test_a_path_whose_slug_is_not_known_is_refused() -> None:
    with pytest.raises(AgentLocatorError):
        AGENT.locator("s-1", "/" + "a" * 200)


@pytest.mark.parametrize(
    "locator",
    [
        NativeLocator("claude-code", "s-1", "/workspace", ".claude/../../etc/s-1.jsonl"),
        NativeLocator("claude-code", "s-1", "/workspace", "/etc/s-1.jsonl"),
        NativeLocator("claude-code", "s-1", "/workspace", ".claude//s-1.jsonl"),
        NativeLocator("claude-code", "s-1", "/workspace", ".claude/projects/-workspace/s-2.jsonl"),
        NativeLocator("claude-code", "s-1", "/workspace", ".claude/pro\x00jects/s-1.jsonl"),
        NativeLocator("codex", "s-1", "/workspace", ".claude/projects/-workspace/s-1.jsonl"),
    ],
)
def test_a_locator_that_points_elsewhere_is_refused(locator: NativeLocator) -> None:
    with pytest.raises(AgentLocatorError):
        AGENT.store_location(locator)


@pytest.mark.parametrize("session_id", ["", "..", "a/b", "a\x00b"])
def test_a_session_id_that_is_a_path_is_refused(session_id: str) -> None:
    with pytest.raises(AgentLocatorError):
        AGENT.locator(session_id, "/workspace")


def test_the_agents_list_names_each_cli_once() -> None:
    assert sorted(AGENTS) == sorted(agent.name for agent in AGENTS.values())
    assert isinstance(AGENTS["claude-code"], ClaudeCode)
    with pytest.raises(UnknownAgentError) as refused:
        agent_named("nobody")
    assert "claude-code" in refused.value.metadata["known"]
