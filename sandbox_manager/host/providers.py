"""Where the model calls of this host go, and with which key: the relay's upstreams as the settings and the environment name them."""

from __future__ import annotations

import os
from pathlib import Path

from sandbox_manager.host.relay.upstream import KeyStyle, ProviderKey, Upstream, Upstreams
from sandbox_manager.host.settings import HostSettings
from standfast_chassis.secret_mask import SecretMask

PROVIDER_KEY_VARIABLE = "STANDFAST_PROVIDER_KEY"


def upstreams_of(settings: HostSettings, mask: SecretMask) -> Upstreams:
    """One upstream a protocol. A protocol with a URL of its own has its own key file, and never gets another provider's key."""
    if settings.provider_key_file is None and PROVIDER_KEY_VARIABLE in os.environ:
        key: ProviderKey | None = _masked(ProviderKey.from_environment(PROVIDER_KEY_VARIABLE), mask)
    else:
        key = _key(settings.provider_key_file, mask)
    same = Upstreams.same(Upstream(settings.provider_url, key, KeyStyle(settings.provider_key_style)))
    chat = _own(settings.provider_chat_url, settings.provider_chat_key_file, mask)
    responses = _own(settings.provider_responses_url, settings.provider_responses_key_file, mask)
    return Upstreams(same.messages, chat or same.chat, responses or same.responses)


def _own(url: str | None, key_file: Path | None, mask: SecretMask) -> Upstream | None:
    return None if url is None else Upstream(url, _key(key_file, mask), KeyStyle.BEARER)


def _key(file: Path | None, mask: SecretMask) -> ProviderKey | None:
    return None if file is None else _masked(ProviderKey.from_file(file), mask)


def _masked(key: ProviderKey, mask: SecretMask) -> ProviderKey:
    mask.register(key.reveal().decode("ascii"), "provider key")
    return key
