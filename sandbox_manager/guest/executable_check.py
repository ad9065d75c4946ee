"""What must hold for an executable before it is started in a slot.

Root-owned and mode 0711: a program that its user cannot read is undumpable, so a tool under the same user can neither
trace it nor open its memory.
"""

import hashlib
import os
import stat
from pathlib import Path

from .errors import OperationError

_CHUNK_BYTES = 1 << 20
_digests: dict[tuple[int, int, int, int, int], str] = {}


def sha256_of(path: Path) -> str:
    """Digests the file; remembers by identity, size and times, which only the owner, root, can restore."""
    facts = os.stat(path)
    key = (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
    if key not in _digests:
        digest = hashlib.sha256()
        with open(path, "rb", buffering=0) as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
        _digests[key] = digest.hexdigest()
    return _digests[key]


def check_executable(path: Path, sha256: str | None, must_be_unreadable: bool) -> None:
    """Raises EXECUTABLE_REFUSED with expected and found. `must_be_unreadable`: root's, and no other may read it."""
    try:
        facts = os.stat(path)
    except OSError as error:
        raise OperationError(
            "EXECUTABLE_REFUSED",
            f"{path}: {error.strerror}",
            path=str(path),
            expected="an executable",
            found=error.strerror,
        ) from error
    if not path.is_absolute() or not stat.S_ISREG(facts.st_mode) or not facts.st_mode & 0o111:
        raise OperationError("EXECUTABLE_REFUSED", f"{path} is not an absolute path of an executable", path=str(path))
    if must_be_unreadable and (facts.st_uid != 0 or facts.st_mode & 0o066):
        found = f"owner {facts.st_uid}, mode {stat.S_IMODE(facts.st_mode):04o}"
        raise OperationError(
            "EXECUTABLE_REFUSED",
            f"{path}: expected owner 0 and mode 0711, found {found}",
            path=str(path),
            expected="owner 0, mode 0711",
            found=found,
        )
    if sha256 is not None and (found := sha256_of(path)) != sha256:
        raise OperationError(
            "EXECUTABLE_REFUSED",
            f"{path}: expected sha256 {sha256}, found {found}",
            path=str(path),
            expected=sha256,
            found=found,
        )
