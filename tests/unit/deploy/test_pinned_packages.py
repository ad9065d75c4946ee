"""Only the pinned bytes of a CLI are ever unpacked: a package or a file with other bytes is refused and leaves nothing."""

from __future__ import annotations

import hashlib
import io
import json
import stat
import tarfile
from pathlib import Path

import pytest

from deploy.release.errors import BuildError
from deploy.release.npm_package import fetched_package, integrity_of, unpacked_member
from deploy.release.pins import AgentPin, chosen_pins, load_pins

CLI = b"#!/bin/sh\necho 1.2.3\n"


def packed(path: Path, content: bytes = CLI, member: str = "package/cli") -> Path:
    with tarfile.open(path, "w:gz") as archive:
        entry = tarfile.TarInfo(member)
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    return path


def pin_of(tarball: Path, content: bytes = CLI) -> AgentPin:
    return AgentPin(
        agent="stub",
        version="1.2.3",
        package="@example/cli",
        integrity=integrity_of(tarball),
        member="package/cli",
        member_sha256=hashlib.sha256(content).hexdigest(),
        executable="cli",
    )


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for the npm client: `npm pack` copies the file `served.tgz` of this folder, or fails without one."""
    folder = tmp_path / "bin"
    folder.mkdir()
    npm = folder / "npm"
    npm.write_text(f'#!/bin/sh\necho "$@" >> {folder}/asked\ncp {folder}/served.tgz ./package.tgz\n')
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def test_the_pinned_package_is_fetched_once_and_its_file_unpacked(registry: Path, tmp_path: Path) -> None:
    pin = pin_of(packed(registry / "served.tgz"))
    for _ in range(2):
        unpacked = unpacked_member(pin, tmp_path / "cache")
        assert unpacked.read_bytes() == CLI
        assert stat.S_IMODE(unpacked.stat().st_mode) == 0o755
    assert (registry / "asked").read_text().splitlines() == ["pack --silent --ignore-scripts @example/cli@1.2.3"]


def test_another_package_under_the_pinned_version_is_refused_and_not_kept(registry: Path, tmp_path: Path) -> None:
    pin = pin_of(packed(tmp_path / "true.tgz"))
    packed(registry / "served.tgz", b"something else")
    with pytest.raises(BuildError, match="expected integrity"):
        fetched_package(pin, tmp_path / "cache")
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_a_damaged_package_in_the_cache_is_fetched_again(registry: Path, tmp_path: Path) -> None:
    pin = pin_of(packed(registry / "served.tgz"))
    fetched = fetched_package(pin, tmp_path / "cache")
    fetched.write_bytes(b"damaged")
    assert integrity_of(fetched_package(pin, tmp_path / "cache")) == pin.integrity


def test_a_damaged_unpacked_file_is_unpacked_again(registry: Path, tmp_path: Path) -> None:
    pin = pin_of(packed(registry / "served.tgz"))
    unpacked_member(pin, tmp_path / "cache").write_bytes(b"damaged")
    assert unpacked_member(pin, tmp_path / "cache").read_bytes() == CLI


def test_a_file_that_is_not_the_pinned_one_is_refused_and_not_kept(registry: Path, tmp_path: Path) -> None:
    pin = pin_of(packed(registry / "served.tgz", b"other bytes"))
    with pytest.raises(BuildError, match="expected sha256"):
        unpacked_member(pin, tmp_path / "cache")
    assert not [path for path in (tmp_path / "cache" / "unpacked").rglob("*") if path.is_file()]


def test_a_package_without_the_member_names_what_it_holds(registry: Path, tmp_path: Path) -> None:
    pin = pin_of(packed(registry / "served.tgz", member="package/elsewhere"))
    with pytest.raises(BuildError, match="found: package/elsewhere"):
        unpacked_member(pin, tmp_path / "cache")


def test_a_failing_registry_is_named_with_its_own_words(registry: Path, tmp_path: Path) -> None:
    pin = pin_of(packed(tmp_path / "true.tgz"))
    with pytest.raises(BuildError, match=r"npm pack @example/cli@1\.2\.3 ended with 1: .*served\.tgz"):
        fetched_package(pin, tmp_path / "cache")


def test_a_machine_without_npm_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match="npm is needed"):
        fetched_package(pin_of(packed(tmp_path / "true.tgz")), tmp_path / "cache")


def test_an_unknown_agent_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BuildError, match=r"unknown agent nobody; pins\.json knows: claude-code"):
        chosen_pins(["claude-code", "nobody"])


def test_each_agent_is_taken_once_in_the_order_asked() -> None:
    assert [pin.agent for pin in chosen_pins(["claude-code", "claude-code"])] == ["claude-code"]


def test_a_pin_with_a_missing_key_is_refused(tmp_path: Path) -> None:
    pins = tmp_path / "pins.json"
    pins.write_text(json.dumps({"x": {"version": "1"}}))
    with pytest.raises(BuildError, match="'x' must have exactly the keys"):
        load_pins(pins)
