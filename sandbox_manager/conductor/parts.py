"""What the services share: the store, the hosts, the leases, the key, the pins. Made once by the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sandbox_manager.adapters.host_client import HostCalls
from sandbox_manager.adapters.release_manifest import ReleaseManifest
from sandbox_manager.adapters.store_port import Conversation, ManagerStore, TurnStory
from sandbox_manager.conductor.host_book import HostBook
from sandbox_manager.conductor.leases import Leases
from sandbox_manager.conductor.locks import KeyedLocks
from sandbox_manager.core.records import ConversationRef, GroupRecord, HostRecord, TurnRecord
from sandbox_manager.core.refusals import HostUnavailableError
from sandbox_manager.policy import ManagerPolicy
from standfast_chassis.build_info import BuildInfo
from standfast_chassis.keys import SigningKey
from standfast_chassis.tracing import Tracing

TurnKey = tuple[str, str, str]


def turn_key(turn: TurnRecord) -> TurnKey:
    """The key of a turn's lease."""
    return (turn.tenant, turn.conversation_id, turn.turn_id)


@dataclass(frozen=True)
class Parts:
    """`new_id` gives a random uuid as text. `first_beat_wait_s`: how long a host that has just registered is waited for."""

    store: ManagerStore
    hosts: HostCalls
    book: HostBook
    leases: Leases[TurnKey]
    locks: KeyedLocks
    key: SigningKey
    manifest: ReleaseManifest
    policy: ManagerPolicy
    tracing: Tracing
    build: BuildInfo
    new_id: Callable[[], str]
    first_beat_wait_s: float
    heartbeat_ms: int

    async def host_of(self, group: GroupRecord) -> HostRecord:
        """The group's host, with a lease. Raises HostUnavailableError."""
        host = await self.store.host(group.host_id)
        if host is None or not self.book.has_lease(group.host_id):
            raise HostUnavailableError(
                f"host {group.host_id}, which holds this conversation's container, has no lease now. That says nothing about the "
                "container; retry when the host is back.",
                {"host_id": group.host_id},
            )
        return host

    async def host_address(self, story: TurnStory | None) -> str:
        """The address of the host that has a turn's journal; empty before a grant."""
        if story is None or story.activation is None:
            return ""
        host = await self.store.host(story.activation.host_id)
        return host.address if host is not None else ""

    async def conversation(self, ref: ConversationRef) -> Conversation:
        """What is kept of a conversation."""
        return await self.store.conversation(ref)
