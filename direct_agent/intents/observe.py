"""Looks at the disk for a recorded intent, and makes the intents of planned changes. Blocking."""

from __future__ import annotations

import socket

from direct_agent.intents.record import Route, WriteIntent
from direct_agent.intents.verify import Seen
from direct_agent.tools.disk import Disk
from direct_agent.tools.errors import ToolError
from direct_agent.tools.port import Change
from direct_agent.tools.text_file import text_digest


class DiskWitness:
    """What is on disk now. `host` names this machine; only intents of the same one can be proved here."""

    def __init__(self, disk: Disk, host: str | None = None) -> None:
        self._disk = disk
        self.host = host or socket.gethostname()

    def look(self, intent: WriteIntent) -> Seen:
        """Never raises: what cannot be looked at is not seen."""
        unseen = Seen(self.host, None, None, None)
        if not intent.path.startswith("/"):
            return unseen
        try:
            resolved = self._disk.workspace.resolved_path(intent.path)
        except (ToolError, OSError):
            return unseen
        try:
            snapshot = self._disk.snapshot(intent.path)
        except (ToolError, OSError):
            return Seen(self.host, resolved, None, None)
        if snapshot.file is None:
            return Seen(self.host, snapshot.resolved_path, None, None)
        return Seen(self.host, snapshot.resolved_path, snapshot.file.digest, snapshot.file.encoding)

    def intent(self, change: Change) -> WriteIntent:
        """The record of one planned change by way of the disk."""
        return WriteIntent(
            path=change.path,
            host=self.host,
            route=Route.DISK,
            resolved_path=change.resolved_path,
            before=text_digest(change.before),
            after=text_digest(change.after),
            encoding=change.encoding,
            existed=change.existed,
        )
