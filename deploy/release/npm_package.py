"""Fetches pinned packages with the npm client and takes the pinned files out of them, only if every byte is the pinned one."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from deploy.release.errors import BuildError
from deploy.release.pins import AgentPin, RuntimePin
from sandbox_manager.guest.measure import folder_digest

_FETCH_TIMEOUT_S = 900


def integrity_of(path: Path) -> str:
    """npm's integrity value of a file: `sha512-<base64>`."""
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha512").digest()
    return "sha512-" + base64.b64encode(digest).decode()


def fetched_package(pin: AgentPin | RuntimePin, cache: Path) -> Path:
    """The package's tarball in `cache/npm`, fetched unless it is there, its integrity checked each time."""
    folder = cache / "npm"
    folder.mkdir(parents=True, exist_ok=True)
    tarball = folder / f"{pin.package.replace('/', '+')}-{pin.version}.tgz"
    if not (tarball.exists() and integrity_of(tarball) == pin.integrity):
        _fetch(pin, folder, tarball)
    return tarball


def _fetch(pin: AgentPin | RuntimePin, folder: Path, tarball: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise BuildError(
            f"npm is needed to fetch {pin.spec} and is not in PATH; install it (Debian: apt-get install npm)"
        )
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        # npm pack runs no install script; it fetches the tarball and that is all.
        command = [npm, "pack", "--silent", "--ignore-scripts", pin.spec]
        done = subprocess.run(
            command, cwd=scratch, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S, check=False
        )
        files = list(Path(scratch).glob("*.tgz"))
        if done.returncode != 0 or len(files) != 1:
            raise BuildError(
                f"npm pack {pin.spec} ended with {done.returncode}: {(done.stderr or done.stdout).strip()}"
            )
        found = integrity_of(files[0])
        if found != pin.integrity:
            raise BuildError(f"{pin.spec}: expected integrity {pin.integrity}, found {found}; nothing of it was kept")
        os.replace(files[0], tarball)


def unpacked_member(pin: AgentPin, cache: Path) -> Path:
    """The pinned member as `cache/unpacked/AGENT/VERSION/EXECUTABLE`, mode 0755; unpacked unless it is there with the pinned digest."""
    target = cache / "unpacked" / pin.agent / pin.version / pin.executable
    if target.exists() and _sha256_of(target) == pin.member_sha256:
        return target
    tarball = fetched_package(pin, cache)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(tarball) as archive:
        try:
            source = archive.extractfile(pin.member)
        except KeyError:
            source = None
        if source is None:
            raise BuildError(f"{tarball.name} has no file {pin.member}; found: {', '.join(archive.getnames()[:10])}")
        half = target.with_name(target.name + ".part")
        with half.open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
    found = _sha256_of(half)
    if found != pin.member_sha256:
        half.unlink()
        raise BuildError(
            f"{pin.member} of {pin.spec}: expected sha256 {pin.member_sha256}, found {found}; nothing of it was kept"
        )
    half.chmod(0o755)
    os.replace(half, target)
    return target


def unpacked_folder(pin: AgentPin, cache: Path) -> Path:
    """The folder of a CLI with a runtime as `cache/unpacked/AGENT/VERSION`; made anew unless it is there with the pinned digest.

    EXECUTABLE the runtime (mode 0755), app/... the package's files, `program` the name of the one that the runtime is given.
    """
    assert pin.runtime is not None
    target = cache / "unpacked" / pin.agent / pin.version
    if target.is_dir() and folder_digest(target) == pin.member_sha256:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f"{pin.version}.") as scratch:
        made = Path(scratch) / "folder"
        made.mkdir(mode=0o755)
        with tarfile.open(fetched_package(pin.runtime, cache)) as archive:
            _extract(archive, pin.runtime.member, made / pin.executable, 0o755)
        with tarfile.open(fetched_package(pin, cache)) as archive:
            names = [one.name for one in archive.getmembers() if one.isfile()]
            kept = [
                name for name in names if name.startswith(tuple(f"{m}/" for m in pin.members)) or name in pin.members
            ]
            for name in kept:
                _extract(archive, name, made / "app" / Path(*Path(name).parts[1:]), 0o644)
        (made / "program").write_text(f"{pin.program}\n")
        (made / "program").chmod(0o644)
        found = folder_digest(made)
        if found != pin.member_sha256:
            raise BuildError(
                f"the folder of {pin.spec} with {pin.runtime.spec}: expected sha256 {pin.member_sha256}, found {found}; nothing of it "
                "was kept"
            )
        # The digest alone decides; what is replaced had another one.
        shutil.rmtree(target, ignore_errors=True)
        os.replace(made, target)
    return target


def _extract(archive: tarfile.TarFile, name: str, target: Path, mode: int) -> None:
    try:
        source = archive.extractfile(name)
    except KeyError:
        source = None
    if source is None:
        raise BuildError(f"expected the file {name} in the package, found none")
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    with target.open("wb") as sink:
        shutil.copyfileobj(source, sink, 1 << 20)
    target.chmod(mode)


def _sha256_of(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
