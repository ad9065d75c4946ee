"""The command line, environment and places of one Codex app-server. Decides nothing about a turn.

Every setting goes onto the command line: what stands there wins over `config.toml`, which lies in the member's home and which any
tool of the model can write (tried: another provider, address and model there changed nothing). No secret is among them; the slot's
secret goes in the environment, under the name that `env_key` says. What a written `config.toml` can still add, MCP servers and hooks,
is shut off by the root-owned /etc/codex/requirements.toml of the image (tried: none was started); `local` has no such file.

The settings make the rules of this agent true: one prompt is one turn (no goals, no sub-agents, no hooks that go on), the rollout stays
where and as it is (no compression, no migration of its form), the text goes as it is (no skills but a user's own, which add an item
beside a text that names one), nothing but the model is called (no plugins, apps, updates, analytics, hosted search), a server that
cannot be reached ends the turn (the CLI would wait for ever).
"""

from __future__ import annotations

import json
import re
from typing import Final

from sandbox_manager.agents.errors import AgentLocatorError, AgentSettingError
from sandbox_manager.agents.naming import complete_locator
from sandbox_manager.core.values import LaunchSettings, LaunchSpec, NativeLocator, StoreLocation, TapFindings

AGENT: Final = "codex"
VERSION: Final = "0.171.0"

PROVIDER: Final = "standfast"
KEY_VARIABLE: Final = "STANDFAST_MODEL_KEY"

APPROVAL_POLICIES: Final = {"auto": "never", "ask": "untrusted", "deny": "untrusted"}
"""The approval policy that each permission mode stands for. "untrusted" asks for every command and file change, `cat` too (observed)."""

SANDBOX: Final = "danger-full-access"
"""The CLI's own sandbox is off: the slot is the sandbox. Its helper needs rights that a container does not have."""

_OWN_DEFAULT_MODEL: Final = "gpt-6.2-sol"
"""What the program asks for when nothing is said (observed). Always said, since a written `config.toml` would choose another one."""

_OPTIONS: Final = ("max_retries",)
_RETRIES_MAX: Final = 100  # the CLI's own upper limit
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_ROLLOUT: Final = re.compile(
    r"\.codex/sessions/\d{4}/\d{2}/\d{2}/rollout-\d{4}-\d{2}-\d{2}T\d{2}-\d{2}-\d{2}-([0-9a-f-]{36})\.jsonl"
)

_SETTINGS: Final[tuple[tuple[str, str | bool | list[str]], ...]] = (
    ("model_provider", PROVIDER),
    (f"model_providers.{PROVIDER}.name", PROVIDER),
    (f"model_providers.{PROVIDER}.env_key", KEY_VARIABLE),
    (f"model_providers.{PROVIDER}.wire_api", "responses"),
    (f"model_providers.{PROVIDER}.supports_websockets", False),
    ("sandbox_mode", SANDBOX),
    ("check_for_update_on_startup", False),
    ("analytics.enabled", False),
    ("web_search", "disabled"),
    ("notify", []),
    ("agents.enabled", False),
    ("skills.bundled.enabled", False),
    ("features.goals", False),
    ("features.plugins", False),
    ("features.remote_plugin", False),
    ("features.apps", False),
    ("features.hooks", False),
    ("features.memories", False),
    ("features.image_generation", False),
    ("features.sleep_tool", False),
    ("features.skill_mcp_dependency_install", False),
    ("features.unbounded_connection_retries", False),
    ("features.enable_request_compression", False),  # the relay reads requests
    ("features.shell_snapshot", False),
    ("features.local_thread_store_compression", False),
    ("features.background_paginated_rollout_migration", False),
    # Without it the question tool is there and answers by itself that it is unavailable.
    ("features.default_mode_request_user_input", True),
    # The models that the program knows call tools through a host process beside it, which is started with the first call and which the
    # clean-up after a turn would end: the next turn's first call then fails ("The exec runtime was replaced"). Started before the native
    # start is answered, it is one of the processes that the handshake records, and stays (both observed).
    ("features.code_mode_prewarm", True),
    ("suppress_unstable_features_warning", True),
)


def launch(settings: LaunchSettings) -> LaunchSpec:
    """One process. It serves a start and a resume alike: which of them is said in its handshake.

    Raises AgentSettingError for a permission mode or an option that is not known here.
    """
    if settings.permission_mode not in APPROVAL_POLICIES:
        raise AgentSettingError(
            f"codex: permission_mode is one of {', '.join(APPROVAL_POLICIES)}, not {settings.permission_mode!r}",
            {"agent": AGENT, "setting": "permission_mode", "found": settings.permission_mode},
        )
    if settings.allow_rules or settings.deny_rules:
        raise AgentSettingError(
            "codex: this CLI has no permission rules by tool; expected none",
            {"agent": AGENT, "setting": "deny_rules" if settings.deny_rules else "allow_rules"},
        )
    argv = [settings.executable]
    for name, value in (*_SETTINGS, *_granted(settings)):
        argv += ["-c", f"{name}={json.dumps(value, ensure_ascii=False)}"]  # a JSON text or list is a TOML one, too
    argv.append("app-server")
    env = {
        # No CODEX_HOME: the CLI makes its own folder below HOME, and refuses one that is named and not there.
        "HOME": settings.home,
        "PATH": _PATH,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "TMPDIR": settings.tmp,
        KEY_VARIABLE: settings.slot_secret,
    }
    return LaunchSpec(argv=tuple(argv), env=tuple(env.items()), cwd=settings.workspace)


def _granted(settings: LaunchSettings) -> list[tuple[str, str | int]]:
    found: list[tuple[str, str | int]] = [
        (f"model_providers.{PROVIDER}.base_url", f"{settings.model_base_url.rstrip('/')}/v1"),
        ("model", settings.model or _OWN_DEFAULT_MODEL),
    ]
    for name, value in settings.options:
        if name not in _OPTIONS:
            raise AgentSettingError(
                f"codex: an option is one of {', '.join(_OPTIONS)}, not {name!r}", {"agent": AGENT, "setting": name}
            )
        if not (value.isascii() and value.isdigit() and len(value) <= 3 and int(value) <= _RETRIES_MAX):
            raise AgentSettingError(
                f"codex: {name} is a whole number from 0 to {_RETRIES_MAX}, not {value!r}",
                {"agent": AGENT, "setting": name, "found": value},
            )
        # A call is tried (1 + request retries) times, and that (1 + stream retries) times.
        found.append((f"model_providers.{PROVIDER}.request_max_retries", int(value)))
        found.append((f"model_providers.{PROVIDER}.stream_max_retries", int(value)))
    return found


def is_thread_id(found: str) -> bool:
    """Thread ids are UUIDs in lower case (version 7)."""
    return _UUID.fullmatch(found) is not None


def named_locator(granted: NativeLocator, findings: TapFindings, *, home: str) -> NativeLocator:
    """The locator with the thread id and the rollout that the handshake named. Raises AgentLocatorError for anything else."""
    whole = complete_locator(granted, findings, home=home)
    store_location(whole)
    return whole


def store_location(place: NativeLocator) -> StoreLocation:
    """Where the rollout lies below the member's home. Raises AgentLocatorError for a locator that is not this CLI's."""
    match = _ROLLOUT.fullmatch(place.store)
    if place.agent != AGENT or match is None or match[1] != place.native_session_id or not is_thread_id(match[1]):
        raise AgentLocatorError(
            "codex: the store of a locator is .codex/sessions/YYYY/MM/DD/rollout-<time>-<thread id>.jsonl of this agent",
            {"agent": place.agent, "store": place.store},
        )
    return StoreLocation(base="home", components=tuple(place.store.split("/")))
