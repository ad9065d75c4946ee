"""The command line, environment and places of one process of the built-in agent. Decides nothing about a turn.

The prompt goes over stdin, never in argv; the slot's secret goes in the environment, which the agent's own tools do not get.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from sandbox_manager.agents.errors import AgentLocatorError, AgentSettingError
from sandbox_manager.core.values import LaunchSettings, LaunchSpec, NativeLocator, StoreLocation

AGENT = "direct"

_KEY_VARIABLE = "STANDFAST_MODEL_KEY"
_MODES = ("auto", "ask", "deny")
_OWN_DEFAULT_MODEL = "default"
_STORE_FOLDER = ".standfast-direct/sessions"
_ID_LENGTH_MAX = 100
_RULE_TOOLS = ("edit", "list", "multi_edit", "read", "search", "shell", "write")
_RULE = re.compile(r"[a-z_]+(\([^\x00-\x1f\x7f]{1,1000}\))?")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def _one_of(*words: str) -> Callable[[str], bool]:
    return lambda value: value in words


def _is_whole_number(value: str) -> bool:
    return value.isascii() and value.isdigit() and len(value) <= 9


# What an option is called, what it may be, how the command line says it.
_OPTIONS: dict[str, tuple[Callable[[str], bool], str, str]] = {
    "protocol": (_one_of("messages", "chat", "responses"), "messages, chat or responses", "--protocol"),
    "contract": (
        _one_of("deepseek", "anthropic", "openai", "none"),
        "deepseek, anthropic, openai or none",
        "--contract",
    ),
    "thinking": (_one_of("server", "on", "off"), "server, on or off", "--thinking"),
    "effort": (
        _one_of("none", "minimal", "low", "medium", "high", "xhigh", "max"),
        "none, minimal, low, medium, high, xhigh or max",
        "--effort",
    ),
    "max_tokens": (_is_whole_number, "a whole number", "--max-tokens"),
    "wait_budget_s": (_is_whole_number, "a whole number of seconds", "--wait-budget-s"),
    "turn_limit_s": (_is_whole_number, "a whole number of seconds", "--turn-limit-s"),
    "transport_retries": (_one_of("on", "off"), "on or off", "--no-transport-retries"),
}

OPTION_NAMES = tuple(_OPTIONS)


def launch(settings: LaunchSettings) -> LaunchSpec:
    """One process: `--session-id` for a session that begins, `--resume` for one that is kept. Raises AgentSettingError."""
    if settings.permission_mode not in _MODES:
        raise AgentSettingError(
            f"direct: permission_mode is one of {', '.join(_MODES)}, not {settings.permission_mode!r}",
            {"agent": AGENT, "setting": "permission_mode", "found": settings.permission_mode},
        )
    _check_id(settings.native_session_id)
    # One word with "=": a value that begins with "-" stays a value and is no option.
    argv = [
        settings.executable,
        f"--{'resume' if settings.resume else 'session-id'}={settings.native_session_id}",
        f"--home={settings.home}",
        f"--workspace={settings.workspace}",
        f"--base-url={settings.model_base_url}",
        f"--model={settings.model or _OWN_DEFAULT_MODEL}",
        f"--permission-mode={settings.permission_mode}",
        f"--key-env={_KEY_VARIABLE}",
    ]
    for name, value in settings.options:
        argv += _option(name, value)
    argv += _rules("allow", settings.allow_rules)
    argv += _rules("deny", settings.deny_rules)
    return LaunchSpec(argv=tuple(argv), env=_environment(settings), cwd=settings.workspace)


def _rules(word: str, rules: tuple[str, ...]) -> list[str]:
    for rule in rules:
        if not _RULE.fullmatch(rule) or rule.partition("(")[0] not in _RULE_TOOLS:
            raise AgentSettingError(
                f"direct: a rule in {word}_rules is TOOL or TOOL(PATTERN) with a tool of {', '.join(_RULE_TOOLS)}; not {rule[:80]!r}",
                {"agent": AGENT, "setting": f"{word}_rules", "found": rule[:80]},
            )
    return [f"--{word}={rule}" for rule in rules]


def _option(name: str, value: str) -> list[str]:
    if name not in _OPTIONS:
        raise AgentSettingError(
            f"direct: an option is one of {', '.join(_OPTIONS)}, not {name!r}", {"agent": AGENT, "setting": name}
        )
    fits, expected, word = _OPTIONS[name]
    if not fits(value):
        raise AgentSettingError(
            f"direct: {name} is {expected}, not {value!r}", {"agent": AGENT, "setting": name, "found": value}
        )
    if name == "transport_retries":
        return [word] if value == "off" else []
    return [f"{word}={value}"]


def _environment(settings: LaunchSettings) -> tuple[tuple[str, str], ...]:
    """The whole environment, from an empty one: nothing of the host agent's own gets in."""
    env = {
        "HOME": settings.home,
        "PATH": _PATH,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        # Without it temporary files go to /tmp, which the slots share.
        "TMPDIR": settings.tmp,
        "PYTHONDONTWRITEBYTECODE": "1",
        _KEY_VARIABLE: settings.slot_secret,
    }
    return tuple(env.items())


def locator(native_session_id: str, workspace: str) -> NativeLocator:
    """The locator of a session in that workspace."""
    _check_id(native_session_id)
    return NativeLocator(
        agent=AGENT,
        native_session_id=native_session_id,
        cwd=workspace,
        store=f"{_STORE_FOLDER}/{native_session_id}.jsonl",
    )


def store_location(place: NativeLocator) -> StoreLocation:
    """Where the session lies below the member's home. Raises AgentLocatorError for a locator that is not this agent's."""
    _check_id(place.native_session_id)
    if place.agent != AGENT or place.store != f"{_STORE_FOLDER}/{place.native_session_id}.jsonl":
        raise AgentLocatorError(
            f"direct: the store of a locator is {_STORE_FOLDER}/<native session id>.jsonl of this agent",
            {"agent": place.agent, "store": place.store},
        )
    return StoreLocation(base="home", components=tuple(place.store.split("/")))


def _check_id(session_id: str) -> None:
    is_plain = session_id.isascii() and all(char.isalnum() or char in "-_" for char in session_id)
    if not is_plain or not 0 < len(session_id) <= _ID_LENGTH_MAX:
        raise AgentLocatorError(
            f"direct: a session id has 1 to {_ID_LENGTH_MAX} letters, digits, '-' and '_'",
            {"agent": AGENT, "native_session_id": repr(session_id[:_ID_LENGTH_MAX])},
        )
