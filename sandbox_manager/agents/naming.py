"""A locator that the CLI completes itself: what its handshake names, put into what was granted. Pure.

What was granted stays; a CLI that names another id or store than a granted one is found out by whoever compares.
"""

from __future__ import annotations

from dataclasses import replace

from sandbox_manager.agents.errors import AgentLocatorError
from sandbox_manager.core.values import NativeLocator, TapFindings


def complete_locator(granted: NativeLocator, findings: TapFindings, *, home: str) -> NativeLocator:
    """The whole locator. Raises AgentLocatorError when the handshake left something open, or names a store outside `home`."""
    session_id = granted.native_session_id or findings.handshake_session_id or ""
    store = granted.store or below_home(findings.handshake_store, home)
    whole = replace(granted, native_session_id=session_id, store=store)
    if not whole.is_whole or store.startswith("/") or any(part in ("", ".", "..") for part in store.split("/")):
        raise AgentLocatorError(
            f"{granted.agent}: expected a handshake that names the session and its store in the member's home, found "
            f"session {session_id or 'none'} and store {store or 'none'}",
            {"agent": granted.agent, "native_session_id": session_id, "store": store},
        )
    return whole


def below_home(path: str | None, home: str) -> str:
    """An absolute path relative to `home`; as it is when it lies elsewhere, empty for none."""
    if path is None:
        return ""
    return path[len(home) + 1 :] if path.startswith(f"{home}/") else path
