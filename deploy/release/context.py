"""The build context of the sandbox image: every file with its owner and mode, and one digest over all of it."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

REPO = Path(__file__).parent.parent.parent
IMAGE_FOLDER = REPO / "deploy" / "image"
SUPERVISOR_FOLDER = REPO / "sandbox_manager" / "guest"


@dataclass(frozen=True, slots=True)
class ContextFile:
    """A file of the context. `identity` stands for its content in the digest: its own sha256, or the pin it was verified by."""

    name: str
    path: Path
    mode: int
    identity: str


def source_file(name: str, path: Path, mode: int = 0o644) -> ContextFile:
    return ContextFile(name, path, mode, hashlib.sha256(path.read_bytes()).hexdigest())


def supervisor_files() -> Iterator[ContextFile]:
    """The supervisor's package as /opt/standfast/supervisor/guest, and the file that starts it."""
    yield source_file("supervisor/__main__.py", IMAGE_FOLDER / "supervisor_main.py")
    for path in sorted(SUPERVISOR_FOLDER.rglob("*.py")):
        yield source_file(f"supervisor/guest/{path.relative_to(SUPERVISOR_FOLDER)}", path)
    # What the tools of a bridged server run instead of the shell itself.
    yield source_file("supervisor/guest/bridge/shell/bash", SUPERVISOR_FOLDER / "bridge" / "shell" / "bash", 0o755)


def image_files() -> Iterator[ContextFile]:
    """The Dockerfile, the layout and what goes to /etc."""
    yield source_file("Dockerfile", IMAGE_FOLDER / "Dockerfile")
    yield source_file("layout.sh", IMAGE_FOLDER / "layout.sh")
    for path in sorted((IMAGE_FOLDER / "etc").rglob("*")):
        if path.is_file():
            yield source_file(str(path.relative_to(IMAGE_FOLDER)), path)


def digest_of(files: Iterable[ContextFile], *more: str) -> str:
    """sha256 over names, modes and identities, and over what else the image is made from."""
    total = hashlib.sha256()
    for file in sorted(files, key=lambda file: file.name):
        total.update(f"{file.name}\0{file.mode:o}\0{file.identity}\n".encode())
    for text in more:
        total.update(f"{text}\n".encode())
    return total.hexdigest()


def write_context(files: Iterable[ContextFile], sink: IO[bytes]) -> None:
    """Writes the tar for the engine. Folders come explicitly, so that their mode is not the engine's guess; times are 0."""
    with tarfile.open(fileobj=sink, mode="w") as archive:
        folders: set[str] = set()
        for file in sorted(files, key=lambda file: file.name):
            for parent in reversed(Path(file.name).parents):
                name = str(parent)
                if name != "." and name not in folders:
                    folders.add(name)
                    entry = tarfile.TarInfo(name)
                    entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                    archive.addfile(entry, io.BytesIO())
            entry = tarfile.TarInfo(file.name)
            entry.size, entry.mode = file.path.stat().st_size, file.mode
            with file.path.open("rb") as content:
                archive.addfile(entry, content)
