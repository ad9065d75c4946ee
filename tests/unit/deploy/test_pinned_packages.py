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
from deploy.release.npm_package import fetched_package, integrity_of, unpacked_folder, unpacked_member
from deploy.release.pins import AgentPin, RuntimePin, chosen_pins, load_pins
from deploy.release.tool_folder import laid_out_before, laid_out_tools
from sandbox_manager.guest.measure import folder_digest

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


# --- a CLI that is a program for a runtime -----------------------------------------------------------------------------------------
PROGRAM = {"package/package.json": b"{}", "package/dist/cli.js": b"print()", "package/docs/read.me": b"words"}


def packed_files(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def folder_pin(cache: Path, digest: str = "") -> AgentPin:
    """A pin whose two packages are in the cache already."""
    (cache / "npm").mkdir(parents=True, exist_ok=True)
    program = packed_files(cache / "npm" / "@example+program-1.2.3.tgz", PROGRAM)
    runtime = packed_files(cache / "npm" / "runtime-20.0.0.tgz", {"package/bin/run": CLI, "package/more": b"x"})
    return AgentPin(
        agent="stub",
        version="1.2.3",
        package="@example/program",
        integrity=integrity_of(program),
        member="",
        member_sha256=digest,
        executable="run",
        program="app/dist/cli.js",
        members=("package/package.json", "package/dist"),
        runtime=RuntimePin("runtime", "20.0.0", integrity_of(runtime), "package/bin/run"),
    )


def unpacked_with_its_digest(cache: Path) -> tuple[AgentPin, Path]:
    with pytest.raises(BuildError) as refused:
        unpacked_folder(folder_pin(cache, "0" * 64), cache)
    digest = str(refused.value).partition("found ")[2][:64]
    pin = folder_pin(cache, digest)
    return pin, unpacked_folder(pin, cache)


def test_a_folder_holds_the_runtime_and_what_is_kept_of_the_package(tmp_path: Path) -> None:
    _, folder = unpacked_with_its_digest(tmp_path)
    files = {
        path.relative_to(folder).as_posix(): stat.S_IMODE(path.stat().st_mode)
        for path in folder.rglob("*")
        if path.is_file()
    }
    assert files == {"run": 0o755, "program": 0o644, "app/package.json": 0o644, "app/dist/cli.js": 0o644}
    assert (folder / "program").read_text() == "app/dist/cli.js\n"


def test_a_folder_with_other_bytes_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="expected sha256 0000"):
        unpacked_folder(folder_pin(tmp_path, "0" * 64), tmp_path)
    assert list((tmp_path / "unpacked" / "stub").iterdir()) == []


@pytest.mark.parametrize("damage", ["changed", "added", "removed", "made executable"])
def test_a_damaged_folder_is_made_anew(tmp_path: Path, damage: str) -> None:
    pin, folder = unpacked_with_its_digest(tmp_path)
    script = folder / "app" / "dist" / "cli.js"
    match damage:
        case "changed":
            script.write_bytes(b"evil()")
        case "added":
            (script.parent / "more.js").write_bytes(b"evil()")
        case "removed":
            script.unlink()
        case _:
            script.chmod(0o755)
    assert folder_digest(folder) != pin.member_sha256
    assert folder_digest(unpacked_folder(pin, tmp_path)) == pin.member_sha256


def test_a_folder_is_where_the_launch_spec_looks_and_follows_its_pin(tmp_path: Path) -> None:
    pin, folder = unpacked_with_its_digest(tmp_path)
    for _ in range(2):
        tools = laid_out_tools([pin], tmp_path)
        assert (tools / "stub").resolve() == folder.resolve()
        assert (tools / "stub" / "run").read_bytes() == CLI


def test_what_the_tool_folder_holds_already_is_named(tmp_path: Path) -> None:
    assert laid_out_before(tmp_path) == []
    for name in ("pi", "claude-code", "nobody"):
        (tmp_path / "tools" / name).mkdir(parents=True)
    assert laid_out_before(tmp_path) == ["claude-code", "pi"]
