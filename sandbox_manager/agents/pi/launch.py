"""The command line, environment, settings files and places of one Pi process. Decides nothing about a turn.

The flags are those that make the rules of this agent true. Without `--no-extensions --no-skills --no-prompt-templates` a text that
begins with "/" may be replaced by another one, in the stored message too (observed). `--session-dir`: a workspace's
`.pi/settings.json` could move the sessions, even of a project that is not trusted. `--no-approve`: what else the workspace's `.pi`
folder holds is not read; its AGENTS.md still is.

The settings files are written anew at each start. models.json says where the model is (the relay's port) and not the slot's secret, which
comes from the environment. Cache warming is off, since it would call the model with no message of ours.
"""

from __future__ import annotations

import json
import re

from sandbox_manager.agents.errors import AgentLocatorError, AgentSettingError
from sandbox_manager.core.values import LaunchSettings, LaunchSpec, NativeLocator, StoreLocation

AGENT = "pi"
PROGRAM = "app/dist/bundle/cli.js"
"""The program's file, beside the runtime's executable in the tool folder."""

PROVIDER = "standfast"
_AGENT_FOLDER = ".pi/agent"
_SESSIONS = f"{_AGENT_FOLDER}/sessions"
_KEY_VARIABLE = "STANDFAST_MODEL_KEY"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# The provider protocol by its own name, Pi's name for it, and what it adds to the base URL itself.
_PROTOCOLS = {
    "messages": ("anthropic-messages", ""),
    "chat": ("openai-completions", "/v1"),
    "responses": ("openai-responses", "/v1"),
}
_DEFAULTS = {"protocol": "messages", "max_retries": "3", "context_window": "200000", "max_output_tokens": "32000"}
_NUMBERS_MAX = {"max_retries": 99, "context_window": 10_000_000, "max_output_tokens": 10_000_000}
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}")


def launch(settings: LaunchSettings) -> LaunchSpec:
    """One process: `--session-id` for a session that begins, `--session FILE` for one that is kept.

    Raises AgentSettingError for a missing model, a permission mode or an option that is not known here.
    """
    if settings.permission_mode != "auto":
        raise AgentSettingError(
            f"pi: permission_mode is auto, not {settings.permission_mode!r}: this CLI never asks before it uses a tool",
            {"agent": AGENT, "setting": "permission_mode", "found": settings.permission_mode},
        )
    if settings.model is None or _MODEL.fullmatch(settings.model) is None:
        raise AgentSettingError(
            f"pi: expected a model's id (it has no model of its own), found {settings.model!r}; name one",
            {"agent": AGENT, "setting": "model", "found": settings.model or ""},
        )
    options = _options(settings.options)
    argv = (
        settings.executable,
        f"{settings.executable.rpartition('/')[0]}/{PROGRAM}",
        "--mode",
        "rpc",
        "--provider",
        PROVIDER,
        "--model",
        settings.model,
        "--no-extensions",
        "--no-skills",
        "--no-prompt-templates",
        "--no-themes",
        "--no-mcp",
        "--no-approve",
        "--offline",
        "--session-dir",
        f"{settings.home}/{_SESSIONS}",
        *(
            ("--session", f"{settings.home}/{settings.store}")
            if settings.resume
            else ("--session-id", settings.native_session_id)
        ),
    )
    folder = f"{settings.home}/{_AGENT_FOLDER}"
    files = (
        (f"{folder}/models.json", 0o600, _json(_models(settings.model, settings.model_base_url, options))),
        (f"{folder}/settings.json", 0o600, _json(_own_settings(options))),
        # A key that is stored there would win over ours.
        (f"{folder}/auth.json", 0o600, _json({})),
    )
    return LaunchSpec(argv=argv, env=_environment(settings), cwd=settings.workspace, files=files)


def _options(given: tuple[tuple[str, str], ...]) -> dict[str, str]:
    options = {**_DEFAULTS, **dict(given)}
    for name, value in given:
        if name not in _DEFAULTS:
            raise AgentSettingError(
                f"pi: an option is one of {', '.join(_DEFAULTS)}, not {name!r}", {"agent": AGENT, "setting": name}
            )
        limit = _NUMBERS_MAX.get(name)
        is_number = value.isascii() and value.isdigit() and len(value) <= 8
        if (limit is None and value not in _PROTOCOLS) or (
            limit is not None and not (is_number and int(value) <= limit)
        ):
            expected = ", ".join(_PROTOCOLS) if limit is None else f"a whole number from 0 to {limit}"
            raise AgentSettingError(
                f"pi: {name} is {expected}, not {value!r}", {"agent": AGENT, "setting": name, "found": value}
            )
    return options


def _models(model: str, base_url: str, options: dict[str, str]) -> dict[str, object]:
    api, path = _PROTOCOLS[options["protocol"]]
    described = {
        "id": model,
        "name": model,
        "contextWindow": int(options["context_window"]),
        "maxTokens": int(options["max_output_tokens"]),
    }
    provider = {"baseUrl": base_url + path, "api": api, "apiKey": f"${_KEY_VARIABLE}", "models": [described]}
    return {"providers": {PROVIDER: provider}}


def _own_settings(options: dict[str, str]) -> dict[str, object]:
    retries = int(options["max_retries"])
    return {
        "retry": {"enabled": retries > 0, "maxRetries": retries, "baseDelayMs": 1000, "provider": {"maxRetries": 0}},
        "cacheWarming": "off",
        "defaultProjectTrust": "never",
        "enableInstallTelemetry": False,
    }


def _environment(settings: LaunchSettings) -> tuple[tuple[str, str], ...]:
    """The whole environment, from an empty one: nothing of the host agent's own gets in."""
    env = {
        "HOME": settings.home,
        "PATH": _PATH,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "TMPDIR": settings.tmp,
        "PI_CODING_AGENT_DIR": f"{settings.home}/{_AGENT_FOLDER}",
        "PI_OFFLINE": "1",
        "PI_TELEMETRY": "0",
        "PI_SKIP_VERSION_CHECK": "1",
        _KEY_VARIABLE: settings.slot_secret,
    }
    return tuple(env.items())


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True).encode() + b"\n"


def locator(native_session_id: str, workspace: str) -> NativeLocator:
    """The locator of a session that begins. The store's name holds the time of its making: the handshake names it."""
    return NativeLocator(agent=AGENT, native_session_id=native_session_id, cwd=workspace, store="")


def store_location(place: NativeLocator) -> StoreLocation:
    """Where the session file lies below the member's home. Raises AgentLocatorError for a locator that is not this CLI's."""
    components = tuple(place.store.split("/"))
    is_plain = all(part not in ("", ".", "..") and "\x00" not in part for part in components)
    named = components[-1].endswith(f"_{place.native_session_id}.jsonl")
    if place.agent != AGENT or not is_plain or not place.store.startswith(f"{_SESSIONS}/") or not named:
        raise AgentLocatorError(
            f"pi: the store of a locator is {_SESSIONS}/<time>_<native session id>.jsonl of this agent",
            {"agent": place.agent, "store": place.store},
        )
    return StoreLocation(base="home", components=components)
