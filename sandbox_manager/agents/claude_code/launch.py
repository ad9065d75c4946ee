"""The command line, environment and places of one Claude Code process. Decides nothing about a turn.

The flags and variables are those that make the rules of this agent true: one prompt is one turn (no background tasks, no cron, no
wake-ups), the pinned program stays the pinned program (no updater), nothing but the model is called (no telemetry). The prompt goes
over stdin, never in argv; the slot's secret goes in the environment, never in argv, since every command line in a container can be
read by every slot.
"""

from __future__ import annotations

import json
import re

from sandbox_manager.agents.errors import AgentLocatorError, AgentSettingError
from sandbox_manager.core.values import LaunchSettings, LaunchSpec, NativeLocator, StoreLocation

AGENT = "claude-code"

# Tools that would start work which no message of ours asked for, or move the session's working directory (and so its store).
DISALLOWED_TOOLS = (
    "CronCreate",
    "CronDelete",
    "CronList",
    "ScheduleWakeup",
    "Workflow",
    "EnterWorktree",
    "ExitWorktree",
    # These two change the permission mode of the process, which is the conversation's.
    "EnterPlanMode",
    "ExitPlanMode",
)

# `dontAsk` refuses natively whatever it would have to ask for, questions too (observed).
_PERMISSION_MODES = {"auto": "bypassPermissions", "ask": "default", "deny": "dontAsk"}
# Tools that act. In `ask` and `deny` each has an asking rule of its own: it is stronger than an allowing rule in the member's own settings
# file, which a tool can write and the CLI obeys (observed), and it holds for commands too that the CLI thinks harmless.
_ACTING_TOOLS = ("Bash", "Edit", "NotebookEdit", "WebFetch", "WebSearch", "Write")
_RULE_TOOLS = frozenset({*_ACTING_TOOLS, "Agent", "AskUserQuestion", "Glob", "Grep", "Read", "Skill", "Task"})
_RULE = re.compile(r"(?P<tool>[A-Za-z]+)(\([^(),\x00-\x1f\x7f]{1,200}\))?")
_RULES_MAX = 100
_OPTIONS = ("max_retries",)
_OWN_DEFAULT_MODEL = "default"
_SLUG_LENGTH_MAX = 200
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def launch(settings: LaunchSettings) -> LaunchSpec:
    """One process: `--session-id` for a session that begins, `--resume` for one that is kept.

    Raises AgentSettingError for a permission mode, a rule or an option that is not known here.
    """
    allowed, denied = _rules("allow_rules", settings.allow_rules), _rules("deny_rules", settings.deny_rules)
    mode = _PERMISSION_MODES.get(settings.permission_mode)
    if mode is None:
        raise AgentSettingError(
            f"claude-code: permission_mode is one of {', '.join(_PERMISSION_MODES)}, not {settings.permission_mode!r}",
            {"agent": AGENT, "setting": "permission_mode", "found": settings.permission_mode},
        )
    argv = [
        settings.executable,
        "-p",
        "--input-format",
        "stream-json",
        "--output-format",
        "stream-json",
        "--verbose",
        "--include-partial-messages",
        "--forward-subagent-text",
        "--permission-mode",
        mode,
        # What it has to ask comes as a control request; without it there is no question, and what would ask is refused.
        "--permission-prompt-tool",
        "stdio",
        "--disallowedTools",
        ",".join((*DISALLOWED_TOOLS, *denied)),
    ]
    if allowed:
        argv += ["--allowedTools", ",".join(allowed)]
    if settings.permission_mode != "auto":
        named = {_tool_of(rule) for rule in allowed}
        asking = [tool for tool in _ACTING_TOOLS if tool not in named]
        argv += ["--settings", json.dumps({"permissions": {"ask": asking}}, separators=(",", ":"))]
    # One word with "=": a model name that begins with "-" stays a value and is no option. Always given: without it the `model` of a
    # settings file, which a tool can write, chooses another (observed).
    argv.append(f"--model={settings.model or _OWN_DEFAULT_MODEL}")
    argv += ["--resume" if settings.resume else "--session-id", settings.native_session_id]
    return LaunchSpec(argv=tuple(argv), env=_environment(settings), cwd=settings.workspace)


def _rules(name: str, rules: tuple[str, ...]) -> tuple[str, ...]:
    """Rules as they are, each once. Raises AgentSettingError: the CLI is silent about a rule that it cannot read or that names no tool."""
    if len(rules) > _RULES_MAX:
        raise AgentSettingError(
            f"claude-code: {name} are at most {_RULES_MAX}, not {len(rules)}",
            {"agent": AGENT, "setting": name, "found": str(len(rules))},
        )
    for rule in rules:
        if not _RULE.fullmatch(rule) or _tool_of(rule) not in _RULE_TOOLS:
            known = ", ".join(sorted(_RULE_TOOLS))
            raise AgentSettingError(
                f"claude-code: a rule in {name} is TOOL or TOOL(PATTERN), the pattern without comma or bracket, with a tool of {known}; "
                f"not {rule[:80]!r}",
                {"agent": AGENT, "setting": name, "found": rule[:80]},
            )
    return tuple(dict.fromkeys(rules))


def _tool_of(rule: str) -> str:
    return rule.partition("(")[0]


def _environment(settings: LaunchSettings) -> tuple[tuple[str, str], ...]:
    """The whole environment, from an empty one: nothing of the host agent's own gets in."""
    env = {
        "HOME": settings.home,
        "PATH": _PATH,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        # Without it the outputs of tasks go to /tmp, which the slots share.
        "TMPDIR": settings.tmp,
        "ANTHROPIC_BASE_URL": settings.model_base_url,
        "ANTHROPIC_API_KEY": settings.slot_secret,
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
        "CLAUDE_CODE_DISABLE_CRON": "1",
    }
    if not settings.isolated:
        # On `local` the CLI may run as root, where it refuses bypassPermissions (exit 1) unless it is told of a sandbox. In a
        # container it never is root, and the variable is not needed.
        env["IS_SANDBOX"] = "1"
    for name, value in settings.options:
        if name not in _OPTIONS:
            raise AgentSettingError(
                f"claude-code: an option is one of {', '.join(_OPTIONS)}, not {name!r}",
                {"agent": AGENT, "setting": name},
            )
        if not (value.isascii() and value.isdigit() and len(value) <= 3):
            raise AgentSettingError(
                f"claude-code: {name} is a whole number from 0 to 999, not {value!r}",
                {"agent": AGENT, "setting": name, "found": value},
            )
        env["CLAUDE_CODE_MAX_RETRIES"] = value
    return tuple(env.items())


def project_slug(cwd: str) -> str:
    """The folder name that Claude Code makes from a real working directory: all but ASCII letters and digits become '-'.

    It counts UTF-16 code units, as the program's own language does: a character outside the basic plane becomes two. A path of more
    than 200 units gets a hash which is not known here, so it is refused: AgentLocatorError.
    """
    slug = "".join(
        char if char.isascii() and char.isalnum() else "-" * (2 if ord(char) > 0xFFFF else 1) for char in cwd
    )
    if len(slug) > _SLUG_LENGTH_MAX:
        raise AgentLocatorError(
            f"claude-code: a workspace path is at most {_SLUG_LENGTH_MAX} characters, this one has {len(slug)}; use a shorter one",
            {"agent": AGENT, "length": len(slug), "length_max": _SLUG_LENGTH_MAX},
        )
    return slug


def locator(native_session_id: str, workspace: str) -> NativeLocator:
    """The locator of a session in that workspace. `workspace` is the real path: the CLI resolves links before it makes the slug."""
    _check_component(native_session_id)
    return NativeLocator(
        agent=AGENT,
        native_session_id=native_session_id,
        cwd=workspace,
        store=f".claude/projects/{project_slug(workspace)}/{native_session_id}.jsonl",
    )


def store_location(place: NativeLocator) -> StoreLocation:
    """Where the transcript lies below the member's home. Raises AgentLocatorError for a locator that is not this CLI's."""
    components = tuple(place.store.split("/"))
    for component in components:
        _check_component(component)
    if place.agent != AGENT or components[-1] != f"{place.native_session_id}.jsonl":
        raise AgentLocatorError(
            "claude-code: the store of a locator is <projects>/<slug>/<native session id>.jsonl of this agent",
            {"agent": place.agent, "store": place.store},
        )
    return StoreLocation(base="home", components=components)


def _check_component(component: str) -> None:
    if component in ("", ".", "..") or "/" in component or "\x00" in component:
        raise AgentLocatorError(
            "claude-code: a path component is a plain name, with no '/', no '..' and no NUL",
            {"agent": AGENT, "component": repr(component)},
        )
