"""The socket the host agent connects to, and who may.

A container accepts peer process number 0 and nothing else: a process outside its own PID namespace, which no member
can be. A retained folder accepts the supervisor's own user, unless the peer carries the slot marker.
"""

import os
import socket
import stat
import struct
from pathlib import Path

from .attribution import MARKER_VARIABLE
from .layout import Layout
from .processes import read_environ

SOCKET_NAME = "control.sock"
_UCRED = struct.Struct("3i")


def publish(folder: Path) -> socket.socket:
    """Listens under another name, sets the mode, then renames: nobody sees a socket that is not ready."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    fresh = f"{SOCKET_NAME}.new"
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for stale in (fresh, SOCKET_NAME):
            if _is_socket(stale, fd):
                os.unlink(stale, dir_fd=fd)
        # Through /proc/self/fd: a socket's address holds 107 bytes, a folder's path may be longer.
        listener.bind(f"/proc/self/fd/{fd}/{fresh}")
        os.chmod(fresh, 0o600, dir_fd=fd)
        listener.listen(8)
        os.rename(fresh, SOCKET_NAME, src_dir_fd=fd, dst_dir_fd=fd)
    finally:
        os.close(fd)
    listener.setblocking(False)
    return listener


def _is_socket(name: str, folder: int) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def is_host_agent(peer: socket.socket, layout: Layout) -> bool:
    """Whether the connected peer may give orders."""
    pid, uid, _ = _UCRED.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    if layout.is_isolated:
        return bool(pid == 0)
    if uid not in (os.getuid(), 0):
        return False
    return MARKER_VARIABLE.encode() + b"=" not in (read_environ(pid) or b"")
