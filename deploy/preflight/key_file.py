"""The test key: read from a file whose name is in the environment, and from nowhere else."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

KEY_FILE_VARIABLE = "CLOUD_AGENT_TEST_API_KEY_FILE"
PROXY_VARIABLE = "CLOUD_AGENT_TEST_PROXY"
_KEY_CHARS_MIN = 8
_KEY_BYTES_MAX = 16 * 1024


class PreflightUsageError(Exception):
    """The preflight cannot start. The text never holds a key."""


def read_key(environment: Mapping[str, str] = os.environ) -> str:
    """The key. Raises PreflightUsageError when there is no usable file."""
    name = environment.get(KEY_FILE_VARIABLE)
    if not name:
        raise PreflightUsageError(
            f"{KEY_FILE_VARIABLE} is not set: it must name a file that holds the key, readable by you alone (chmod 600)"
        )
    path = Path(name)
    try:
        status = path.stat()
        raw = path.read_bytes() if stat.S_ISREG(status.st_mode) and status.st_size <= _KEY_BYTES_MAX else b""
    except OSError as error:
        raise PreflightUsageError(f"the file named by {KEY_FILE_VARIABLE} cannot be read: {error.strerror}") from error
    if status.st_mode & 0o077:
        raise PreflightUsageError(f"the file named by {KEY_FILE_VARIABLE} can be read by others: chmod 600 it first")
    try:
        key = raw.decode("ascii").strip()
    except UnicodeDecodeError:
        key = ""
    if len(key) < _KEY_CHARS_MIN or len(key.split()) != 1:
        raise PreflightUsageError(
            f"the file named by {KEY_FILE_VARIABLE} does not hold one key: expected one line of at least "
            f"{_KEY_CHARS_MIN} visible ASCII characters"
        )
    return key
