"""Which release this process is: the version, the commit it was built from, the protocol it speaks."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

PROTOCOL_VERSION = 1
RELEASE_SHA_VARIABLE = "STANDFAST_RELEASE_SHA"
# Written beside this file by the image and wheel builds.
BAKED_FILE_NAME = "release_sha.txt"

_SHA = re.compile(r"[0-9a-f]{40}(-dirty)?")
_GIT_TIMEOUT_S = 5


@dataclass(frozen=True)
class BuildInfo:
    """`release_sha`: 40 hex digits, with "-dirty" when the checkout differs from them; None when nobody knows."""

    version: str
    release_sha: str | None
    protocol_version: int = PROTOCOL_VERSION


@cache
def build_info() -> BuildInfo:
    """Of this process; found once. From the environment, else the file baked at build, else the git checkout."""
    return read_build_info(Path(__file__).parent, os.environ.get(RELEASE_SHA_VARIABLE))


def read_build_info(package: Path, release_sha: str | None) -> BuildInfo:
    """`package`: the folder of this package. Raises ValueError for a release SHA that is not one."""
    try:
        version = metadata.version("standfast")
    except metadata.PackageNotFoundError:
        version = "0+unknown"
    return BuildInfo(version, _given(release_sha) or _baked(package) or _from_git(package))


def _given(value: str | None) -> str | None:
    if not value:
        return None
    if not _SHA.fullmatch(value):
        raise ValueError(
            f"{RELEASE_SHA_VARIABLE}: expected 40 hex digits, optionally followed by -dirty; found {value!r}"
        )
    return value


def _baked(package: Path) -> str | None:
    try:
        value = (package / BAKED_FILE_NAME).read_text().strip()
    except OSError:
        return None
    return value if _SHA.fullmatch(value) else None


def _from_git(package: Path) -> str | None:
    checkout = package.parent
    if not (checkout / ".git").exists():
        return None
    sha = _git(checkout, "rev-parse", "HEAD")
    changes = _git(checkout, "status", "--porcelain")
    if sha is None or changes is None or not _SHA.fullmatch(sha.strip()):
        return None
    return sha.strip() + ("-dirty" if changes.strip() else "")


def _git(checkout: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(checkout), "--no-optional-locks", *words],
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
