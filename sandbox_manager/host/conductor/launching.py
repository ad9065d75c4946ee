"""What is started in a slot for a grant. It decides nothing: the agent file says how its CLI is started."""

from __future__ import annotations

from sandbox_manager.agents.port import SandboxAgent
from sandbox_manager.core.values import LaunchSettings
from sandbox_manager.host.adapters.guest_values import GuestProgram, SlotFile
from sandbox_manager.host.conductor.hosted_slot import HostedSlot
from sandbox_manager.host.conductor.sandbox import Sandbox
from sandbox_manager.host.core.grant import Grant
from sandbox_manager.host.errors import HandshakeFailedError


def program_of(agent: SandboxAgent, grant: Grant, sandbox: Sandbox, slot: HostedSlot, secret: str) -> GuestProgram:
    """The program of one CLI process, from the agent file's own launch spec: a runner cannot name a command."""
    hello = sandbox.hello
    settings = LaunchSettings(
        agent=grant.agent,
        native_session_id=grant.locator.native_session_id,
        resume=grant.resumes,
        home=slot.place.home,
        tmp=slot.place.private,
        workspace=grant.locator.cwd,
        executable=f"{hello.agents}/{agent.executable}",
        model_base_url=f"http://127.0.0.1:{sandbox.model_port}",
        slot_secret=secret,
        model=grant.model,
        permission_mode=grant.permission_mode,
        options=grant.options,
        isolated=hello.is_isolated,
        store=grant.locator.store,
        allow_rules=grant.allow_rules,
        deny_rules=grant.deny_rules,
    )
    spec = agent.launch(settings)
    return GuestProgram(
        argv=spec.argv,
        env=dict(spec.env),
        cwd=spec.cwd,
        files=tuple(_slot_file(path, mode, content, slot) for path, mode, content in spec.files),
        must_be_unreadable=hello.is_isolated,
        is_bridged=spec.is_bridged,
    )


def _slot_file(path: str, mode: int, content: bytes, slot: HostedSlot) -> SlotFile:
    """A launch file below the slot's home or its private folder."""
    for base, root in (("home", slot.place.home), ("private", slot.place.private)):
        if path.startswith(f"{root}/"):
            return SlotFile(base, tuple(path[len(root) + 1 :].split("/")), mode, content)
    raise HandshakeFailedError(f"a launch file must lie in the slot's home or private folder, found {path}")
