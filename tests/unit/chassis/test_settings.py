"""Settings: flags before environment before file before defaults; every mistake named, no secret shown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import BaseModel, Field, SecretStr

from standfast_chassis.errors import SettingsError
from standfast_chassis.settings import StandfastSettings


class Limits(BaseModel):
    turns_max: int = 10


class ExampleSettings(StandfastSettings):
    listen: str = "127.0.0.1:1"
    idle_stop_s: float = Field(default=900, gt=0)
    limits: Limits = Limits()
    token: SecretStr | None = None
    state: Path


@pytest.fixture(autouse=True)
def _only_these(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("STANDFAST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("STANDFAST_STATE", "/from/environment")


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "settings.toml"
    path.write_text(text)
    return path


def test_flags_go_before_environment_before_file_before_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = _file(tmp_path, 'listen = "file"\nidle_stop_s = 1\nstate = "/from/file"\n')
    monkeypatch.setenv("STANDFAST_LISTEN", "environment")
    found = ExampleSettings.load({"listen": "flag", "idle_stop_s": None}, file)
    assert (found.listen, found.idle_stop_s, found.state) == ("flag", 1, Path("/from/environment"))
    assert ExampleSettings.load(file=file).listen == "environment"
    monkeypatch.delenv("STANDFAST_LISTEN")
    assert ExampleSettings.load(file=file).listen == "file"
    assert ExampleSettings.load().listen == "127.0.0.1:1"


def test_nested_settings_come_from_file_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _file(tmp_path, "[limits]\nturns_max = 3\n")
    assert ExampleSettings.load(file=file).limits.turns_max == 3
    monkeypatch.setenv("STANDFAST_LIMITS__TURNS_MAX", "4")
    assert ExampleSettings.load(file=file).limits.turns_max == 4


def test_one_load_does_not_leave_its_file_to_the_next(tmp_path: Path) -> None:
    ExampleSettings.load(file=_file(tmp_path, 'listen = "file"\n'))
    assert ExampleSettings.load().listen == "127.0.0.1:1"


def test_unknown_names_are_refused_all_at_once_with_the_nearest_known_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDFAST_LISTN", "x")
    file = _file(tmp_path, "idle_stop = 3\n")
    with pytest.raises(SettingsError) as caught:
        ExampleSettings.load({"limit": 1}, file)
    text = caught.value.message
    assert "STANDFAST_LISTN (environment); did you mean STANDFAST_LISTEN?" in text
    assert f"idle_stop ({file}); did you mean idle_stop_s?" in text
    assert "limit (flag); did you mean limits?" in text


def test_the_variables_of_others_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tolerant(ExampleSettings):
        other_variables = frozenset({"STANDFAST_MANAGER_ADDRESS"})

    for name in ("STANDFAST_RELEASE_SHA", "STANDFAST_TEST_SESSION", "STANDFAST_MANAGER_ADDRESS"):
        monkeypatch.setenv(name, "x")
    assert Tolerant.load().listen == "127.0.0.1:1"
    with pytest.raises(SettingsError, match="STANDFAST_MANAGER_ADDRESS"):
        ExampleSettings.load()


def test_wrong_values_name_where_they_came_from_and_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STANDFAST_STATE")
    monkeypatch.setenv("STANDFAST_LIMITS__TURNS_MAX", "many")
    file = _file(tmp_path, "idle_stop_s = -1\n")
    with pytest.raises(SettingsError) as caught:
        ExampleSettings.load({"listen": 5}, file)
    text = caught.value.message
    assert "limits.turns_max (STANDFAST_LIMITS)" in text
    assert "'many'" in text
    assert f"idle_stop_s ({file})" in text
    assert "found -1" in text
    assert "listen (flag)" in text
    assert "state (not given; set STANDFAST_STATE)" in text


def test_a_secret_with_a_wrong_value_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        ExampleSettings.load({"token": ["sk-test-0000-not-a-real-key"]})
    assert "token" in caught.value.message
    assert "sk-test" not in caught.value.message
    assert "sk-test" not in str(caught.value.__cause__)


@pytest.mark.parametrize(("text", "expected"), [("a = [", "expected TOML"), (None, "readable")])
def test_an_unreadable_file_is_named(tmp_path: Path, text: str | None, expected: str) -> None:
    file = tmp_path / "settings.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SettingsError, match=expected) as caught:
        ExampleSettings.load(file=file)
    assert caught.value.metadata == {"file": str(file)}


def test_a_dotenv_file_in_the_working_folder_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".env").write_text("STANDFAST_LISTEN=dotenv\n")
    monkeypatch.chdir(tmp_path)
    assert ExampleSettings.load().listen == "127.0.0.1:1"
