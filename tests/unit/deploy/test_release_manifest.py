"""The manifest says what was measured, and keeps accepting earlier images only while the CLIs and the guest protocol are the same."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from deploy.release.errors import BuildError
from deploy.release.manifest import Measured, Measurement, manifest_of, read_manifest, release_sha, write_manifest
from deploy.release.measure import parsed
from deploy.release.pins import AgentPin
from deploy.release.tool_folder import local_image_id

SUPERVISOR = Measured("1.0.0", "sha256:" + "a" * 64)
CLI = Measured("2.1.220", "sha256:" + "b" * 64)
HELPER = "http-agent-live-bridge=4"
MEASURED = Measurement(SUPERVISOR, {"claude-code": CLI}, HELPER)
PIN = AgentPin("claude-code", "2.1.220", "@example/cli", "sha512-x", "package/claude", "b" * 64, "claude")


def answer(**changes: Any) -> bytes:
    said: dict[str, Any] = {
        "supervisor": {"version": SUPERVISOR.version, "digest": SUPERVISOR.digest},
        "agents": {"claude-code": {"version": CLI.version, "digest": CLI.digest, "printed": "2.1.220 (Claude Code)"}},
        "probes": {"reaps_orphans": True, "supervisor_pid": 1},
        "helper": HELPER,
    }
    return json.dumps({**said, **changes}).encode()


def test_the_manifest_has_what_was_measured_under_its_names() -> None:
    assert manifest_of("sha256:1", MEASURED, "abc", None) == {
        "release_sha": "abc",
        "protocol_version": 1,
        "image_id": "sha256:1",
        "accepted_image_ids": ["sha256:1"],
        "supervisor": {"version": "1.0.0", "digest": SUPERVISOR.digest},
        "agents": {"claude-code": {"version": "2.1.220", "digest": CLI.digest}},
        "helper": HELPER,
    }


def test_an_earlier_image_with_the_same_clis_stays_accepted() -> None:
    before = manifest_of("sha256:1", MEASURED, "abc", None)
    other_supervisor = Measurement(Measured("1.0.1", "sha256:" + "c" * 64), MEASURED.agents, HELPER)
    after = manifest_of("sha256:2", other_supervisor, "def", before)
    assert after["accepted_image_ids"] == ["sha256:2", "sha256:1"]
    assert manifest_of("sha256:1", MEASURED, "abc", after)["accepted_image_ids"] == ["sha256:1", "sha256:2"]


@pytest.mark.parametrize(
    "changed",
    [
        {"protocol_version": 0},
        {"agents": {}},
        {"agents": {"claude-code": {"version": "2"}}},
        {"helper": "http-agent-live-bridge=3"},
        {"helper": None},
    ],
)
def test_an_earlier_image_with_another_cli_or_protocol_is_not_accepted(changed: dict[str, Any]) -> None:
    before = {**manifest_of("sha256:1", MEASURED, "abc", None), **changed}
    assert manifest_of("sha256:2", MEASURED, "def", before)["accepted_image_ids"] == ["sha256:2"]


def test_a_manifest_is_read_as_it_was_written_and_a_damaged_one_is_none(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "manifest.json"
    assert read_manifest(path) is None
    write_manifest(path, {"image_id": "sha256:1"})
    assert read_manifest(path) == {"image_id": "sha256:1"}
    path.write_text('{"image_id": ')
    assert read_manifest(path) is None


def test_a_measurement_of_the_pinned_clis_is_taken() -> None:
    assert parsed(answer(), [PIN]) == MEASURED


@pytest.mark.parametrize(
    "wrong",
    [
        {"agents": {}},
        {"agents": {"claude-code": {"version": "2.1.221", "digest": CLI.digest}}},
        {"agents": {"claude-code": {"version": None, "digest": CLI.digest}}},
        {"agents": {"claude-code": {"version": CLI.version, "digest": "sha256:" + "0" * 64}}},
        {
            "agents": {
                "claude-code": {"version": CLI.version, "digest": CLI.digest},
                "other": {"version": "1", "digest": "x"},
            }
        },
    ],
)
def test_a_measurement_of_anything_else_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BuildError, match="expected the CLIs"):
        parsed(answer(**wrong), [PIN])


@pytest.mark.parametrize("helper", ["http-agent-live-bridge=3", "http-agent-live-bridge=5", None])
def test_a_measurement_with_another_helper_is_refused(helper: str | None) -> None:
    with pytest.raises(BuildError, match="expected the helper http-agent-live-bridge=4"):
        parsed(answer(helper=helper), [PIN])


def test_a_failed_probe_is_refused_by_its_name() -> None:
    with pytest.raises(BuildError, match=r"does not hold: gate_is_closed$"):
        parsed(answer(probes={"gate_is_closed": False, "reaps_orphans": True, "supervisor_pid": 1}), [PIN])


@pytest.mark.parametrize("printed", [b"", b"no json", b"[]", b"{}", b'{"supervisor": {}}'])
def test_what_is_no_measurement_is_refused(printed: bytes) -> None:
    with pytest.raises(BuildError, match="not the expected JSON"):
        parsed(printed, [PIN])


def test_the_local_image_id_changes_with_the_supervisor_and_with_each_cli() -> None:
    ids = {
        local_image_id(MEASURED),
        local_image_id(Measurement(Measured("1.0.0", "sha256:" + "c" * 64), MEASURED.agents, HELPER)),
        local_image_id(Measurement(SUPERVISOR, {"claude-code": Measured("2.1.220", "sha256:" + "c" * 64)}, HELPER)),
        local_image_id(Measurement(SUPERVISOR, {"other": CLI}, HELPER)),
    }
    assert len(ids) == 4
    assert all(identity.startswith("sha256:") for identity in ids)


def test_the_release_is_the_commit_and_says_when_the_tree_has_changes(tmp_path: Path) -> None:
    assert release_sha(tmp_path) == "unknown"
    git = ["git", "-C", str(tmp_path), "-c", "user.name=m", "-c", "user.email=m@example.com"]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "one"]):
        subprocess.run([*git, *command], check=True, timeout=60)
    sha = release_sha(tmp_path)
    assert len(sha) == 40
    (tmp_path / "new").touch()
    assert release_sha(tmp_path) == f"{sha}-dirty"
