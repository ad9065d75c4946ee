"""The creation nonce: written once into the writable layer, kept by stop, start and commit. It tells lineage."""

import errno
import os
from pathlib import Path

from .errors import OperationError


def read_nonce(file: Path) -> str | None:
    """Returns the adopted nonce, None before the first adoption."""
    try:
        return file.read_text(encoding="ascii")
    except FileNotFoundError:
        return None


def adopt(file: Path, nonce: str) -> None:
    """Writes the nonce durably; the same again is fine, another one is refused."""
    if not nonce or not nonce.isascii():
        raise OperationError("BAD_REQUEST", "expected a non-empty ASCII nonce")
    try:
        _write_once(file, nonce)
    except OSError as error:
        reason = "ENOSPC" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "INTERNAL"
        raise OperationError(reason, f"the nonce cannot be written: {error.strerror}", errno=error.errno) from error


def _write_once(file: Path, nonce: str) -> None:
    fresh = file.with_name(f"{file.name}.{os.getpid()}")
    with open(fresh, "w", encoding="ascii") as out:
        out.write(nonce)
        out.flush()
        os.fsync(out.fileno())
    try:
        # A link fails where the name exists, and a half-written nonce never gets the name.
        os.link(fresh, file)
    except FileExistsError:
        found = read_nonce(file)
        if found != nonce:
            raise OperationError(
                "NONCE_MISMATCH", f"expected {nonce}, this sandbox was adopted as {found}", expected=nonce, found=found
            ) from None
    finally:
        os.unlink(fresh)
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
