from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from sandbox_manager.host.relay.caller import uid_of_caller

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def row(local: str, remote: str, uid: int) -> str:
    return (
        f"   0: {local} {remote} 01 00000000:00000000 00:00000000 00000000 {uid:5d}        0 1234 1 0000 20 0 0 10 -1\n"
    )


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    net = tmp_path / "7" / "net"
    net.mkdir(parents=True)
    (net / "tcp").write_text(
        HEAD
        + row("0100007F:1F90", "00000000:0000", 0)
        + row("0100007F:1F90", "0100007F:C350", 1)  # the listener's end of the same connection
        + row("0100007F:C350", "0100007F:1F91", 2)  # the same port to another peer
        + row("0200007F:C350", "0100007F:1F90", 3)  # another address
        + row("0100007F:C350", "0100007F:1F90", 20001)
    )
    (net / "tcp6").write_text(
        HEAD
        + row("0000000000000000FFFF00000100007F:C351", "0000000000000000FFFF00000100007F:1F90", 20002)
        + row("00000000000000000000000001000000:C352", "00000000000000000000000001000000:1F90", 20003)
    )
    return tmp_path


def test_the_uid_is_that_of_the_clients_own_end(proc: Path) -> None:
    assert uid_of_caller(7, ("127.0.0.1", 50000), ("127.0.0.1", 8080), proc) == 20001


def test_a_mapped_address_is_found_in_the_table_for_ipv6(proc: Path) -> None:
    assert uid_of_caller(7, ("127.0.0.1", 50001), ("127.0.0.1", 8080), proc) == 20002
    assert uid_of_caller(7, ("::ffff:127.0.0.1", 50001), ("::ffff:127.0.0.1", 8080), proc) == 20002


def test_an_ipv6_address_is_read_in_the_kernels_order(proc: Path) -> None:
    assert uid_of_caller(7, ("::1", 50002), ("::1", 8080), proc) == 20003


@pytest.mark.parametrize(("pid", "port"), [(7, 50009), (8, 50000)])
def test_what_no_table_shows_is_unknown(proc: Path, pid: int, port: int) -> None:
    assert uid_of_caller(pid, ("127.0.0.1", port), ("127.0.0.1", 8080), proc) is None


def test_a_real_connection_of_this_process_is_this_processs() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert uid_of_caller(os.getpid(), client.getsockname(), server.getsockname()) == os.getuid()
