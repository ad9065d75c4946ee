"""A Docker engine of a test's own, beside the shared one: it may be killed, and leaves nothing behind.

It has its own socket, data, run folder, process file and bridge. Never `--bridge=none` beside another engine in one network namespace:
that deletes the other's docker0.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import docker

from tests.conftest import REPO

_BRIDGE = "sfkill0"
_BRIDGE_ADDRESS = "172.31.254.1/24"
_SCRIPT_TIMEOUT_S = 120
_LOAD_TIMEOUT_S = 600
_END_TIMEOUT_S = 20.0


class OwnEngine:
    """All its files lie in `folder`, whose path must be short: the runtime's sockets lie there too."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._data = folder / "data"
        self._socket = folder / "docker.sock"
        self._pidfile = folder / "docker.pid"
        self.url = f"unix://{self._socket}"

    def open(self) -> None:
        """Makes its bridge and starts it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "daemon.json").write_text("{}\n")  # not the shared engine's settings
        _delete_bridge()
        _run(["ip", "link", "add", _BRIDGE, "type", "bridge"])
        _run(["ip", "addr", "add", _BRIDGE_ADDRESS, "dev", _BRIDGE])
        self.start()

    def start(self) -> None:
        """Until it answers."""
        _run([str(REPO / "scripts/engine"), "start"], env=self._environment())

    def kill(self) -> None:
        """SIGKILL to dockerd alone: its runtime ends with it, its containers run on."""
        pid = int(self._pidfile.read_text())
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + _END_TIMEOUT_S
        while _is_alive(pid):
            assert time.monotonic() < deadline, f"dockerd {pid} outlives its SIGKILL"
            time.sleep(0.01)

    def load(self, source: docker.DockerClient, image_id: str) -> None:
        """Copies an image from another engine; its id stays."""
        client = self.client(timeout_s=_LOAD_TIMEOUT_S)
        try:
            saved: Any = source.images.get(
                image_id
            ).save()  # the client sends an iterator on piece by piece; its types know bytes only
            client.images.load(saved)
            assert client.images.get(image_id).id == image_id
        finally:
            client.close()

    def client(self, timeout_s: int = 60) -> docker.DockerClient:
        """The caller closes it."""
        return docker.DockerClient(base_url=self.url, timeout=timeout_s)

    def close(self) -> None:
        """Ends it and takes away its files and its bridge."""
        _run([str(REPO / "scripts/engine"), "stop"], env=self._environment())
        # A killed engine leaves its data mounted on itself, once for each life.
        mounted = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for place in sorted((m for m in mounted if m.startswith(f"{self._folder}/")), key=len, reverse=True):
            _run(["umount", place])
        _delete_bridge()
        shutil.rmtree(self._folder)

    def _environment(self) -> dict[str, str]:
        flags = {
            "--data-root": self._data,
            "--config-file": self._folder / "daemon.json",
            "--bridge": _BRIDGE,
            "--iptables": "false",
            "--ip-masq": "false",
            "--ip-forward": "false",
        }
        return {
            **os.environ,
            "ENGINE_SOCK": str(self._socket),
            "ENGINE_PIDFILE": str(self._pidfile),
            "ENGINE_EXEC_ROOT": str(self._folder / "run"),
            "ENGINE_LOG": str(self._folder.parent / "own-engine.log"),
            "ENGINE_FLAGS": " ".join(f"{flag}={value}" for flag, value in flags.items()),
        }


def _delete_bridge() -> None:
    if Path(f"/sys/class/net/{_BRIDGE}").exists():
        _run(["ip", "link", "del", _BRIDGE])


def _run(command: list[str], env: dict[str, str] | None = None) -> None:
    ran = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=_SCRIPT_TIMEOUT_S, stdin=subprocess.DEVNULL
    )
    assert ran.returncode == 0, f"{command}: {ran.returncode}\n{ran.stdout}{ran.stderr}"


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
