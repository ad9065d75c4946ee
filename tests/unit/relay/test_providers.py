"""Which provider gets which calls and which key: as the settings say, and never another provider's key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sandbox_manager.host.providers import PROVIDER_KEY_VARIABLE, upstreams_of
from sandbox_manager.host.relay.upstream import Upstreams
from sandbox_manager.host.settings import HostSettings
from standfast_chassis.secret_mask import SecretMask

KEY, CHAT_KEY = "sk-of-the-provider-0123456789", "sk-of-another-0123456789"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    (tmp_path / "key").write_text(KEY)
    return tmp_path / "key"


def upstreams(tmp_path: Path, **more: Any) -> Upstreams:
    flags = {"state": str(tmp_path), "manager": "127.0.0.1:1", "provider_url": "http://p.example", **more}
    return upstreams_of(HostSettings.load(flags=flags), SecretMask())


def headers(found: Upstreams) -> list[tuple[bytes, bytes] | None]:
    return [one.credential_header() for one in (found.messages, found.chat, found.responses)]


def test_one_provider_gets_its_key_as_each_protocol_wants_it(tmp_path: Path, key_file: Path) -> None:
    found = upstreams(tmp_path, provider_key_file=str(key_file))
    assert {one.base_url for one in (found.messages, found.chat, found.responses)} == {"http://p.example"}
    bearer = (b"authorization", f"Bearer {KEY}".encode())
    assert headers(found) == [(b"x-api-key", KEY.encode()), bearer, bearer]


def test_a_protocol_with_a_provider_of_its_own_never_gets_the_others_key(tmp_path: Path, key_file: Path) -> None:
    (tmp_path / "chat").write_text(CHAT_KEY)
    found = upstreams(
        tmp_path,
        provider_key_file=str(key_file),
        provider_chat_url="http://c.example",
        provider_chat_key_file=str(tmp_path / "chat"),
        provider_responses_url="http://r.example",
    )
    assert [one.base_url for one in (found.chat, found.responses)] == ["http://c.example", "http://r.example"]
    assert headers(found)[1:] == [(b"authorization", f"Bearer {CHAT_KEY}".encode()), None]


def test_the_key_of_the_environment_is_taken_out_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROVIDER_KEY_VARIABLE, KEY)
    assert headers(upstreams(tmp_path))[0] == (b"x-api-key", KEY.encode())
    assert headers(upstreams(tmp_path))[0] is None


@pytest.mark.parametrize("own", ["provider_chat_url", "provider_responses_url"])
def test_a_provider_counts_as_on_this_machine_only_if_all_of_them_are(tmp_path: Path, own: str) -> None:
    flags = {"state": str(tmp_path), "manager": "127.0.0.1:1", "provider_url": "http://127.0.0.1:1"}
    assert HostSettings.load(flags=flags).provider_is_loopback
    assert HostSettings.load(flags={**flags, own: "http://[::1]:2"}).provider_is_loopback
    assert not HostSettings.load(flags={**flags, own: "http://p.example"}).provider_is_loopback
