"""The host agent's settings: flags before environment before defaults. No secret is a flag."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import Field

from standfast_chassis.settings import StandfastSettings


class HostSettings(StandfastSettings):
    """Settings of `standfast host-agent`."""

    # The provider's key may come this way: the server takes it from there itself, so that it is in no settings object.
    other_variables: ClassVar[frozenset[str]] = frozenset({"STANDFAST_PROVIDER_KEY"})

    state: Path = Field(description="State folder: keys, journal, taps, sockets, and on `local` the sandboxes.")
    manager: str = Field(description="Address of the sandbox manager, host:port.")
    listen: str = Field(default="127.0.0.1:0", description="Address to listen on, host:port; port 0 takes a free one.")
    engine: Literal["auto", "docker", "local"] = Field(
        default="auto", description="docker, local, or auto: docker where an engine answers, else local."
    )
    docker_host: str | None = Field(default=None, description="The engine's socket, as DOCKER_HOST would name it.")
    image: str = Field(default="standfast/sandbox:dev", description="docker: the sandbox image, by tag or id.")
    tools: Path | None = Field(default=None, description="local: the tool folder with the agents' programs.")
    provider_url: str = Field(
        description="Base URL of the provider, without /v1. It serves all protocols that have no URL of their own."
    )
    provider_key_file: Path | None = Field(default=None, description="File that holds the provider's key.")
    provider_key_style: Literal["x-api-key", "bearer"] = Field(
        default="x-api-key", description="Header of the key for Messages. OpenAI's protocols take a bearer token."
    )
    provider_chat_url: str | None = Field(default=None, description="Base URL for Chat Completions, if another one.")
    provider_chat_key_file: Path | None = Field(default=None, description="File with the key of that URL.")
    provider_responses_url: str | None = Field(default=None, description="Base URL for Responses, if another one.")
    provider_responses_key_file: Path | None = Field(default=None, description="File with the key of that URL.")
    allow_unisolated: bool = Field(
        default=False,
        description="local: run CLIs without permission checks although the provider is not on loopback.",
    )
    on_exit: Literal["leave", "stop"] = Field(
        default="leave", description="At shutdown: leave sandboxes running, or stop them in order."
    )
    otlp_endpoint: str | None = Field(default=None, description="OTLP/gRPC endpoint for traces.")
    log_level: str = Field(default="INFO", description="Log level.")
    attach_grace_s: float = Field(default=0.0, ge=0, description="How long the work's stream may be cut.")
    handshake_timeout_s: float = Field(default=30.0, gt=0, description="Bound of a native start.")
    quiesce_timeout_s: float = Field(default=5.0, gt=0, description="Bound of the clean-up after a turn.")
    store_wait_s: float = Field(default=5.0, ge=0, description="How long the native store may lag behind the end.")
    exit_wait_s: float = Field(default=10.0, gt=0, description="How long a retired CLI may take to leave.")
    stop_timeout_s: float = Field(default=15.0, gt=0, description="Bound of a sandbox's stop.")
    interrupt_wait_s: float = Field(
        default=3.0, gt=0, description="How long a native interrupt may take to end a turn."
    )
    tap_limit_bytes: int = Field(default=64 * 1024 * 1024, gt=0, description="Raw journal of one activation.")
    disk_free_min_bytes: int = Field(
        default=256 * 1024 * 1024, ge=0, description="Below this much free space no group and no turn begins."
    )
    extra_labels: dict[str, str] = Field(default_factory=dict, description="docker: further labels on containers.")

    @property
    def provider_is_loopback(self) -> bool:
        """Whether the provider runs on this machine: a lab, not a real one."""
        urls = (self.provider_url, self.provider_chat_url, self.provider_responses_url)
        return all(_is_loopback(url) for url in urls if url is not None)


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
