"""The command line, environment and places of one server behind the bridge. Decides nothing about a turn.

The whole configuration goes in one variable, so that no file of the member's can be written instead of it, and the settings there are
those that make this agent's rules true: one prompt is one turn (no wake-ups, no background processes, no compaction by itself), what may
act asks first (the bridge answers), the pinned program stays the pinned one, nothing but the model is called, and no plugin, no server
of tools and no settings of the workspace are loaded. The workspace's and the home's AGENTS.md still are.
"""

from __future__ import annotations

import json
import re

from sandbox_manager.agents.bridged.product import Product
from sandbox_manager.agents.errors import AgentLocatorError, AgentSettingError
from sandbox_manager.core.values import LaunchSettings, LaunchSpec, NativeLocator, StoreKind, StoreLocation

RENDERER = "opencode"
PERMISSION_MODES = ("auto", "ask", "deny")
OPTIONS = ("max_retries", "context_window", "max_output_tokens")
_PROVIDER = "standfast"
_KEY_VARIABLE = "STANDFAST_MODEL_KEY"
_ASKING = ("bash", "edit", "webfetch", "external_directory", "doom_loop")
RULE_TOOLS = ("bash", "edit", "external_directory", "glob", "grep", "read", "skill", "task", "webfetch")
_RULE = re.compile(r"(?P<tool>[a-z_]+)(\((?P<pattern>[^(),\x00-\x1f\x7f]{1,200})\))?")
_RULES_MAX = 100
_WITHOUT_PATTERNS = ("webfetch",)
_CONTEXT_WINDOW = 200_000
_MAX_OUTPUT_TOKENS = 32_000
_MAX_RETRIES = 6
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_DISABLED = (
    "AUTOCOMPACT",
    "AUTOUPDATE",
    "DEFAULT_PLUGINS",
    "LSP_DOWNLOAD",
    "MODELS_FETCH",
    "PROJECT_CONFIG",
    "PRUNE",
    "SHARE",
)


def launch(product: Product, settings: LaunchSettings) -> LaunchSpec:
    """One server; the supervisor runs its bridge for it. The session is named over the bridge's protocol, not here.

    Raises AgentSettingError for a permission mode, a model or an option that is not known here.
    """
    if settings.permission_mode not in PERMISSION_MODES:
        raise _setting(product, "permission_mode", f"one of {', '.join(PERMISSION_MODES)}", settings.permission_mode)
    if not settings.model:
        raise _setting(product, "model", "the name of a model: this CLI has no default of its own here", "none")
    numbers = _numbers(product, settings)
    argv = (
        settings.executable,
        "--flavour",
        product.name,
        "--directory",
        settings.workspace,
        "--mode",
        settings.permission_mode,
        "--retries-max",
        str(numbers["max_retries"]),
    )
    return LaunchSpec(argv=argv, env=_environment(product, settings, numbers), cwd=settings.workspace, is_bridged=True)


def _numbers(product: Product, settings: LaunchSettings) -> dict[str, int]:
    numbers = {
        "max_retries": _MAX_RETRIES,
        "context_window": _CONTEXT_WINDOW,
        "max_output_tokens": _MAX_OUTPUT_TOKENS,
    }
    for name, value in settings.options:
        if name not in OPTIONS:
            raise _setting(product, name, f"one of the options {', '.join(OPTIONS)}", value)
        if not (value.isascii() and value.isdigit() and len(value) <= 7):
            raise _setting(product, name, "a whole number of at most seven digits", value)
        numbers[name] = int(value)
    return numbers


def _environment(product: Product, settings: LaunchSettings, numbers: dict[str, int]) -> tuple[tuple[str, str], ...]:
    """The whole environment, from an empty one: nothing of the host agent's own gets in."""
    env = {
        "HOME": settings.home,
        "PATH": _PATH,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        # Without it what tools put aside goes to /tmp, which the slots share.
        "TMPDIR": settings.tmp,
        _KEY_VARIABLE: settings.slot_secret,
        f"{product.prefix}_CONFIG_CONTENT": json.dumps(_config(product, settings, numbers), separators=(",", ":")),
        f"{product.prefix}_PURE": "1",
        **{f"{product.prefix}_DISABLE_{name}": "1" for name in _DISABLED},
        **dict(product.env),
    }
    return tuple(env.items())


def _config(product: Product, settings: LaunchSettings, numbers: dict[str, int]) -> dict[str, object]:
    model = f"{_PROVIDER}/{settings.model}"
    return {
        "model": model,
        "small_model": model,
        "share": "disabled",
        "autoupdate": False,
        "snapshot": False,
        "compaction": {"auto": False, "prune": False},
        "enabled_providers": [_PROVIDER],
        "provider": {
            _PROVIDER: {
                "npm": "@ai-sdk/openai-compatible",
                "name": _PROVIDER,
                "options": {
                    "baseURL": f"{settings.model_base_url}/v1",
                    # By name: the value is in the environment only.
                    "apiKey": f"{{env:{_KEY_VARIABLE}}}",
                },
                "models": {
                    settings.model: {
                        "name": settings.model,
                        "tool_call": True,
                        "limit": {"context": numbers["context_window"], "output": numbers["max_output_tokens"]},
                    }
                },
            }
        },
        "permission": _permission(product, settings),
        "instructions": [f"{settings.workspace}/AGENTS.md"],
    }


def _permission(product: Product, settings: LaunchSettings) -> dict[str, object]:
    """Per permission: what asks, and what is allowed or denied by pattern. The last pattern that fits holds, so denials are last."""
    found: dict[str, dict[str, str]] = {name: {"*": "ask"} for name in _ASKING}
    for setting, rules, word in (
        ("allow_rules", settings.allow_rules, "allow"),
        ("deny_rules", settings.deny_rules, "deny"),
    ):
        if len(rules) > _RULES_MAX:
            raise _setting(product, setting, f"at most {_RULES_MAX} rules", str(len(rules)))
        for rule in rules:
            match = _RULE.fullmatch(rule)
            if match is None or match["tool"] not in RULE_TOOLS:
                raise _setting(product, setting, f"TOOL or TOOL(PATTERN) with a tool of {', '.join(RULE_TOOLS)}", rule)
            pattern = match["pattern"] or "*"
            if pattern != "*" and match["tool"] in _WITHOUT_PATTERNS:
                raise _setting(
                    product, setting, f"{match['tool']} without a pattern: the server knows none for it", rule
                )
            patterns = found.setdefault(match["tool"], {"*": "allow"})
            patterns.pop(pattern, None)
            patterns[pattern] = word
    # The plain word where there is one: for some permissions the server takes nothing else (observed: it answers 400).
    plain = {name: next(iter(words.values())) if list(words) == ["*"] else words for name, words in found.items()}
    return {**plain, **dict.fromkeys(product.denied, "deny")}


def keeps_pinned(product: Product, spec: LaunchSpec) -> bool:
    """Whether a process started like this leaves its own program alone."""
    return dict(spec.env).get(f"{product.prefix}_DISABLE_AUTOUPDATE") == "1"


def locator(product: Product, native_session_id: str, workspace: str) -> NativeLocator:
    """The locator of a session in that workspace; its id is empty while the server has not named one."""
    return NativeLocator(
        agent=product.name, native_session_id=native_session_id, cwd=workspace, store="/".join(product.database)
    )


def store_location(product: Product, place: NativeLocator) -> StoreLocation:
    """Where the session lies. Raises AgentLocatorError for a locator that is not this CLI's."""
    session = place.native_session_id
    is_session = session.startswith("ses_") and session.isascii() and session.replace("_", "").isalnum()
    if place.agent != product.name or place.store != "/".join(product.database) or not is_session:
        raise AgentLocatorError(
            f"{product.name}: expected a session ses_... in {'/'.join(product.database)}, found another locator",
            {"agent": place.agent, "store": place.store, "native_session_id": session[:80]},
        )
    return StoreLocation("home", product.database, StoreKind.DATABASE, session, RENDERER)


def _setting(product: Product, name: str, expected: str, found: str) -> AgentSettingError:
    return AgentSettingError(
        f"{product.name}: {name}: expected {expected}; found {found[:80]!r}",
        {"agent": product.name, "setting": name, "found": found[:80]},
    )
