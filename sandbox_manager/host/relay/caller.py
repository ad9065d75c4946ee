"""Who is calling: the UID that owns the client's end of a connection, read from the container's own socket table.

`/proc/<container pid>/net/tcp` and `tcp6` show the sockets of that process's network namespace, with the UID that
made each. A member cannot change what the kernel writes there. About 5 ms a look-up, so it runs in a thread,
once per connection, beside the reading of the request.
"""

from __future__ import annotations

import ipaddress
import socket
import sys
from pathlib import Path

Address = tuple[str, int]

# The table is walked bucket by bucket while it changes, so a row can be missed once; not three times.
READS_MAX = 3


def uid_of_caller(container_pid: int, client: Address, listener: Address, proc: Path = Path("/proc")) -> int | None:
    """The UID of the socket whose own address is `client` and whose peer is `listener`; None if no row shows it."""
    wanted = (_key(client), _key(listener))
    for _ in range(READS_MAX):
        for table in ("tcp", "tcp6"):
            try:
                rows = (proc / str(container_pid) / "net" / table).read_bytes()
            except OSError:
                continue
            uid = find_uid(rows, *wanted)
            if uid is not None:
                return uid
    return None


def find_uid(rows: bytes, local: tuple[bytes, int], remote: tuple[bytes, int]) -> int | None:
    """The UID in the row of a socket table with these two ends. Addresses are packed; IPv4-mapped ones as IPv4."""
    port_word = f":{local[1]:04X} ".encode()
    for line in rows.splitlines()[1:]:
        # Cheap first: a busy table has thousands of rows and one of ours.
        if port_word not in line:
            continue
        fields = line.split()
        if len(fields) < 8:
            continue
        if _parse(fields[1]) == local and _parse(fields[2]) == remote:
            return int(fields[7])
    return None


def address_of(sockname: object) -> Address | None:
    """(host, port) of a TCP socket's name as Python gives it, or None for another family."""
    if isinstance(sockname, tuple) and len(sockname) >= 2:
        return str(sockname[0]), int(sockname[1])
    return None


def _key(address: Address) -> tuple[bytes, int]:
    return _packed(ipaddress.ip_address(address[0].partition("%")[0])), address[1]


def _packed(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bytes:
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.packed
    return address.packed


def _parse(field: bytes) -> tuple[bytes, int]:
    host, _, port = field.partition(b":")
    raw = bytes.fromhex(host.decode("ascii"))
    # The kernel prints each 32-bit word in the machine's byte order.
    words = [raw[i : i + 4] for i in range(0, len(raw), 4)]
    packed = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    return _packed(ipaddress.ip_address(socket.inet_ntop(family, packed))), int(port, 16)
