"""The agents this runner can drive, and the driver of each. A new CLI is a driver file and a line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from runner.drivers.claude_code import driver as claude_code
from runner.drivers.codex import driver as codex
from runner.drivers.direct import driver as direct
from runner.drivers.http_bridge import driver as http_bridge
from runner.drivers.http_bridge.reader import NAMING_FRAMES as BRIDGE_NAMING_FRAMES
from runner.drivers.pi import driver as pi
from runner.drivers.port import Driver, Opening


@dataclass(frozen=True, slots=True)
class AgentEntry:
    """One agent.

    `identity_known` is BEFORE_PROMPT or FIRST_EVENT: when the CLI first tells its session id. `names_session` is HOST or
    CLI: who chooses the id of a session that begins. `naming_frames` are the kinds of frames of which one must name the
    session before a turn's content.
    """

    name: str
    version: str
    identity_known: str
    names_session: str
    naming_frames: frozenset[str]
    make_driver: Callable[[Opening], Driver]
    settings_per_process: tuple[str, ...]
    settings_per_turn: tuple[str, ...]
    permission_modes: tuple[str, ...] = ("auto",)  # those that this CLI has a notion of
    rule_tools: tuple[str, ...] = ()  # tools that a permission rule may name; none: the CLI has no such rules
    rejects_questions: bool = False  # a question can be rejected natively; else the turn is interrupted for it
    options: tuple[str, ...] = ()  # names of further settings, all per process
    capabilities: tuple[tuple[str, str], ...] = ()  # "yes", "no: why" or "later: why"


def _bridged(name: str, version: str) -> AgentEntry:
    """A server behind the bridge: the two differ in nothing that the runner sees."""
    return AgentEntry(
        name=name,
        version=version,
        identity_known="BEFORE_PROMPT",
        names_session="CLI",
        naming_frames=BRIDGE_NAMING_FRAMES,
        make_driver=lambda opening: http_bridge.HttpBridgeDriver(name, opening),
        settings_per_process=("model", "permission_mode", "allow_rules", "deny_rules"),
        settings_per_turn=(),
        permission_modes=("auto", "ask", "deny"),
        rule_tools=http_bridge.RULE_TOOLS,
        rejects_questions=True,
        options=("max_retries", "context_window", "max_output_tokens"),
        capabilities=(
            ("cancel", "yes"),
            ("resume", "yes"),
            ("sub_agents", "yes"),
            ("questions", "yes"),
            ("permissions", "yes"),
            ("fork", "later: it comes with forks"),
            ("compact", "later: it comes with native commands"),
            (
                "steer",
                "no: a prompt to a busy session joins its turn, or goes out with the next one when that is aborted",
            ),
        ),
    )


AGENTS: tuple[AgentEntry, ...] = (
    AgentEntry(
        name=claude_code.AGENT,
        version=claude_code.VERSION,
        identity_known="FIRST_EVENT",
        names_session="HOST",
        naming_frames=frozenset({"system/init"}),
        make_driver=lambda opening: claude_code.ClaudeCodeDriver(opening.start_offset),
        settings_per_process=("model", "permission_mode", "allow_rules", "deny_rules"),
        settings_per_turn=(),
        permission_modes=("auto", "ask", "deny"),
        rule_tools=claude_code.RULE_TOOLS,
        rejects_questions=True,
        options=("max_retries",),
        capabilities=(
            ("cancel", "yes"),
            ("resume", "yes"),
            ("sub_agents", "yes"),
            ("questions", "yes"),
            ("permissions", "yes"),
            ("fork", "later: it comes with forks"),
            ("compact", "later: it comes with native commands"),
            ("steer", "no: this CLI joins what is sent while a turn runs into one message"),
        ),
    ),
    AgentEntry(
        name=codex.AGENT,
        version=codex.VERSION,
        identity_known="BEFORE_PROMPT",
        names_session="CLI",
        naming_frames=frozenset({"turn/started"}),
        make_driver=codex.CodexDriver,
        settings_per_process=("model", "permission_mode"),
        settings_per_turn=(),
        options=("max_retries",),
        capabilities=(
            ("cancel", "yes"),
            ("resume", "yes"),
            ("sub_agents", "no: they outlive the turn, so they are switched off"),
            ("questions", "later: they come with the question RPCs"),
            ("permissions", "later: they come with the permission RPCs"),
            ("fork", "later: it comes with forks"),
            ("compact", "later: it comes with native commands"),
            ("steer", "later: it comes with follow-ups"),
        ),
    ),
    AgentEntry(
        name=pi.AGENT,
        version=pi.VERSION,
        identity_known="BEFORE_PROMPT",
        names_session="HOST",
        naming_frames=frozenset({"get_state"}),
        make_driver=pi.PiDriver,
        settings_per_process=("model", "permission_mode"),
        settings_per_turn=(),
        options=("protocol", "max_retries", "context_window", "max_output_tokens"),
        capabilities=(
            ("cancel", "yes"),
            ("resume", "yes"),
            ("sub_agents", "no: this CLI has none"),
            ("questions", "no: this CLI never asks"),
            ("permissions", "no: this CLI never asks, so every mode but auto is refused"),
            ("fork", "later: it comes with forks"),
            ("compact", "later: it comes with native commands"),
            ("steer", "later: it comes with steering"),
        ),
    ),
    AgentEntry(
        name=direct.AGENT,
        version=direct.VERSION,
        identity_known="BEFORE_PROMPT",
        names_session="HOST",
        naming_frames=direct.NAMING_FRAMES,
        make_driver=direct.DirectDriver,
        settings_per_process=("model", "permission_mode", "allow_rules", "deny_rules"),
        settings_per_turn=(),
        permission_modes=("auto", "ask", "deny"),
        rule_tools=direct.RULE_TOOLS,
        rejects_questions=True,
        options=direct.OPTIONS,
        capabilities=(
            ("cancel", "yes"),
            ("resume", "yes"),
            ("sub_agents", "no: this agent has none"),
            ("questions", "yes"),
            ("permissions", "yes"),
            ("fork", "later: it comes with forks"),
            ("compact", "later: it comes with native commands"),
            ("steer", "later: it comes with steering"),
        ),
    ),
    _bridged(http_bridge.OPENCODE, http_bridge.OPENCODE_VERSION),
    _bridged(http_bridge.KILO, http_bridge.KILO_VERSION),
)

_BY_NAME = {entry.name: entry for entry in AGENTS}


def agent_names() -> tuple[str, ...]:
    return tuple(_BY_NAME)


def find_agent(name: str) -> AgentEntry | None:
    """The agent of that exact name; None for one that this runner cannot drive."""
    return _BY_NAME.get(name)
