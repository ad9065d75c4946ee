"""The slots of one sandbox as the relay knows them: each has a secret of its own and, on docker, a UID of its own.

Decides which slot a presented secret names. Secrets are kept as digests and compared in constant time over all slots,
so that neither a match nor its place in the list can be timed.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

from sandbox_manager.host.relay.errors import SlotTakenError, UnknownSlotError

SECRET_CHARACTERS_MIN = 16


@dataclass(frozen=True)
class Slot:
    """A registered slot. `uid` None: the engine has no UIDs (local), so the caller is not checked."""

    name: str
    secret_digest: bytes
    uid: int | None


class SlotTable:
    """Registered slots by name."""

    def __init__(self) -> None:
        self._slots: dict[str, Slot] = {}

    def register(self, name: str, secret: str, uid: int | None) -> Slot:
        """Adds a slot; the same again is fine, a different one under the same name or secret is refused."""
        if len(secret) < SECRET_CHARACTERS_MIN or not secret.isascii() or not secret.isprintable():
            raise ValueError(f"a slot's secret has at least {SECRET_CHARACTERS_MIN} printable ASCII characters")
        slot = Slot(name, _digest(secret.encode("ascii")), uid)
        known = self._slots.get(name)
        if known is not None and known != slot:
            raise SlotTakenError(
                f"slot {name} is registered with another secret or UID: revoke it first", {"slot": name}
            )
        if known is None and self.by_secret(secret.encode("ascii")) is not None:
            raise SlotTakenError(
                f"the secret given for slot {name} is another slot's: each has its own", {"slot": name}
            )
        self._slots[name] = slot
        return slot

    def revoke(self, name: str) -> None:
        """Forgets a slot; its secret is worth nothing from now on. Idempotent."""
        self._slots.pop(name, None)

    def get(self, name: str) -> Slot:
        """The slot called `name`. Raises UnknownSlotError."""
        slot = self._slots.get(name)
        if slot is None:
            raise UnknownSlotError(f"slot {name} is not registered with the relay", {"slot": name})
        return slot

    def by_secret(self, secret: bytes) -> Slot | None:
        """The slot that `secret` names, or None."""
        presented = _digest(secret)
        found: Slot | None = None
        for slot in self._slots.values():
            if hmac.compare_digest(slot.secret_digest, presented):
                found = slot
        return found

    @property
    def uids(self) -> frozenset[int]:
        """The UIDs of all registered slots that have one."""
        return frozenset(slot.uid for slot in self._slots.values() if slot.uid is not None)


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()
