from __future__ import annotations

import io
import json
import socket
from pathlib import Path

import pytest
from pydantic import Field, SecretStr

from standfast_chassis.errors import AddressInUseError
from standfast_chassis.settings import StandfastSettings
from standfast_client.commands.server_flags import parsed_flags
from standfast_client.house.endpoints import (
    Endpoints,
    EndpointsError,
    read_endpoints,
    remove_endpoints,
    write_endpoints,
)
from standfast_client.house.engine_choice import chosen_engine
from standfast_client.house.errors import HouseError
from standfast_client.house.log_lines import LogLines
from standfast_client.house.plan import child_environment
from standfast_client.house.ports import chosen_ports


class Some(StandfastSettings):
    """Settings of a server that is not there."""

    listen: str = Field(description="Where.")
    state: Path = Field(default=Path("s"), description="100% of it.")
    count: int = 3
    is_odd: bool = False
    secret: SecretStr = SecretStr("x")


def test_a_servers_flags_are_its_settings() -> None:
    flags, file = parsed_flags(
        "p", "d", Some.model_fields, ["--listen", "h:1", "--count=5", "--no-is-odd", "--config", "f.toml"]
    )
    assert flags == {"listen": "h:1", "count": "5", "is_odd": False}
    assert file == Path("f.toml")
    assert Some.load(flags).count == 5


def test_the_settings_file_can_be_named_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDFAST_CONFIG", "a.toml")
    assert parsed_flags("p", "d", Some.model_fields, [])[1] == Path("a.toml")
    assert parsed_flags("p", "d", Some.model_fields, ["--config=b.toml"])[1] == Path("b.toml")


@pytest.mark.parametrize("words", [["--secret", "x"], ["--unknown"], ["--lis", "h:1"]])
def test_a_secret_or_an_unknown_flag_is_wrong_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parsed_flags("p", "d", Some.model_fields, words)
    assert caught.value.code == 2
    assert capsys.readouterr().err


def test_a_servers_help_lists_every_setting_but_the_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parsed_flags("p", "d", Some.model_fields, ["--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("--listen", "required", "100% of it", "--is-odd", "default: 3"))
    assert "--secret" not in shown


def test_ports_that_nobody_named_are_free_and_different() -> None:
    ports = chosen_ports({"a": 0, "b": 0, "c": 0})
    assert len(set(ports.values())) == 3


def test_a_port_in_use_is_named_with_its_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        with pytest.raises(AddressInUseError, match=f"port {port} for runner"):
            chosen_ports({"manager": 0, "runner": port})


def test_auto_takes_docker_where_an_engine_answers_and_says_when_it_falls_back(tmp_path: Path) -> None:
    manifest = tmp_path / "m.json"
    manifest.write_text("{}")
    docker = chosen_engine("auto", manifest, None, answers=True)
    local = chosen_engine("auto", manifest, tmp_path, answers=False)
    assert (docker.engine, docker.tools) == ("docker", None)
    assert (local.engine, local.tools) == ("local", tmp_path)
    assert local.note is not None
    assert "NO ISOLATION" in local.note
    assert chosen_engine("local", manifest, tmp_path, answers=None).note is None


@pytest.mark.parametrize(
    ("asked", "answers", "manifest", "tools", "word"),
    [
        ("docker", False, True, True, "scripts/engine"),
        ("docker", True, False, True, "scripts/build_image"),
        ("local", None, False, True, "scripts/local_tools"),
        ("local", None, True, False, "--tools"),
    ],
)
def test_what_is_missing_is_named_with_what_makes_it(
    tmp_path: Path, asked: str, answers: bool | None, manifest: bool, tools: bool, word: str
) -> None:
    path = tmp_path / "m.json"
    if manifest:
        path.write_text("{}")
    folder = tmp_path if tools else tmp_path / "none"
    with pytest.raises(HouseError, match=word):
        chosen_engine(asked, path, folder, answers=answers)


def test_endpoints_are_read_as_written_and_gone_after_removal(tmp_path: Path) -> None:
    endpoints = Endpoints("h:1", "h:2", "h:3", "local", "http://p", {"runner": 1})
    write_endpoints(tmp_path, endpoints)
    assert read_endpoints(tmp_path) == endpoints
    remove_endpoints(tmp_path)
    remove_endpoints(tmp_path)
    with pytest.raises(EndpointsError, match="no `standfast up` runs"):
        read_endpoints(tmp_path)
    (tmp_path / "endpoints.json").write_text('{"runner": 1')
    with pytest.raises(EndpointsError, match="cannot be read"):
        read_endpoints(tmp_path)


def test_a_neighbours_setting_and_no_other_variable_is_kept_from_the_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDFAST_PROVIDER_URL", "x")
    monkeypatch.setenv("STANDFAST_CACHE", "x")
    monkeypatch.setenv("STANDFAST_RELEASE_SHA", "a" * 40)
    monkeypatch.setenv("DOCKER_HOST", "unix:///d")
    monkeypatch.setenv("STANDFAST_PROVIDER_KEY", "the-key")
    found = child_environment("runner")
    assert "the-key" not in found.values()
    assert child_environment("host-agent")["STANDFAST_PROVIDER_KEY"] == "the-key"
    assert "STANDFAST_PROVIDER_URL" not in found
    assert "STANDFAST_CACHE" not in found
    assert (found["STANDFAST_RELEASE_SHA"], found["DOCKER_HOST"]) == ("a" * 40, "unix:///d")


def test_log_lines_carry_their_process_and_are_untouched_in_a_file() -> None:
    out = io.StringIO()
    LogLines(out).line("runner", json.dumps({"event": "e"}))
    assert out.getvalue() == 'runner     | {"event": "e"}\n'
