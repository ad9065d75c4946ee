"""Fetches the host agent's journalled observation of an activation, and checks whose words it is."""

from __future__ import annotations

from dataclasses import dataclass

from sandbox_manager.conductor.parts import Parts
from sandbox_manager.core import codec
from sandbox_manager.core.records import ActivationRecord, HostRecord
from sandbox_manager.core.refusals import HostUnavailableError, ObservationPendingError, SignatureInvalidError
from sandbox_manager.core.values import Observation
from standfast_chassis.canonical_json import sha256_hex
from standfast_chassis.keys import TokenKind

OBSERVED = "OBSERVED"
NEVER_FORWARDED = "NEVER_FORWARDED"


@dataclass(frozen=True, slots=True)
class Journalled:
    """What the journal says of an activation that is over. `observation` None: the host's journal does not know it."""

    host: HostRecord
    observation: Observation | None
    digest: str


async def journalled(parts: Parts, activation: ActivationRecord) -> Journalled:
    """The observation. Raises ObservationPendingError while the host is at it, HostUnavailableError when it does not answer.

    A lease is not asked for: reading a journal starts nothing and admits nothing.
    """
    host = await parts.store.host(activation.host_id)
    if host is None:
        raise HostUnavailableError(f"host {activation.host_id} is not registered.", {"host_id": activation.host_id})
    entry = await parts.hosts.journalled(host, activation.activation_id)
    if entry is None:
        return Journalled(host, None, "")
    if entry.state not in (OBSERVED, NEVER_FORWARDED) or entry.observation_jws is None:
        raise ObservationPendingError(
            f"host {host.host_id} is still at activation {activation.activation_id} ({entry.state}); ask again.",
            {"activation_id": activation.activation_id, "state": entry.state},
        )
    payload = parts.hosts.signed(host, entry.observation_jws, TokenKind.OBSERVATION)
    try:
        observation = codec.decode(Observation, payload)
    except codec.CodecError as error:
        raise SignatureInvalidError(
            f"host {host.host_id}: its signed observation cannot be read: {error.message}.", error.metadata
        ) from error
    return Journalled(host, observation, sha256_hex(payload))
