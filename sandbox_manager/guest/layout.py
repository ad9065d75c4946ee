"""Where things are and who owns them, in a container and in a retained folder.

The container's directories are made in the image, not at run time (root there has no CHOWN and no DAC_OVERRIDE).
A retained folder has the same shape with one owner: no isolation.
"""

import os
from dataclasses import dataclass
from pathlib import Path

FIRST_UID = 20000
WORKSPACE_GID = 20000
MODEL_PORT = 8377


@dataclass(frozen=True)
class SlotPlace:
    """One slot's identity and directories. `uid` is None where slots share the supervisor's user."""

    slot: int
    uid: int | None
    gid: int | None
    home: Path
    private: Path
    groups: tuple[int, ...] = (WORKSPACE_GID,)


@dataclass(frozen=True)
class Layout:
    """All paths the supervisor uses."""

    kind: str
    own: Path
    socket_dir: Path
    workspace: Path
    agents: Path
    slots: dict[int, SlotPlace]

    @property
    def is_isolated(self) -> bool:
        """Whether slots have users of their own."""
        return self.kind == "container"

    @property
    def nonce_file(self) -> Path:
        """Holds the creation nonce: written once, kept by stop, start and commit."""
        return self.own / "nonce"

    def base(self, slot: int, name: str) -> Path:
        """Returns the directory a store or settings path starts from."""
        place = self.slots[slot]
        return {"home": place.home, "private": place.private, "workspace": self.workspace}[name]


def container_layout() -> Layout:
    """The image's layout; the slots are the numbered directories below /members."""
    slots = {
        number: SlotPlace(
            number,
            FIRST_UID + number,
            FIRST_UID + number,
            Path(f"/members/{number}/home"),
            Path(f"/run/slots/{number}"),
        )
        for number in _numbered(Path("/members"))
    }
    return Layout("container", Path("/sf"), Path("/sf/host"), Path("/workspace"), Path("/opt/standfast/agents"), slots)


def local_layout(root: Path, socket_dir: Path, agents: Path) -> Layout:
    """The layout of a retained folder; the engine has made the directories."""
    slots = {
        number: SlotPlace(
            number, None, None, root / "members" / str(number) / "home", root / "run" / "slots" / str(number)
        )
        for number in _numbered(root / "members")
    }
    return Layout("local", root / "sf", socket_dir, root / "workspace", agents, slots)


def _numbered(folder: Path) -> list[int]:
    return sorted(int(name) for name in os.listdir(folder) if name.isdecimal() and int(name) > 0)
