"""Requests are checked before anything is looked up, and what is wrong is named."""

from __future__ import annotations

import pytest

from sandbox_manager.conductor.process_settings import in_force, process_settings, require_taken
from sandbox_manager.core.records import Permissions, ProcessSettings
from sandbox_manager.core.refusals import AgentUnknownError, IdInvalidError, RequestInvalidError, SettingUnknownError
from sandbox_manager.services.requests import (
    checked_agent,
    checked_digest,
    checked_id,
    checked_length,
    checked_locator,
    checked_ref,
    checked_text,
    said_settings,
)
from standfast.types.v1 import types_pb2 as types
from standfast_chassis.limits import MESSAGE_MAX_BYTES


@pytest.mark.parametrize("good", ["a", "A-1_.:z", "x" * 128, "-rf", "."])
def test_an_id_of_the_allowed_characters_is_taken(good: str) -> None:
    assert checked_id("turn_id", good) == good


@pytest.mark.parametrize("bad", ["", "x" * 129, "a b", "a/b", "ä", "a\n", "a\x00", "\u202e"])
def test_any_other_id_is_refused_without_repeating_it(bad: str) -> None:
    with pytest.raises(IdInvalidError) as error:
        checked_id("turn_id", bad)
    assert error.value.metadata["field"] == "turn_id"
    assert not bad or bad not in error.value.message


def test_the_tenant_is_local_where_none_is_given() -> None:
    assert checked_ref(types.ConversationKey(conversation_id="c")).tenant == "local"
    assert checked_ref(types.ConversationKey(tenant="t", conversation_id="c")).tenant == "t"


@pytest.mark.parametrize("bad", ["", "a" * 63, "A" * 64, "g" * 64, "a" * 65])
def test_a_digest_is_sixty_four_hex_digits(bad: str) -> None:
    with pytest.raises(RequestInvalidError):
        checked_digest("message_digest", bad)
    assert checked_digest("message_digest", "a" * 64) == "a" * 64


@pytest.mark.parametrize("bad", [0, -1, MESSAGE_MAX_BYTES + 1, 20_000_000])
def test_a_message_has_a_byte_and_is_not_over_the_limit(bad: int) -> None:
    with pytest.raises(RequestInvalidError) as error:
        checked_length("message_length", bad)
    assert error.value.metadata["found"] == str(bad)
    assert checked_length("message_length", MESSAGE_MAX_BYTES) == MESSAGE_MAX_BYTES


def test_an_agent_that_this_build_does_not_have_is_refused_with_those_it_has() -> None:
    with pytest.raises(AgentUnknownError, match="claude-code"):
        checked_agent("nobody")


@pytest.mark.parametrize("field", ["agent", "native_session_id", "cwd", "store"])
def test_a_locator_with_a_part_missing_is_refused_by_that_part(field: str) -> None:
    whole = types.NativeLocator(agent="claude-code", native_session_id="s", cwd="/w", store="a/s.jsonl")
    assert checked_locator("locator", whole).store == "a/s.jsonl"
    setattr(whole, field, "")
    with pytest.raises(RequestInvalidError) as error:
        checked_locator("locator", whole)
    assert error.value.metadata["field"] == f"locator.{field}"


@pytest.mark.parametrize("bad", ["", "x" * 1025, "a\x00b"])
def test_a_text_is_there_short_and_without_nul(bad: str) -> None:
    with pytest.raises(RequestInvalidError):
        checked_text("runner_address", bad)
    assert checked_text("reason", "", is_required=False) == ""


def settings_of(settings: types.AgentSettings, kept: ProcessSettings | None = None) -> ProcessSettings:
    return in_force(said_settings(settings), kept)


def test_settings_that_are_equal_have_one_digest_however_they_are_said() -> None:
    said = settings_of(types.AgentSettings(permission_mode="auto"))
    unsaid = settings_of(types.AgentSettings())
    assert said == unsaid
    assert said.digest == process_settings(None, Permissions()).digest


@pytest.mark.parametrize(
    "settings",
    [
        types.AgentSettings(model="another"),
        types.AgentSettings(options={"max_retries": "1"}),
        types.AgentSettings(permission_mode="ask"),
        types.AgentSettings(allow_rules=["Bash"]),
        types.AgentSettings(deny_rules=["Bash"]),
    ],
)
def test_settings_that_differ_have_another_digest_and_are_kept_by_a_turn_that_says_none(
    settings: types.AgentSettings,
) -> None:
    said = settings_of(settings)
    assert said.digest != process_settings(None, Permissions()).digest
    assert settings_of(types.AgentSettings(), said) == said


def test_what_a_turn_says_changes_only_that() -> None:
    kept = settings_of(types.AgentSettings(model="m", permission_mode="ask", options={"a": "1", "b": "2"}))
    found = settings_of(types.AgentSettings(options={"b": "3"}), kept)
    assert (found.model, found.permissions.mode, dict(found.options)) == ("m", "ask", {"a": "1", "b": "3"})
    assert settings_of(types.AgentSettings(model="n"), kept).permissions.mode == "ask"
    ruled = settings_of(types.AgentSettings(deny_rules=["Bash"]), kept)
    assert ruled.permissions == Permissions("auto", (), ("Bash",)), "a rule says all of the permissions"


@pytest.mark.parametrize(
    "settings",
    [
        types.AgentSettings(permission_mode="plan"),
        types.AgentSettings(allow_rules=["Bash,Edit"]),
        types.AgentSettings(deny_rules=["Bsah"]),
        types.AgentSettings(options={"colour": "blue"}),
        types.AgentSettings(options={"max_retries": "many"}),
    ],
)
def test_a_setting_that_the_agent_does_not_take_is_refused(settings: types.AgentSettings) -> None:
    require_taken("claude-code", settings_of(types.AgentSettings()))
    with pytest.raises(SettingUnknownError):
        require_taken("claude-code", settings_of(settings))
