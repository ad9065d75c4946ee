"""Who listens on a loopback port of this network namespace."""

from pathlib import Path

_LISTENING = "0A"
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


def listener_uids(port: int) -> set[int]:
    """The users whose sockets listen on the port, on any address. Empty when nobody does."""
    found: set[int] = set()
    for table in _TABLES:
        try:
            rows = table.read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            columns = row.split()
            if columns[3] == _LISTENING and int(columns[1].rpartition(":")[2], 16) == port:
                found.add(int(columns[7]))
    return found
