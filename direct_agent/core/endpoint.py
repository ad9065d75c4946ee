"""Which endpoint is spoken to, and what it demands of reasoning (three wires, five kinds).

A kind is recognised by the host of the base address, or said by the configuration; the configuration wins. Nothing is
inferred from what an endpoint answers.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from enum import StrEnum

from direct_agent.transcript import AssistantMessage, ReasoningState


class Wire(StrEnum):
    """Which protocol: `POST …/chat/completions`, `…/responses`, `…/v1/messages`."""

    CHAT = "chat"
    RESPONSES = "responses"
    MESSAGES = "messages"


class EndpointKind(StrEnum):
    """NATIVE_CLAUDE and UNKNOWN_GATEWAY speak Messages; OFFICIAL and SELF_HOSTED the other two; DeepSeek all three."""

    NATIVE_CLAUDE = "native_claude"
    STRICT_DEEPSEEK = "strict_deepseek"
    UNKNOWN_GATEWAY = "unknown_gateway"
    OFFICIAL = "official"
    SELF_HOSTED = "self_hosted"


class Thinking(StrEnum):
    """SERVER: say nothing and take what the server does by itself; counts as on. ADAPTIVE: Messages' own word for
    "the model decides how much", also to an endpoint whose usual word for ON is another.
    """

    SERVER = "server"
    ON = "on"
    ADAPTIVE = "adaptive"
    OFF = "off"


EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")
_NO_EFFORT = ("none", "disabled", "off")
_ANTHROPIC_HOSTS = ("api.anthropic.com",)
_DEEPSEEK_HOSTS = ("api.deepseek.com",)
_OPENAI_HOSTS = ("api.openai.com",)
ANTHROPIC_BASE_URL = "https://api.anthropic.com"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One configured endpoint. `effort` None: the server's own. `key_variable` names where the key is kept, for messages."""

    wire: Wire
    kind: EndpointKind
    base_url: str
    model: str
    thinking: Thinking = Thinking.SERVER
    effort: str | None = None
    max_tokens: int | None = None
    name: str = "provider"
    key_variable: str = "the API key"

    @property
    def is_thinking(self) -> bool:
        """Whether reasoning is asked for, as far as the settings say."""
        return self.thinking is not Thinking.OFF and self.effort not in _NO_EFFORT

    def scope(self) -> str:
        """Names this configuration in repair records: hex of what decides how reasoning is replayed. Holds no address."""
        parts = (self.wire, self.kind, self.base_url, self.model, self.thinking, self.effort or "")
        return hashlib.sha256("\x00".join(parts).encode()).hexdigest()[:32]


def kind_of(wire: Wire, base_url: str | None, protocol: str | None = None) -> EndpointKind:
    """The kind of an endpoint. `protocol` is the configured word: deepseek, anthropic, openai, none, or nothing.

    Raises ValueError for another word, or for one that does not fit the wire.
    """
    is_messages = wire is Wire.MESSAGES
    match protocol:
        case "deepseek":
            return EndpointKind.STRICT_DEEPSEEK
        case "none":
            return EndpointKind.UNKNOWN_GATEWAY if is_messages else EndpointKind.SELF_HOSTED
        case "anthropic" if is_messages:
            return EndpointKind.NATIVE_CLAUDE
        case "openai" if not is_messages:
            return EndpointKind.OFFICIAL
        case None:
            pass
        case _:
            raise ValueError(
                f"protocol {protocol!r} does not fit {wire.value}: expected deepseek, none, or "
                f"{'anthropic' if is_messages else 'openai'}"
            )
    host = _host(base_url) if base_url else ""
    if host in _DEEPSEEK_HOSTS:
        return EndpointKind.STRICT_DEEPSEEK
    if is_messages:
        is_native = base_url is None or host in _ANTHROPIC_HOSTS
        return EndpointKind.NATIVE_CLAUDE if is_native else EndpointKind.UNKNOWN_GATEWAY
    return EndpointKind.OFFICIAL if host in _OPENAI_HOSTS else EndpointKind.SELF_HOSTED


# Whatever stands before an @ is a user name, and after the host may come a port, a path, a query or a fragment.
_HOST = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://(?:[^/?#]*@)?(\[[^\]/?#]*\]|[^:/?#@]*)")


def _host(url: str) -> str:
    found = _HOST.match(url)
    return found.group(1).lower().rstrip(".") if found else ""


def request_url(wire: Wire, base_url: str) -> str:
    """Where a request goes: the base address with the wire's path, which may already be there in part or in whole."""
    base = base_url.rstrip("/")
    path = {Wire.CHAT: "/chat/completions", Wire.RESPONSES: "/responses", Wire.MESSAGES: "/messages"}[wire]
    if base.endswith(path):
        return base
    if wire is Wire.MESSAGES and not base.endswith("/v1"):
        return base + "/v1" + path
    return base + path


def requires_reasoning(endpoint: Endpoint, message: AssistantMessage) -> bool:
    """Whether the endpoint will demand reasoning for this message when it is sent back."""
    if not endpoint.is_thinking:
        return False
    has_reasoning = bool(message.reasoning)
    has_activity = bool(message.tool_calls or message.opaque)
    is_unsafe = message.reasoning_state in (ReasoningState.INCOMPLETE, ReasoningState.TRUNCATED)
    match endpoint.kind:
        case EndpointKind.STRICT_DEEPSEEK:
            return has_reasoning or is_unsafe or has_activity
        case EndpointKind.NATIVE_CLAUDE:
            return has_reasoning or is_unsafe or has_activity
        case EndpointKind.UNKNOWN_GATEWAY:
            return has_reasoning or is_unsafe
        case EndpointKind.OFFICIAL | EndpointKind.SELF_HOSTED:
            return False


def allows_empty_substitute(endpoint: Endpoint) -> bool:
    """Whether missing reasoning may be replaced by an empty field (chat) or left out (Responses)."""
    return endpoint.kind is EndpointKind.STRICT_DEEPSEEK and endpoint.wire is not Wire.MESSAGES
