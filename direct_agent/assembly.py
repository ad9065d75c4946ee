"""Puts one agent together from its settings: session, workspace, tools, endpoint."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Mapping
from pathlib import Path

from direct_agent.adapters.http_transport import Credential, HttpTransport, x_api_key
from direct_agent.adapters.real_clock import RealClock
from direct_agent.core.endpoint import Wire
from direct_agent.instructions import AgreementsFile, system_text
from direct_agent.loop.agent import Agent
from direct_agent.loop.ports import Audience
from direct_agent.loop.provider_rounds import ProviderRounds, TurnBudget
from direct_agent.session.errors import SessionError
from direct_agent.session.session import Session, SessionFolder
from direct_agent.settings import VERSION, Settings, SettingsError
from direct_agent.tools.disk import Disk
from direct_agent.tools.toolbox import standard_toolbox
from direct_agent.tools.workspace import Workspace

_KEPT_VARIABLES = ("HOME", "PATH", "LANG", "LC_ALL", "TERM", "TMPDIR", "USER", "LOGNAME", "SHELL", "TZ")


def open_session(settings: Settings) -> Session:
    """The session that the settings name: resumed, forked or new. Blocking. Raises SessionError."""
    folder = SessionFolder(settings.home)
    session_id = settings.session_id or str(uuid.uuid4())
    if settings.is_resume:
        session = folder.open(session_id)
    elif settings.fork_from is not None:
        return folder.fork(settings.fork_from, session_id, after=settings.fork_after)
    else:
        return folder.create(session_id, cwd=str(settings.workspace), agent_version=VERSION)
    header = session.history.header
    if header is None or header.cwd != str(settings.workspace):
        session.close()
        found = header.cwd if header else "none"
        text = f"expected a session of the workspace {settings.workspace}, found one of {found}"
        raise SessionError("SESSION_MISMATCH", text)
    return session


def open_transport(settings: Settings, environment: Mapping[str, str]) -> HttpTransport:
    """Raises SettingsError when there is no key."""
    settings.key.read(environment)

    def key() -> str:
        return settings.key.read(environment)

    is_messages = settings.endpoint.wire is Wire.MESSAGES
    return HttpTransport(x_api_key(key) if is_messages else Credential(key))


def assemble(
    settings: Settings, session: Session, transport: HttpTransport, audience: Audience, environment: Mapping[str, str]
) -> Agent:
    """The agent on an open session. Raises SettingsError for a workspace that is not there."""
    own_folder = settings.home / ".standfast-direct"
    staging = _staging(own_folder)
    try:
        workspace = Workspace(settings.workspace, kept_out=(own_folder,))
    except OSError:
        raise SettingsError(f"expected the workspace {settings.workspace}, found no such folder") from None
    disk = Disk(workspace, staging)
    agreements = AgreementsFile(settings.agreements)
    agent: Agent | None = None

    def instructions() -> str:
        assert agent is not None
        return system_text(settings.workspace, agreements.read() or agent.session.history.agreements)

    rounds = ProviderRounds(
        settings.endpoint,
        session,
        transport,
        RealClock(),
        audience,
        lambda: agent.toolbox.specs if agent is not None else (),
        policy=settings.policy,
        budget=TurnBudget(settings.limit_s),
    )
    agent = Agent(
        session,
        rounds,
        standard_toolbox(disk, shell_environment(environment)),
        disk,
        settings.permissions,
        audience,
        instructions,
        agreements=agreements.read,
        asks_person=settings.asks_person,
    )
    return agent


def shell_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What a shell command gets: a few known variables. The key's is not among them, whatever it is called."""
    kept = {name: environment[name] for name in _KEPT_VARIABLES if name in environment}
    return {"PATH": os.defpath, **kept}


def _staging(own_folder: Path) -> Path:
    staging = own_folder / "staging"
    staging.mkdir(mode=0o700, parents=True, exist_ok=True)
    for left in staging.iterdir():
        # What a killed process had written aside and never put in place.
        with contextlib.suppress(OSError):
            left.unlink()
    return staging
