"""No path leaves the workspace: not by '..', not by a link, not by an exchange while it is walked."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from direct_agent.tools.disk import Disk
from direct_agent.tools.errors import ChangedMeanwhileError, ConfinementError, PathError
from direct_agent.tools.workspace import Workspace


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text("secret")
    work = tmp_path / "work"
    (work / "sub").mkdir(parents=True)
    (work / "sub" / "a.txt").write_text("a")
    return work


def read(workspace: Workspace, path: str) -> bytes:
    with workspace.open_file(path) as fd:
        return os.read(fd, 100)


@pytest.mark.parametrize("path", ["sub/a.txt", "./sub//a.txt", "sub/../sub/a.txt", "{root}/sub/a.txt"])
def test_a_path_inside_is_read_however_it_is_spelled(root: Path, path: str) -> None:
    assert read(Workspace(root), path.format(root=root)) == b"a"


@pytest.mark.parametrize(
    "path", ["../outside/secret.txt", "sub/../../outside/secret.txt", "{outside}", "/etc/passwd", ""]
)
def test_a_path_that_leads_out_is_refused(root: Path, path: str) -> None:
    with pytest.raises(ConfinementError):
        read(Workspace(root), path.format(outside=root.parent / "outside" / "secret.txt"))


@pytest.mark.parametrize("target", ["../outside/secret.txt", "{outside}/secret.txt", "/etc/passwd"])
def test_a_link_out_of_the_workspace_is_refused(root: Path, target: str) -> None:
    (root / "link").symlink_to(target.format(outside=root.parent / "outside"))
    with pytest.raises(ConfinementError):
        read(Workspace(root), "link")


def test_a_linked_folder_out_of_the_workspace_is_refused_in_the_middle_of_a_path(root: Path) -> None:
    (root / "folder").symlink_to(root.parent / "outside")
    for path in ("folder/secret.txt", "folder/../outside/secret.txt"):
        with pytest.raises(ConfinementError):
            read(Workspace(root), path)


def test_links_inside_the_workspace_are_followed(root: Path) -> None:
    (root / "relative").symlink_to("sub/a.txt")
    (root / "absolute").symlink_to(root / "sub" / "a.txt")
    (root / "folder").symlink_to("sub")
    workspace = Workspace(root)
    assert [read(workspace, path) for path in ("relative", "absolute", "folder/a.txt")] == [b"a"] * 3
    assert workspace.resolved_path("folder/new.txt") == str(root / "sub" / "new.txt")


def test_links_in_a_circle_end(root: Path) -> None:
    (root / "one").symlink_to("two")
    (root / "two").symlink_to("one")
    with pytest.raises(ConfinementError):
        read(Workspace(root), "one")


def test_a_pipe_is_refused_without_waiting_for_its_other_end(root: Path) -> None:
    os.mkfifo(root / "pipe")
    with pytest.raises(PathError):
        read(Workspace(root), "pipe")


def test_the_agents_own_folder_is_kept_from_tools_also_through_a_link(root: Path) -> None:
    own = root / ".standfast-direct"
    own.mkdir()
    (own / "session").write_text("s")
    (root / "link").symlink_to(".standfast-direct")
    workspace = Workspace(root, kept_out=(own,))
    for path in (".standfast-direct/session", "link/session", ".standfast-direct"):
        with pytest.raises(ConfinementError):
            read(workspace, path)


def test_a_folder_that_is_exchanged_for_a_link_while_it_is_walked_never_leads_out(root: Path) -> None:
    workspace = Workspace(root)
    folder, aside, link = root / "sub", root / "aside", root / "link"
    link.symlink_to(root.parent / "outside")
    (root.parent / "outside" / "a.txt").write_text("outside")
    is_over = threading.Event()

    def exchange() -> None:
        while not is_over.is_set():
            folder.rename(aside)
            link.rename(folder)
            folder.rename(link)
            aside.rename(folder)

    thread = threading.Thread(target=exchange)
    thread.start()
    found = set()
    try:
        for _ in range(3000):
            try:
                found.add(read(workspace, "sub/a.txt"))
            except (ConfinementError, PathError):
                continue
    finally:
        is_over.set()
        thread.join(10)
    assert found <= {b"a"}


def test_a_write_goes_to_the_links_target_and_keeps_the_link_and_the_mode(root: Path, tmp_path: Path) -> None:
    (root / "link").symlink_to("sub/a.txt")
    (root / "sub" / "a.txt").chmod(0o751)
    disk = Disk(Workspace(root), tmp_path)
    disk.put(disk.change("link", "changed"))
    assert (root / "link").is_symlink()
    assert (root / "sub" / "a.txt").read_text() == "changed"
    assert (root / "sub" / "a.txt").stat().st_mode & 0o777 == 0o751


def test_a_file_that_changed_after_it_was_read_is_not_overwritten(root: Path, tmp_path: Path) -> None:
    disk = Disk(Workspace(root), tmp_path)
    change = disk.change("sub/a.txt", "mine")
    (root / "sub" / "a.txt").write_text("theirs")
    with pytest.raises(ChangedMeanwhileError):
        disk.put(change)
    assert (root / "sub" / "a.txt").read_text() == "theirs"


def test_a_target_that_leads_elsewhere_than_when_it_was_read_is_not_written(root: Path, tmp_path: Path) -> None:
    (root / "sub" / "b.txt").write_text("a")
    (root / "link").symlink_to("sub/a.txt")
    disk = Disk(Workspace(root), tmp_path)
    change = disk.change("link", "mine")
    (root / "link").unlink()
    (root / "link").symlink_to("sub/b.txt")
    with pytest.raises(ChangedMeanwhileError):
        disk.put(change)
    assert (root / "sub" / "b.txt").read_text() == "a"


@pytest.mark.parametrize(
    ("content", "encoding"),
    [
        ("häß\n".encode(), "utf-8"),
        (b"\xef\xbb\xbfx", "utf-8-sig"),
        (b"\xff\xfex\x00", "utf-16-le"),
        (b"\xfe\xff\x00x", "utf-16-be"),
    ],
)
def test_a_write_keeps_the_files_encoding(root: Path, tmp_path: Path, content: bytes, encoding: str) -> None:
    (root / "f.txt").write_bytes(content)
    disk = Disk(Workspace(root), tmp_path)
    change = disk.change("f.txt", disk.snapshot("f.txt").file.text + "ü")  # type: ignore[union-attr]  # it is there
    assert change.encoding == encoding
    disk.put(change)
    snapshot = disk.snapshot("f.txt")
    assert snapshot.file is not None
    assert snapshot.file.text.endswith("ü")
    assert (root / "f.txt").read_bytes()[:2] == content[:2]


def test_nothing_is_left_beside_the_file_when_the_staging_folder_is_on_another_file_system(root: Path) -> None:
    staging = Path("/dev/shm")
    if staging.stat().st_dev == root.stat().st_dev:
        pytest.fail("expected /dev/shm on a file system of its own")
    disk = Disk(Workspace(root), staging)
    disk.put(disk.change("new/deep/file.txt", "x"))
    assert [path.name for path in (root / "new" / "deep").iterdir()] == ["file.txt"]
