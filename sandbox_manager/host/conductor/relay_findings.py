"""The relay's observation in the words of the host agent's own: pure translation."""

from __future__ import annotations

from sandbox_manager.core.values import RelayFindings
from sandbox_manager.host.relay.activation import RelayObservation


def findings_of(seen: RelayObservation) -> RelayFindings:
    """`unread` when anything was passed that could not be read to its end: then absence proves nothing."""
    return RelayFindings(
        requests=seen.requests,
        delivered_text_digests=seen.delivered_text_sha256,
        unread=seen.unread > 0 or seen.is_overflowed or seen.in_flight > 0,
        statuses=tuple(status for status, count in seen.statuses for _ in range(count)),
    )
