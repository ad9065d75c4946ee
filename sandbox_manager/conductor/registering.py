"""Registers a host: compares its evidence with the release manifest item by item, and records what came of it.

Comparing is attestors/manifest.py's, the states are core/host.py's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import structlog

from sandbox_manager.adapters.release_manifest import pins_digest
from sandbox_manager.adapters.store_port import Change, Insert, Update
from sandbox_manager.attestors.manifest import compare
from sandbox_manager.conductor.parts import Parts
from sandbox_manager.core.evidence import evidence_items
from sandbox_manager.core.host import Attested, Host, HostState, LeaseOver, Probed, Refused, Registered
from sandbox_manager.core.judgement import Reason
from sandbox_manager.core.records import HostRecord, KeyRecord, Mark, Marks, Names
from sandbox_manager.core.refusals import AttestationRefusedError, SignatureInvalidError
from standfast_chassis.errors import TokenRejectedError
from standfast_chassis.keys import PublicKey

_log = structlog.get_logger("standfast.manager.hosts")

# Values of the states in which a host may have a lease.
LEASED_STATES = (HostState.READY.value, HostState.DRAINING.value)


class Registering:
    """What AttestHost does once the evidence's signature and nonce were found right."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def judged(
        self, host_id: str, engine: str, address: str, key: PublicKey, claims: dict[str, Any]
    ) -> HostRecord:
        """The host's record after its evidence was compared. Raises AttestationRefusedError, after that was recorded."""
        reasons = [*_own_words(host_id, engine, key, claims), *self._release(claims)]
        reasons += compare(self._parts.manifest.pins, evidence_items(claims))
        async with self._parts.locks.holding(("host", host_id)):
            former = await self._parts.store.host(host_id)
            if former is not None and PublicKey.from_jwk(former.public_key_jwk).thumbprint != key.thumbprint:
                raise SignatureInvalidError(
                    f"host {host_id} is registered with another key; expected that one. A host that has lost its key registers "
                    "under a name of its own.",
                    {"host_id": host_id, "found": key.thumbprint},
                )
            machine = Host(
                HostState(former.state) if former is not None else HostState.REGISTERING,
                lease_generation=former.lease_generation if former is not None else 0,
            )
            machine.step(Registered())
            if reasons:
                machine.step(Refused())
            else:
                machine.step(Attested())
                # The reverse probe comes with host identity; until then the evidence alone makes a host READY.
                machine.step(Probed())
            host = HostRecord(
                host_id=host_id,
                state=machine.state.value,
                public_key_jwk=key.jwk_text(),
                address=address,
                engine=engine,
                release_sha=str(claims.get("release_sha") or "unknown"),
                image_id=str(claims.get("image_id") or ""),
                boot_id=str(claims.get("boot_id") or ""),
                agents=Names(tuple(pin.name for pin in self._parts.manifest.pins.clis)),
                lease_generation=machine.lease_generation,
                attested_by=pins_digest(self._parts.manifest, self._parts.build),
                findings=Marks(tuple(Mark(one.code, one.expected, one.found) for one in reasons)),
                revision=former.revision if former is not None else 0,
            )
            changes: list[Change] = [Insert(host) if former is None else Update(host)]
            known = {one.key_id for one in await self._parts.store.keys()}
            if key.thumbprint not in known:
                changes.append(Insert(KeyRecord(key.thumbprint, f"host:{host.host_id}", key.jwk_text())))
            await self._parts.store.commit(changes)
            if reasons:
                self._parts.book.leases.end(host.host_id)
                raise _refused(host_id, reasons)
        return host

    async def expire_old_attestations(self) -> None:
        """At start: hosts that were compared with other pins must attest anew before they are given anything."""
        digest = pins_digest(self._parts.manifest, self._parts.build)
        for host in await self._parts.store.hosts():
            if host.attested_by != digest and host.state in LEASED_STATES:
                machine = Host(HostState(host.state), lease_generation=host.lease_generation)
                machine.step(LeaseOver(host.lease_generation))
                await self._parts.store.commit([Update(replace(host, state=machine.state.value))])

    def _release(self, claims: dict[str, Any]) -> list[Reason]:
        expected = self._parts.build.release_sha or "unknown"
        found = claims.get("release_sha") or "unknown"
        if found == expected:
            return []
        return [Reason("EVIDENCE_CONTRADICTED", f"release_sha = {expected}", f"release_sha = {str(found)[:80]}")]


def _own_words(host_id: str, engine: str, key: PublicKey, claims: dict[str, Any]) -> list[Reason]:
    """That the evidence is of the host that said hello."""
    pairs = [("host_id", host_id, claims.get("host_id")), ("engine", engine, claims.get("engine"))]
    reasons = []
    for item, expected, found in pairs:
        if found is None:
            reasons.append(Reason("EVIDENCE_MISSING", f"{item} = {expected}", f"{item} is missing"))
        elif found != expected:
            reasons.append(Reason("EVIDENCE_CONTRADICTED", f"{item} = {expected}", f"{item} = {str(found)[:80]}"))
    named = claims.get("host_key")
    if named is not None:
        try:
            found_key = PublicKey.from_jwk(named).thumbprint
        except TokenRejectedError:
            found_key = str(named)[:80]
        if found_key != key.thumbprint:
            reasons.append(Reason("EVIDENCE_CONTRADICTED", f"host_key = {key.thumbprint}", f"host_key = {found_key}"))
    return reasons


def _refused(host_id: str, reasons: list[Reason]) -> AttestationRefusedError:
    first = reasons[0]
    # At a registration an image that is not accepted is one more item that differs; no container is meant.
    code = "EVIDENCE_CONTRADICTED" if first.code == "IMAGE_RETIRED" else first.code
    listed = "; ".join(f"expected {one.expected}, found {one.found}" for one in reasons[:8])
    _log.warning("host refused", host_id=host_id, reason=code, differences=listed)
    return AttestationRefusedError(
        code,
        f"host {host_id} is not READY: {listed}. Start it from the same release and image as the manager's manifest names, or "
        "give the manager the manifest of that image.",
        {
            "host_id": host_id,
            "item": first.expected.split(" = ")[0],
            "expected": first.expected.partition(" = ")[2] or first.expected,
            "found": first.found.partition(" = ")[2] or first.found,
            "differences": len(reasons),
        },
    )
