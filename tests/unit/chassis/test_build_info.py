"""Which release this is: the environment before the baked file before the checkout, and unknown is None."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from standfast_chassis.build_info import BAKED_FILE_NAME, PROTOCOL_VERSION, build_info, read_build_info

SHA = "0123456789abcdef0123456789abcdef01234567"


def _git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", "-C", str(folder), *identity, *words], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    package = tmp_path / "checkout" / "package"
    package.mkdir(parents=True)
    (package / "module.py").write_text("x = 1\n")
    _git(package.parent, "init", "-q")
    _git(package.parent, "add", ".")
    _git(package.parent, "commit", "-qm", "first")
    return package


def test_a_clean_checkout_is_its_head(checkout: Path) -> None:
    found = read_build_info(checkout, None)
    assert found.release_sha == _git(checkout, "rev-parse", "HEAD")
    assert found.protocol_version == PROTOCOL_VERSION == 1


def test_a_changed_checkout_says_so(checkout: Path) -> None:
    head = _git(checkout, "rev-parse", "HEAD")
    (checkout / "module.py").write_text("x = 2\n")
    assert read_build_info(checkout, None).release_sha == f"{head}-dirty"
    _git(checkout, "checkout", "-q", ".")
    assert read_build_info(checkout, None).release_sha == head
    (checkout / "new.py").touch()
    assert read_build_info(checkout, None).release_sha == f"{head}-dirty"


def test_the_baked_file_goes_before_the_checkout_and_the_environment_before_both(checkout: Path) -> None:
    (checkout / BAKED_FILE_NAME).write_text(f"{SHA}\n")
    assert read_build_info(checkout, None).release_sha == SHA
    assert read_build_info(checkout, f"{SHA[::-1]}-dirty").release_sha == f"{SHA[::-1]}-dirty"
    assert read_build_info(checkout, "").release_sha == SHA


def test_without_any_of_them_it_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    assert read_build_info(tmp_path / "package", None).release_sha is None


@pytest.mark.parametrize("value", ["main", SHA.upper(), SHA[:-1], f"{SHA}-modified", f" {SHA}"])
def test_a_release_that_is_not_a_sha_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(ValueError, match="40 hex digits"):
        read_build_info(tmp_path, value)


def test_this_process_knows_its_version() -> None:
    assert build_info().version == build_info().version != "0+unknown"
